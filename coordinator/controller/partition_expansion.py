"""Partition expansion: any broker may add partitions to a topic by a conditional write of the
topic's node. The controller then elects leaders for the new partitions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from pybroker.coordinator.controller.placement import assign_replicas
from pybroker.coordinator.controller.topics import (
    ATTEMPTS_MAX,
    check_factor,
    check_partition_count,
)
from pybroker.coordinator.zookeeper import paths, schemas, topic_nodes
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import (
    BadVersion,
    BrokerError,
    ConnectionLoss,
    ErrorCode,
    NoNode,
    RequestTooLarge,
)
from pybroker.model import NO_TOPIC_ID, Broker, topic_name_fault
from pybroker.ports import Coord, Rng, SetOp

log = logging.getLogger(__name__)

Replicas = dict[int, tuple[int, ...]]


def plan_expansion(
    name: str,
    topic: TopicAssignment,
    count: int,
    chosen: Sequence[Sequence[int]] | None,
    brokers: Sequence[Broker],
    rng: Rng,
) -> Replicas:
    """Return the replicas of the new partitions of a topic that grows to `count` partitions.
    `brokers` are the live brokers in order of id. `chosen` are the replicas of each new partition;
    None: this function chooses them.

    Raises BrokerError with the messages of Apache Kafka: INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR, REASSIGNMENT_IN_PROGRESS,
    UNKNOWN_SERVER_ERROR (no partition 0).
    """
    if topic.adding or topic.removing:
        raise BrokerError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            f"A partition reassignment is in progress for the topic '{name}'.",
        )
    old = len(topic.replicas)
    if count < old:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic currently has {old} partitions, which is higher than the requested {count}.",
        )
    if count == old:
        raise BrokerError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {old} partitions.")
    check_partition_count(count)
    if 0 not in topic.replicas:
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Unexpected existing replica assignment for topic '{name}', partition id 0 is"
            " missing.",
        )
    if chosen is not None:
        return _check_chosen(topic, count, chosen, {broker.id for broker in brokers})
    first = topic.replicas[0]
    check_factor(len(first), brokers)
    later = [number for number, broker in enumerate(brokers) if broker.id >= first[0]]
    start = later[0] if later else 0
    return assign_replicas(brokers, count - old, len(first), rng, first_partition=old, start=start)


async def expand_topic(
    coord: Coord,
    name: str,
    count: int,
    chosen: Sequence[Sequence[int]] | None,
    brokers: Sequence[Broker],
    rng: Rng,
    *,
    validate_only: bool,
) -> int:
    """Add partitions until the topic has `count`, and return `count`. With `validate_only` nothing
    is written.

    Raises CoordError and the errors of `plan_expansion`. Also raises BrokerError:

    - UNKNOWN_TOPIC_OR_PARTITION
    - INVALID_TOPIC_EXCEPTION: the topic is being deleted.
    - UNKNOWN_SERVER_ERROR: other clients kept changing the node.
    """
    wanted: TopicAssignment | None = None
    for attempt in range(ATTEMPTS_MAX):
        topic, version = await _find(coord, name)
        if wanted is not None and topic == wanted:
            break  # the write whose reply was lost has been applied
        added = plan_expansion(name, topic, count, chosen, brokers, rng)
        if validate_only:
            return count
        wanted = replace(topic, replicas={**topic.replicas, **added})
        try:
            write = SetOp(paths.topic(name), schemas.encode_topic(wanted), version)
            await topic_nodes.apply(coord, (name, topic.topic_id or NO_TOPIC_ID), write)
        except NoNode as error:
            raise _unknown(name) from error
        except BadVersion:
            wanted = None
        except ConnectionLoss:
            if attempt == ATTEMPTS_MAX - 1:
                raise
            await coord.sync(paths.TOPICS)
        except RequestTooLarge as error:
            raise BrokerError(ErrorCode.INVALID_PARTITIONS, str(error)) from error
        else:
            break
    else:
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the node {paths.topic(name)} could not be written in {ATTEMPTS_MAX} attempts, because"
            " other clients kept changing it; try again",
        )
    log.info("partitions created topic=%s partitions=%d", name, count)
    return count


async def _find(coord: Coord, name: str) -> tuple[TopicAssignment, int]:
    """Return (content, version) of the topic's node."""
    if topic_name_fault(name) is not None:
        raise _unknown(name)
    if await coord.exists(paths.delete_topic(name)) is not None:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
    try:
        data, stat = await coord.get(paths.topic(name))
    except NoNode as error:
        raise _unknown(name) from error
    return schemas.decode_topic(paths.topic(name), data), stat.version


def _unknown(name: str) -> BrokerError:
    return BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _check_chosen(
    topic: TopicAssignment, count: int, chosen: Sequence[Sequence[int]], live: Collection[int]
) -> Replicas:
    old = len(topic.replicas)
    unknown = sorted({broker for replicas in chosen for broker in replicas} - set(live))
    if unknown:
        raise _misplaced(f"Unknown broker(s) in replica assignment: {_joined(unknown)}.")
    if len(chosen) != count - old:
        raise _misplaced(
            f"Increasing the number of partitions by {count - old} but {len(chosen)} assignments"
            " provided."
        )
    placed = {old + number: tuple(replicas) for number, replicas in enumerate(chosen)}
    for number, replicas in placed.items():
        if not replicas:
            raise _misplaced(f"Cannot have replication factor of 0 for partition id {number}.")
        if len(set(replicas)) != len(replicas):
            raise _misplaced(
                f"Duplicate brokers not allowed in replica assignment: {_joined(replicas)} for"
                f" partition id {number}."
            )
    factor = len(topic.replicas[0])
    odd = {number: len(each) for number, each in placed.items() if len(each) != factor}
    if odd:
        raise _misplaced(
            f"Inconsistent replication factor between partitions, partition 0 has {factor} while"
            f" partitions [{_joined(odd)}] have replication factors [{_joined(odd.values())}],"
            " respectively."
        )
    return placed


def _misplaced(detail: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)


def _joined(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
