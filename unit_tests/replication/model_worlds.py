"""A small model of one partition's replication, for exhaustive search: three brokers, a state node
in ZooKeeper, a controller, late and lost messages, and a topic that is deleted and recreated.

A `World` is immutable and hashable. `Rules` can switch off single rules, which shows the violations
that each rule prevents. The product's own functions decide about epochs, elections and truncation;
their results are cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple

from pybroker.coordinator.controller.decisions import Circumstances, decide_repair
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.coordinator.controller.preferred import decide_preferred
from pybroker.model import NO_LEADER, NO_OFFSET, PartitionState, TopicPartition, isr_changed
from pybroker.replication.follower import TruncateTo, after_ends, common_end
from pybroker.storage.epochs import EpochHistory, EpochStart

BROKERS: Final = (0, 1, 2)
NOBODY: Final = -1
UNKNOWN: Final = (NO_OFFSET,) * len(BROKERS)

Steps = Iterator[tuple[str, "World"]]
Log = tuple[int, ...]
"""The leader epoch of each record. Offset and leader epoch identify a record."""
History = tuple[EpochStart, ...]


@dataclass(frozen=True)
class Rules:
    """The rules of the real code, each of which can be switched off."""

    fence_fetches: bool = True
    """A leader accepts only fetches with its own epoch (KIP-320)."""
    truncate_by_epoch: bool = True
    """A follower truncates where epochs diverge, not at its high watermark (KIP-101, KIP-279)."""
    diverging_fetch_counts_not: bool = True
    """The fetch of a diverging follower proves nothing about the records below it (KIP-595)."""
    join_from_epoch_start: bool = True
    """A follower joins the ISR only with all records from before the leader's epoch (KIP-320)."""
    join_from_high_watermark: bool = True
    """A follower joins the ISR only with all records that the leader knows to be committed."""
    pending_join_counts: bool = True
    """The high watermark waits for a follower that may have joined (KIP-497)."""
    shrink_counts_when_stored: bool = True
    """The high watermark waits for a follower that may still be in the ISR."""
    lost_reply_proves_nothing: bool = True
    """A change stays pending until a write proves its outcome."""
    writes_are_conditional: bool = True
    """The ISR is written on the condition of the node's version."""
    incarnation_is_checked: bool = True
    """A follower that restarted meanwhile does not join (KIP-903)."""
    small_isr_commits_nothing: bool = True
    """The high watermark does not advance while the ISR is below min.insync.replicas (KIP-966)."""
    eligible_commits_nothing: bool = True
    """The high watermark does not advance while the node names eligible replicas outside the
    ISR."""
    topic_is_checked: bool = True
    """A write is refused when the topic that it was meant for is deleted."""


@dataclass(frozen=True)
class Bounds:
    """Limits of the number of events in a run."""

    records: int = 1
    epochs: int = 2
    """Writes of the controller."""
    changes: int = 1
    """Changes of the ISR that leaders propose."""
    lost_replies: int = 0
    restarts: int = 0
    wipes: int = 0
    """Restarts with an empty disk, only of brokers that are not electable."""
    lowered: int = 0
    """The number of times that min.insync.replicas is lowered to 1."""
    recreated: int = 0
    """The number of times that the topic is deleted and recreated."""
    required: int = 1
    """min.insync.replicas."""
    isr: tuple[int, ...] = BROKERS


class Spent(NamedTuple):
    epochs: int = 0
    changes: int = 0
    lost_replies: int = 0
    restarts: int = 0
    wipes: int = 0
    lowered: int = 0
    recreated: int = 0


class Change(NamedTuple):
    """A write to the state node."""

    state: PartitionState
    version: int
    joins: int = NOBODY
    incarnation: int = 0
    topic: int = 0
    """The topic for which the write was sent: 0 is the first one, 1 its first recreation."""


class Leadership(NamedTuple):
    """The state of a broker as the leader."""

    start: int
    state: PartitionState
    version: int
    ends: tuple[int, ...] = UNKNOWN
    incarnations: tuple[int, ...] = UNKNOWN
    pending: Change | None = None


class Replica(NamedTuple):
    """One replica. `epoch` and `leader` come from the last command, which was for `topic`."""

    log: Log = ()
    history: History = ()
    epoch: int = -1
    leader: int = NO_LEADER
    high_watermark: int = 0
    incarnation: int = 0
    leading: Leadership | None = None
    topic: int = 0


class World(NamedTuple):
    replicas: tuple[Replica, ...]
    state: PartitionState
    version: int
    orders: frozenset[tuple[PartitionState, int]]
    """The controller's commands, each with the node's version; one may arrive at any time."""
    flying: frozenset[Change] = frozenset()
    """Writes to the state node that have been sent and not arrived."""
    committed: Log = ()
    """The records that were acknowledged to producers."""
    required: int = 1
    spent: Spent = Spent()

    @property
    def topic(self) -> int:
        """The current topic: 0 is the first one, 1 its first recreation."""
        return self.spent.recreated


class Violation(Exception):
    """Raised if a world violates a promise of replication."""


# ---- the product's own decisions, cached


@dataclass(frozen=True)
class ModelLog:
    """The properties of a log that `common_end` reads."""

    log: Log
    history: History
    log_start_offset: int = 0

    @property
    def log_end_offset(self) -> int:
        return len(self.log)

    @property
    def latest_epoch(self) -> int:
        return self.history[-1].epoch if self.history else -1

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return end_offset(self.history, epoch, len(self.log))


@cache
def end_offset(history: History, epoch: int, log_end: int) -> tuple[int, int]:
    return EpochHistory(history).end_offset(epoch, log_end)


@cache
def begun(history: History, epoch: int, start: int) -> History:
    changed = EpochHistory(history)
    changed.assign(epoch, start)
    return changed.entries


@cache
def cut(log: Log, history: History, end: int) -> tuple[Log, History]:
    changed = EpochHistory(history)
    changed.truncate_end(end)
    return log[:end], changed.entries


@cache
def agreed_end(own: ModelLog, leader: ModelLog) -> int:
    """Return the offset to which a follower truncates before it fetches; its log end if none."""
    end, last_epoch = len(own.log), own.latest_epoch
    if last_epoch < 0:
        return end
    epoch, leader_end = leader.epoch_end_offset(last_epoch)
    if leader_end == NO_OFFSET:  # OFFSET_OUT_OF_RANGE
        step = after_ends(own, 0, len(leader.log))
        return step.offset if isinstance(step, TruncateTo) else end
    if epoch >= last_epoch and leader_end >= end:
        return end
    return common_end(own, epoch, leader_end)


changed_isr = lru_cache(maxsize=None)(isr_changed)


@cache
def elections(
    state: PartitionState, version: int, required: int
) -> tuple[tuple[str, PartitionState], ...]:
    """Return all elections that the controller may make from this state."""
    status = PartitionStatus.OFFLINE if state.leader == NO_LEADER else PartitionStatus.ONLINE
    partition = Partition(TopicPartition("t", 0), BROKERS, status, state, version)
    found = {}
    for lost in BROKERS:
        stale = Circumstances(BROKERS, BROKERS, 1, stale={lost}, required=required)
        choices = [(f"{lost} has restarted", decide_repair(partition, stale))]
        for other in BROKERS:
            live = [broker for broker in BROKERS if broker not in (lost, other)]
            now = Circumstances(live, live, 1, required=required)
            choices.append((f"{lost} and {other} are lost", decide_repair(partition, now)))
        found.update({write.state: label for label, write in choices if write is not None})
    write = decide_preferred(partition, Circumstances(BROKERS, BROKERS, 1, required=required))
    if write is not None:
        found[write.state] = "the preferred one leads"
    return tuple((label, state) for state, label in found.items())
