"""The invariants of a simulated cluster's replicas, checked at every moment of a run.

A replica is doubted if its disk may have lost data. A doubted replica is allowed to lack records.
The doubt ends when the replica has left both the ISR and the eligible replicas (KIP-966), and
belongs to one of the two again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Final, NamedTuple

from pybroker.model import TopicPartition
from pybroker.testing.history.model import Violation
from pybroker.testing.simulation.cluster_record import ClusterRecord

ONE_LEADER: Final = "one-leader-per-epoch"
NEVER_FALLS: Final = "high-watermark-never-falls"
COVERED: Final = "high-watermark-covered"
HELD: Final = "commit-held-by-enough"
KEPT: Final = "committed-kept"
UNCOMMITTED: Final = "only-committed-deleted"
INVARIANTS: Final = (ONE_LEADER, NEVER_FALLS, COVERED, HELD, KEPT, UNCOMMITTED)


class ReplicaNow(NamedTuple):
    """The present state of a replica, or the last state before the broker's `process` ended (`runs`
    is False)."""

    broker: int
    process: str
    partition: TopicPartition
    topic_id: str
    leads: bool
    epoch: int
    high_watermark: int
    log_end: int
    runs: bool = True
    log_start: int = 0


_Life = tuple[str, int]
"""The id of a topic and a partition number."""


class Invariants:
    """The check of all invariants. `violations` has at most one violation per invariant and
    partition."""

    def __init__(self, record: ClusterRecord) -> None:
        self.violations: list[Violation] = []
        self._record = record
        self._leaders: dict[tuple[_Life, int], int] = {}
        self._marks: dict[tuple[_Life, int, str], int] = {}
        """The last observed high watermark of each leader, by partition, leader epoch and
        process."""
        self._committed: dict[_Life, int] = {}
        """The highest high watermark that any leader had, by partition."""
        self._ends: dict[_Life, dict[int, int]] = defaultdict(dict)
        """The log end offset of each replica at the last observation, by partition and broker
        id."""
        self._doubted: dict[tuple[int, TopicPartition], bool] = {}
        """The replicas that are doubted, because their disks may have lost data. The value says
        whether the replica has left the ISR since the doubt began."""
        self._losses = 0
        self._lost: set[TopicPartition] = set()
        self._told: set[tuple[str, TopicPartition]] = set()

    def doubt(self, broker: int) -> None:
        """Mark all replicas of the broker as doubted (see the module): the broker's disk may have
        lost data."""
        self._record.history.keyed.doubted.add(broker)
        self._doubted.update(((broker, partition), False) for partition in self._record.states)

    def observe(self, replicas: Sequence[ReplicaNow]) -> None:
        """Check all invariants. `replicas` must have the present states of all replicas of all
        brokers."""
        self._take_losses()
        self._trust_again({(each.broker, each.partition) for each in replicas if each.runs})
        by_life: dict[_Life, list[ReplicaNow]] = defaultdict(list)
        for replica in replicas:
            if self._record.topic_ids.get(replica.partition[0]) == replica.topic_id:
                by_life[replica.topic_id, replica.partition[1]].append(replica)
        for life, found in by_life.items():
            self._see_ends(life, found)
            for replica in found:
                if replica.leads and replica.runs:
                    self._look_at_leader(life, replica, found)
                    self._check_log_start(life, replica)
            self._check_electable(life, found)

    def shortened(self, broker: int, partition: TopicPartition, topic_id: str, end: int) -> None:
        """Check that a truncation to the log end offset `end` removes no committed record from an
        in-sync or eligible (KIP-966) replica."""
        life = (topic_id, partition[1])
        committed = self._committed.get(life, 0)
        if end < committed and self._is_relied_on(broker, partition):
            text = (
                f"broker {broker} is in sync and truncates its log below the committed offset"
                f" {committed}"
            )
            self._tell(KEPT, partition, end, text)

    # earlier observations

    def _take_losses(self) -> None:
        losses = self._record.history.losses
        for loss in losses[self._losses :]:
            topic, number = loss.partition
            self._lost.add(TopicPartition(topic, number))
            self._committed.pop((self._record.topic_ids.get(topic, ""), number), None)
        self._losses = len(losses)

    def _trust_again(self, running: Set[tuple[int, TopicPartition]]) -> None:
        """End the doubt about replicas whose disk may have lost data. Such a replica must have left
        both the ISR and the eligible replicas, and later joined one of them again. `running` has
        the replicas on running brokers.

        The replica must have been outside the ISR and the eligible replicas while its broker was
        running. Otherwise the leader may have added the replica because of fetch requests from
        before the broker stopped.
        """
        for (broker, partition), has_left in [*self._doubted.items()]:
            state = self._record.states.get(partition)
            if state is None:
                self._doubted[broker, partition] = True
            elif broker not in state.isr + state.eligible:
                self._doubted[broker, partition] = has_left or (broker, partition) in running
            elif has_left:
                del self._doubted[broker, partition]

    def _is_relied_on(self, broker: int, partition: TopicPartition) -> bool:
        """Return whether the replica must have all committed records. An in-sync or eligible
        (KIP-966) replica must have them, unless the replica's disk may have lost data."""
        state = self._record.states.get(partition)
        if state is None or (broker, partition) in self._doubted:
            return False
        return broker in state.isr or broker in state.eligible

    def _see_ends(self, life: _Life, found: Iterable[ReplicaNow]) -> None:
        ends = self._ends[life]
        for replica in found:
            if replica.log_end < ends.get(replica.broker, 0):
                self.shortened(replica.broker, replica.partition, replica.topic_id, replica.log_end)
            ends[replica.broker] = replica.log_end

    # leaders

    def _look_at_leader(self, life: _Life, leader: ReplicaNow, found: Sequence[ReplicaNow]) -> None:
        partition, mark = leader.partition, leader.high_watermark
        known = self._leaders.setdefault((life, leader.epoch), leader.broker)
        if known != leader.broker:
            text = f"brokers {known} and {leader.broker} lead in epoch {leader.epoch}"
            self._tell(ONE_LEADER, partition, -1, text)
        key = (life, leader.epoch, leader.process)
        before = self._marks.get(key)
        self._marks[key] = mark
        if before is not None and mark < before:
            text = (
                f"the high watermark of leader {leader.broker} fell from {before} to {mark} in"
                f" epoch {leader.epoch}"
            )
            self._tell(NEVER_FALLS, partition, mark, text)
        state = self._record.states.get(partition)
        if state is None or (leader.epoch < state.epoch and partition in self._lost):
            return  # the topic was deleted, or this old leader may not know of a loss
        if before is not None and mark > before:
            self._check_commit(life, leader, {replica.broker for replica in found})
        self._committed[life] = max(self._committed.get(life, 0), mark)

    def _check_log_start(self, life: _Life, leader: ReplicaNow) -> None:
        """Check that the leader has deleted no record at or above the highest high watermark of all
        leaders so far."""
        committed = self._committed.get(life, leader.log_start)
        if leader.log_start > committed and leader.partition not in self._lost:
            text = (
                f"leader {leader.broker} has deleted this record, but the high watermark is"
                f" {committed}"
            )
            self._tell(UNCOMMITTED, leader.partition, leader.log_start - 1, text)

    def _check_electable(self, life: _Life, found: Iterable[ReplicaNow]) -> None:
        """Check that each replica that may be elected has all records that any leader committed."""
        committed = self._committed.get(life, 0)
        for replica in found:
            if replica.log_end < committed and self._is_relied_on(
                replica.broker, replica.partition
            ):
                text = (
                    "records below this offset are committed, but the log of the in-sync or"
                    f" eligible broker {replica.broker} ends at offset {replica.log_end}"
                )
                self._tell(COVERED, replica.partition, committed, text)

    def _check_commit(self, life: _Life, leader: ReplicaNow, present: Set[int]) -> None:
        """Check that enough replicas (min.insync.replicas) have all records below the leader's high
        watermark. Replicas that are closed, deleted or doubted (their disks may have lost data)
        count as having the records."""
        partition, mark = leader.partition, leader.high_watermark
        ends = self._ends[life]
        holders = {broker for broker, end in ends.items() if end >= mark or broker not in present}
        holders |= {broker for broker, doubted in self._doubted if doubted == partition}
        required = self._record.required(partition)
        if len(holders) < required:
            text = (
                f"leader {leader.broker} has committed all records below this offset, but only"
                f" brokers {sorted(holders)} have them, expected {required} brokers"
            )
            self._tell(HELD, partition, mark, text)

    def _tell(self, rule: str, partition: TopicPartition, offset: int, text: str) -> None:
        if (rule, partition) not in self._told:
            self._told.add((rule, partition))
            self.violations.append(Violation(rule, partition, offset, text))
