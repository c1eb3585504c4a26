"""The placement of new replicas. It follows Kafka's own rule, so Kafka's tools predict the
placement correctly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pybroker.model import Broker
from pybroker.ports import Rng


def assign_replicas(
    brokers: Sequence[Broker],
    partitions: int,
    replication_factor: int,
    rng: Rng,
    first_partition: int = 0,
    start: int | None = None,
) -> dict[int, tuple[int, ...]]:
    """Return partition -> replicas, preferred replica first, for `partitions` partitions from
    `first_partition` on. If every broker names a rack, no rack gets a second replica before each
    rack has one (KIP-36). `start` replaces the random first broker and the random shift of the
    followers.

    Raises ValueError unless 1 <= replication_factor <= len(brokers) and partitions >= 1.
    """
    if not 1 <= replication_factor <= len(brokers):
        raise ValueError(
            f"the replication factor is {replication_factor}, expected 1 to {len(brokers)}, the"
            " number of live brokers"
        )
    if partitions < 1:
        raise ValueError(f"the number of partitions is {partitions}, expected at least 1")
    racks = {broker.id: broker.rack for broker in brokers if broker.rack is not None}
    rack_aware = len(racks) == len(brokers)
    ids = alternate_racks(racks) if rack_aware else sorted(broker.id for broker in brokers)
    if start is None:
        start, shift = rng.randrange(len(ids)), rng.randrange(len(ids))
    else:
        shift = start
    assignment: dict[int, tuple[int, ...]] = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ids) == 0:
            shift += 1
        first = (partition + start) % len(ids)
        if rack_aware:
            assignment[partition] = _spread_over_racks(ids, racks, first, shift, replication_factor)
        else:
            followers = (
                ids[_follower_index(first, shift, number, len(ids))]
                for number in range(replication_factor - 1)
            )
            assignment[partition] = (ids[first], *followers)
    return assignment


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """Return broker ids, with neighbours in different racks as far as possible: the first broker of
    each rack, then the second broker of each rack, and so on."""
    by_rack: dict[str, list[int]] = defaultdict(list)
    for broker_id in sorted(racks):
        by_rack[racks[broker_id]].append(broker_id)
    columns = [by_rack[rack] for rack in sorted(by_rack)]
    deepest = max(map(len, columns))
    return [column[row] for row in range(deepest) for column in columns if row < len(column)]


def _follower_index(first: int, shift: int, number: int, brokers: int) -> int:
    """Return the index of the broker for follower `number`, counted from 0. `first` is the
    preferred replica's index."""
    return (first + 1 + (shift + number) % (brokers - 1)) % brokers


def _spread_over_racks(
    ids: Sequence[int], racks: Mapping[int, str], first: int, shift: int, replication_factor: int
) -> tuple[int, ...]:
    rack_count = len(set(racks.values()))
    chosen = [ids[first]]
    racks_used = {racks[ids[first]]}
    step = 0
    while len(chosen) < replication_factor:
        candidate = ids[_follower_index(first, shift * rack_count, step, len(ids))]
        step += 1
        rack_is_free = racks[candidate] not in racks_used or len(racks_used) == rack_count
        if rack_is_free and candidate not in chosen:
            chosen.append(candidate)
            racks_used.add(racks[candidate])
    return tuple(chosen)
