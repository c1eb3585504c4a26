"""Mutants: bugs that are planted in the broker's code, to test whether the simulation finds them.

Each mutant removes one rule of the broker by replacing functions of the real code during a run. The
code itself has no switch. The model checker of the unit tests removes the same rules from the
model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pybroker.client.transactions.manager import TransactionManager
from pybroker.compaction import choice, cleaner, cleaning
from pybroker.compaction.transactions import SeenTransactions
from pybroker.coordinator.controller.writes import FencedWriter
from pybroker.coordinator.groups import heartbeat
from pybroker.coordinator.groups.fenced_writes import FencedWrites
from pybroker.coordinator.offsets.transaction_writes import TransactionWrites
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.transactions import decisions
from pybroker.coordinator.transactions.coordinator import TransactionCoordinator
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.errors import CoordError
from pybroker.handlers import acknowledgement, fetch_reading
from pybroker.model import NO_EPOCH, NO_OFFSET
from pybroker.replication import fetcher, follower, isr_changes, leader_state, truncation
from pybroker.replication.isr_changes import IsrChanges
from pybroker.replication.leader_state import NOBODY, LeaderState
from pybroker.replication.partition import Partition
from pybroker.replication.verification import TransactionVerification
from pybroker.storage import log as storage_log
from pybroker.storage import opening
from pybroker.storage.filename import MOVED_HERE
from pybroker.storage.moves import ReplicaMove
from pybroker.storage.producer_state import ProducerState
from pybroker.testing.simulation.result import Result
from pybroker.testing.simulation.run import simulate
from pybroker.testing.simulation.schedule import Schedule
from unit_tests.simulation import cleaning_mutants as of_cleaning
from unit_tests.simulation import transaction_mutants as of_transactions

_ANY_VERSION: Final = -1


@dataclass(frozen=True, slots=True)
class Replacement:
    """The replacement of the attribute `name` of `owner`: `make` receives the original and returns
    the replacement.
    """

    owner: Any
    name: str
    make: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted bug. `meaning` is the rule that it removes."""

    name: str
    meaning: str
    replacements: tuple[Replacement, ...]


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant the bug of that name during the block; "" plants none. Raises KeyError for an unknown
    name.
    """
    with ExitStack() as undo:
        for each in BY_NAME[name].replacements if name else ():
            original = each.owner.__dict__[each.name]
            undo.callback(setattr, each.owner, each.name, original)
            setattr(each.owner, each.name, each.make(original))
        yield


def simulate_mutant(
    schedule: Schedule, *, keep_trace: bool = False, stop_early: bool = False
) -> Result:
    """Run the schedule with the bug that it names."""
    return simulate(schedule, keep_trace=keep_trace, stop_early=stop_early, planted=planted)


# ---- replacements


def _without_epochs(position: Any) -> Any:
    """Let followers request the leader's log end without the last leader epoch of their own log."""

    def changed(log: Any, leader_epoch: int) -> Any:
        return position(log, leader_epoch)._replace(last_epoch=NO_EPOCH)

    return changed


def _cut_at_high_watermark(follow: Any) -> Any:
    """Truncate a follower to its high watermark, like Kafka before KIP-101."""

    def changed(self: Partition, facts: Any) -> None:
        follow(self, facts)
        if self.high_watermark < self.log.log_end_offset:
            self.truncate_to(self.high_watermark)

    return changed


def _any_epoch(read_partition: Any) -> Any:
    """Accept a follower's fetch of any leader epoch."""

    def changed(services: Any, key: Any, wanted: Any, reading: Any) -> Any:
        partition = services.replicas.partitions.get(key)
        if reading.follower is not None and partition is not None:
            epoch = partition.leader_epoch
            wanted = dataclasses.replace(wanted, current_leader_epoch=epoch)
        return read_partition(services, key, wanted, reading)

    return changed


def _unconditional(operations: Any) -> Any:
    def changed(change: Any, data: bytes) -> Any:
        blind = dataclasses.replace(change, expected_version=_ANY_VERSION)
        return operations(blind, data)

    return changed


def _blind(look: Any) -> Any:
    """Accept any stored version of the node before the ISR write."""

    async def changed(self: IsrChanges, change: Any) -> Any:
        try:
            data, _ = await self._coord.get(paths.partition_state(change.topic_partition))
        except CoordError:
            return await look(self, change)
        return data if self._leader_of(change) is not None else None

    return changed


def _believing(verify: Any) -> Any:
    """Skip the check of the stored version, which would detect that another broker leads and stop
    the writes.
    """

    async def changed(self: IsrChanges, change: Any) -> None:
        self._unchanged(change)

    return changed


def _any_incarnation(operations: Any) -> Any:
    """Add a follower to the ISR even if it has restarted since its fetch."""

    def changed(change: Any, data: bytes) -> Any:
        ops = operations(change, data)
        return ops if change.joins == NOBODY else [ops[0], ops[0], *ops[2:]]

    return changed


def _as_soon_as_appended(is_decided: Any) -> Any:
    def changed(services: Any, item: Any, fail: Any) -> Any:
        return is_decided(services, item._replace(acks=1), fail)

    return changed


def _whatever_epoch_start(may_join: Any) -> Any:
    def changed(follower_end: int, *, high_watermark: int, epoch_start: int) -> Any:
        return may_join(follower_end, high_watermark=high_watermark, epoch_start=0)

    return changed


def _only_stored(_recount: Any) -> Any:
    """Count only the stored ISR for the high watermark, not the followers of a pending ISR
    write.
    """

    def changed(self: LeaderState) -> None:
        joining = set() if self.pending is None else {self.pending.joins}
        members = {*self.facts.state.isr, *self._awaited} - joining
        self._counted = tuple(
            each for replica, each in self.followers.items() if replica in members
        )

    return changed


def _to_where_the_epoch_began(common_end: Any) -> Any:
    """Truncate the whole last common leader epoch, not only the records after it."""

    def changed(log: Any, leader_epoch: int, leader_end: int) -> Any:
        _, start = log.epoch_end_offset(leader_epoch - 1)
        end: int = common_end(log, leader_epoch, leader_end)
        return end if start == NO_OFFSET else min(end, start)

    return changed


def _nothing_is_committed(_cuts_committed: Any) -> Any:
    return lambda log, high_watermark, step: False


def _only_what_is_known(_may_cut: Any) -> Any:
    """Assume that no record above the last checkpointed high watermark was acknowledged."""

    def changed(log: Any, high_watermark: int, step: Any, *, in_sync: bool) -> Any:
        return follower.cuts_committed(log, high_watermark, step)

    return changed


def _forgetful(lead: Any) -> Any:
    """Drop a new leader's state of the producers whose records it has copied."""

    def changed(self: Partition, facts: Any, now: float) -> None:
        if not self.is_leader:
            self.log.producers.take_over(ProducerState())
        lead(self, facts, now)

    return changed


def _unfenced(_multi: Any) -> Any:
    async def changed(self: FencedWriter, ops: Any) -> Any:
        return await self._coord.multi([*ops])

    return changed


def _unchecked(_multi: Any) -> Any:
    async def changed(self: FencedWrites, ops: Any) -> Any:
        return await self._coord.multi([*ops])

    return changed


def _of_any_topic(multi: Any) -> Any:
    """Write to a topic's nodes even if it is a recreated topic."""

    async def changed(coord: Any, _topic: Any, ops: Any, send: Any = None) -> Any:
        return await multi(coord, None, ops, send)

    return changed


def _any_generation(fault_of: Any) -> Any:
    """Take a member's requests of every generation for requests of the present one."""

    def changed(group: Any, who: Any, generation: int) -> Any:
        return fault_of(group, who, group.generation)

    return changed


def _whoever_has_it(_look: Any) -> Any:
    """Treat a fence that another coordinator has taken meanwhile as the coordinator's own fence."""

    async def changed(self: FencedWrites) -> None:
        # Tests' and brokers' shards keep it under names of their own.
        (kept,) = [name for name in vars(self._shard) if name.endswith("fence_version")]
        setattr(self._shard, kept, (await self._coord.get(self._fence))[1].version)

    return changed


def _whatever_it_holds(_catch_up: Any) -> Any:
    """Let the copy of a moving replica replace the log before the copy is complete."""

    def changed(self: ReplicaMove) -> bool:
        if self.cancelled or self._lowered is not None:
            return False
        self._become_the_log()
        return True

    return changed


def _always_the_copy(prefer: Any) -> Any:
    """Let a broker that was killed during a move continue with the copy, whatever its length."""

    def changed(first: Any, second: Any, disk: Any) -> Any:
        kept, dropped = prefer(first, second, disk)
        is_copy = disk.exists(f"{kept.directory}/{MOVED_HERE}")
        return (kept, dropped) if is_copy else (dropped, kept)

    return changed


# ---- table

PLANTED: Final = (
    Planted(
        "no-epoch-truncation",
        "a follower truncates its log at the first different leader epoch, not at its high"
        " watermark (KIP-101)",
        (
            Replacement(fetcher, "position", _without_epochs),
            Replacement(Partition, "follow", _cut_at_high_watermark),
        ),
    ),
    Planted(
        "no-fetch-fencing",
        "a leader accepts only fetches of its own leader epoch (KIP-320)",
        (Replacement(fetch_reading, "_read_partition", _any_epoch),),
    ),
    Planted(
        "isr-without-compare-and-set",
        "an ISR write is conditional on the version of the state node",
        (
            Replacement(isr_changes, "_operations", _unconditional),
            Replacement(IsrChanges, "_look", _blind),
            Replacement(IsrChanges, "_verify", _believing),
        ),
    ),
    Planted(
        "ack-before-high-watermark",
        "a record with acks=all is acknowledged when the high watermark has passed it",
        (Replacement(acknowledgement, "is_decided", _as_soon_as_appended),),
    ),
    Planted(
        "join-without-epoch-start",
        "a follower joins the ISR only with all records up to the start of the leader epoch"
        " (KIP-320)",
        (Replacement(leader_state, "may_join", _whatever_epoch_start),),
    ),
    Planted(
        "pending-isr-ignored",
        "the high watermark waits for followers of pending ISR writes (KIP-497)",
        (Replacement(LeaderState, "_recount", _only_stored),),
    ),
    Planted(
        "stale-incarnation-joins",
        "a follower that has restarted since its fetch does not join the ISR (KIP-903)",
        (Replacement(isr_changes, "_operations", _any_incarnation),),
    ),
    Planted(
        "truncation-below-high-watermark",
        "a committed record is not truncated",
        (
            Replacement(follower, "common_end", _to_where_the_epoch_began),
            Replacement(truncation, "cuts_committed", _nothing_is_committed),
        ),
    ),
    Planted(
        "loss-above-high-watermark-untold",
        "a loss receipt includes records above the high watermark that may have been acknowledged",
        (Replacement(truncation, "may_cut_committed", _only_what_is_known),),
    ),
    Planted(
        "duplicate-after-fail-over",
        "a new leader has the state of the producers whose records it has copied",
        (Replacement(Partition, "lead", _forgetful),),
    ),
    Planted(
        "controller-without-epoch-check",
        "a replaced controller changes nothing",
        (Replacement(FencedWriter, "_attempt", _unfenced),),
    ),
    Planted(
        "old-coordinator-commits",
        "a coordinator that finds another coordinator's fence commits no offsets any more",
        (Replacement(FencedWrites, "_look_at_fence", _whoever_has_it),),
    ),
    Planted(
        "earlier-generation-commits",
        "a coordinator refuses a member's heartbeats and commits of an earlier generation",
        (Replacement(heartbeat, "_fault_of", _any_generation),),
    ),
    Planted(
        "offset-write-without-fence",
        "every write of offsets checks the coordinator's fence",
        (Replacement(FencedWrites, "multi", _unchecked),),
    ),
    Planted(
        "write-to-recreated-topic",
        "every write to a topic's nodes checks the topic's id",
        (Replacement(topic_nodes, "multi", _of_any_topic),),
    ),
    Planted(
        "copy-takes-over-early",
        "the copy of a moving replica replaces the log only when it is as long (KIP-113)",
        (Replacement(ReplicaMove, "catch_up", _whatever_it_holds),),
    ),
    Planted(
        "copy-always-kept",
        "of the two logs of an interrupted move the longer log is kept, unless one was truncated",
        (Replacement(opening, "prefer", _always_the_copy),),
    ),
    Planted(
        "markers-before-decision",
        "no marker is sent before the outcome of the transaction is committed",
        (
            Replacement(TransactionCoordinator, "_append", of_transactions.markers_at_append),
            Replacement(TransactionCoordinator, "_committed", of_transactions.no_markers_again),
        ),
    ),
    Planted(
        "no-epoch-fence",
        "a coordinator refuses the requests of an earlier epoch of the transactional id",
        (Replacement(decisions, "_fault_of", of_transactions.any_epoch),),
    ),
    Planted(
        "stable-offset-past-open-transaction",
        "the last stable offset is at most the first offset of an open transaction",
        (Replacement(Partition, "last_stable_offset", of_transactions.stable_at_high_watermark),),
    ),
    Planted(
        "offsets-before-marker",
        "offsets of a transaction take effect at its commit marker",
        (Replacement(ZookeeperOffsets, "commit_in_transaction", of_transactions.offsets_at_once),),
    ),
    Planted(
        "applied-before-written",
        "the applied marker is stored after the offsets of the transaction",
        (Replacement(TransactionWrites, "_run", of_transactions.applied_before_written),),
    ),
    Planted(
        "no-verification",
        "a leader appends the first batch of a transaction only if the coordinator confirms it"
        " (KIP-890)",
        (Replacement(TransactionVerification, "begin", of_transactions.nothing_to_verify),),
    ),
    Planted(
        "completion-forgotten",
        "a new coordinator completes the prepared transactions",
        (Replacement(TransactionCoordinator, "loaded", of_transactions.prepared_is_complete),),
    ),
    Planted(
        "commit-before-delivery",
        "the producer of pybroker.client commits after the delivery of all records",
        (Replacement(TransactionManager, "commit", of_transactions.commit_at_once),),
    ),
    Planted(
        "tombstone-dropped-early",
        "a tombstone stays for delete.retention.ms",
        (Replacement(cleaning._Pass, "_is_past_horizon", of_cleaning.without_tombstones),),
    ),
    Planted(
        "uncommitted-record-replaces",
        "only records below the high watermark are cleaned",
        (Replacement(cleaner, "plan", of_cleaning.up_to_the_log_end),),
    ),
    Planted(
        "aborted-record-replaces",
        "a record of an aborted transaction replaces no other record",
        (Replacement(SeenTransactions, "is_aborted", of_cleaning.nothing_aborted),),
    ),
    Planted(
        "cleaned-past-open-transaction",
        "a segment with records of an open transaction is not cleaned",
        (Replacement(choice, "_cleanable", of_cleaning.past_open_transactions),),
    ),
    Planted(
        "cleaned-before-swap",
        "the cleaner's checkpoint is written after the new segments have replaced the old ones",
        (Replacement(cleaner.LogCleaner, "_clean", of_cleaning.cleaned_before_swap),),
    ),
    Planted(
        "retention-past-high-watermark",
        "retention deletes only segments below the high watermark",
        (Replacement(storage_log, "expired", of_cleaning.past_high_watermark),),
    ),
)

BY_NAME: Final[Mapping[str, Planted]] = {each.name: each for each in PLANTED}
