"""What a leader knows of its followers in one leader epoch, and what follows for the ISR.

Plain code. A change of the ISR goes through three steps: it is proposed (and counts as if it were
stored, wherever that is the safe reading), somebody writes it to the state node on the condition of
its version, and the outcome comes back. At most one change is under way. Only a write that was
applied, or one that can no longer be, ends it: a lost reply proves nothing.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field, replace
from typing import Final

from pybroker.model import NO_OFFSET, PartitionFacts, PartitionState, TopicPartition, isr_changed
from pybroker.replication.isr import committed_end, maximal_isr, may_commit, may_join

NO_INCARNATION: Final = -1
NOBODY: Final = -1
_LOOK_SHARE: Final = 0.4
"""Of the lag time: who has not been shown to lead for so long looks. That is reviewed every half of
the lag time, and the answer has to be there before the whole is over."""


@dataclass(frozen=True, slots=True)
class FollowerFetch:
    """What a follower's fetch says about the follower; its leader epoch has been checked, and its
    log does not diverge below `fetch_offset`."""

    replica_id: int
    fetch_offset: int
    """Its log end offset."""
    log_start_offset: int
    incarnation: int = NO_INCARNATION
    """How often its id has registered (KIP-903), -1 if it did not say."""


@dataclass(slots=True)
class Follower:
    """A follower as its fetches show it. Times are monotonic seconds.

    Invariant: caught_up_s <= fetched_s, once it has fetched.
    """

    caught_up_s: float
    """When it last had everything that the leader had at that time."""
    log_end: int = NO_OFFSET
    """NO_OFFSET until it has fetched in this epoch."""
    log_start: int = NO_OFFSET
    incarnation: int = NO_INCARNATION
    fetched_s: float = -math.inf
    followed_s: float = -math.inf
    """When it certainly followed in this epoch: a fetch is sent after the one before was answered,
    but may have been under way for long."""
    leader_end_then: int = NO_OFFSET
    """Where the leader's log ended at the last fetch."""
    is_stuck: bool = False
    """It asks once more for what was there when it asked before."""

    def fetched(self, fetch: FollowerFetch, leader_end: int, now: float) -> None:
        """A fetch that begins where the leader ended at the fetch before shows that the follower
        had everything at that time, however quickly the leader goes on."""
        if fetch.fetch_offset >= leader_end:
            self.caught_up_s = max(self.caught_up_s, now)
        elif fetch.fetch_offset >= self.leader_end_then != NO_OFFSET:
            self.caught_up_s = max(self.caught_up_s, self.fetched_s)
        self.is_stuck = fetch.fetch_offset == self.log_end < self.leader_end_then
        self.log_end = fetch.fetch_offset
        self.log_start = fetch.log_start_offset
        self.incarnation = fetch.incarnation
        self.followed_s, self.fetched_s = self.fetched_s, now
        self.leader_end_then = max(self.leader_end_then, leader_end)

    def is_in_sync(self, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Who has everything is, however long the last fetch is ago: nothing has come since."""
        return self.log_end == leader_end or now - self.caught_up_s <= lag_max_s


@dataclass(frozen=True, slots=True)
class IsrChange:
    """Store `state` in the partition's state node, on the condition that the topic `topic_id` still
    exists, that the node still has `expected_version`, and that the broker `joins` (NOBODY: only
    leavers) still has `incarnation`.
    """

    topic_partition: TopicPartition
    topic_id: uuid.UUID
    state: PartitionState
    expected_version: int
    joins: int = NOBODY
    incarnation: int = NO_INCARNATION
    only_looks: bool = False
    """Nothing is to be stored, only whether the node still has that version is to be found out."""


@dataclass(slots=True)
class LeaderState:
    """One leadership epoch. `facts` hold the ISR that is known to be stored.

    Invariant: the replica that leads is in `facts.state.isr`, and in the ISR of every change.
    """

    facts: PartitionFacts
    broker_id: int
    epoch_start: int
    """Where this leader's log ended when it became the leader of this epoch."""
    followers: dict[int, Follower]
    _found_s: float
    """When the state node was as it is known here. At first, when we were told of it: if another
    was elected before that, the controller says so right behind it."""
    _proposed_s: float = -math.inf
    """When what is pending was proposed."""
    pending: IsrChange | None = None
    is_superseded: bool = False
    """Somebody stored a later leader epoch: nothing is proposed any more, what is pending stays,
    and the controller will say the rest."""
    _awaited: frozenset[int] = frozenset()
    """Who is about to join."""
    _counted: tuple[Follower, ...] = ()
    """The followers whose log ends count for the high watermark."""
    _refused: dict[int, int] = field(default_factory=dict)
    """Incarnations that have proved to be gone, by broker."""
    _incarnations: dict[int, int] = field(default_factory=dict)
    """By broker, the last that a fetch told."""
    _doubted: set[int] = field(default_factory=set)
    """In-sync followers that were started anew since they were heard of, or of which nobody knows
    it: they may have left the ISR by themselves, for a log that is not what it was, and the
    controller need not have told us. Any write ends that, since the version is its condition."""

    @classmethod
    def begin(
        cls,
        facts: PartitionFacts,
        *,
        broker_id: int,
        epoch_start: int,
        now: float,
        before: LeaderState | None = None,
    ) -> LeaderState:
        """Who is in sync has the whole lag time from now to be heard of. `before` is the epoch
        that this replica has led until now."""
        isr = facts.state.isr
        followers = {
            replica: Follower(now if replica in isr else -math.inf)
            for replica in (*facts.replicas, *isr)
            if replica != broker_id
        }
        state = cls(facts, broker_id, epoch_start, followers, now)
        if before is not None:
            state._incarnations = before._proved_incarnations()
        state._recount()
        return state

    # what is known

    @property
    def maximal_isr(self) -> frozenset[int]:
        pending = None if self.pending is None else self.pending.state.isr
        return maximal_isr(self.facts.state.isr, pending)

    @property
    def is_alone(self) -> bool:
        """Whether no other replica's log counts for the high watermark."""
        return not self._counted

    @property
    def led_s(self) -> float:
        """When nobody else led certainly: each who may be elected followed, or the state node was
        found to be as it is known. Who leads after that gives this replica, in sync for all that
        is stored, the lag time from then on to be heard of, and commits nothing before."""
        electable = self.maximal_isr.union(self.facts.state.eligible)
        followed = (each.followed_s for key, each in self.followers.items() if key in electable)
        return max(self._found_s, min(followed, default=math.inf))

    @property
    def is_followed(self) -> bool:
        """Whether each in-sync replica has fetched in this epoch, and so does not lead."""
        return all(
            each.log_end != NO_OFFSET
            for key, each in self.followers.items()
            if key in self.maximal_isr
        )

    def committed_end(self, current: int, *, leader_end: int, required: int) -> int:
        """The high watermark that follows. Besides the in-sync replicas it waits for those that
        are about to be: under load they would never reach it otherwise."""
        if not may_commit(self.facts.state, required):
            return current
        return committed_end(current, leader_end, [each.log_end for each in self._counted])

    # what followers do

    def fetched(
        self, fetch: FollowerFetch, *, leader_end: int, now: float, lag_max_s: float
    ) -> None:
        """Note a fetch of a replica."""
        follower = self.followers[fetch.replica_id]
        follower.fetched(fetch, leader_end, now)
        if self._is_anew(fetch) and fetch.replica_id in self.maximal_isr:
            self._doubted.add(fetch.replica_id)
        if fetch.replica_id not in self.facts.state.isr:
            catching_up = follower.is_in_sync(leader_end, now, lag_max_s)
            if catching_up and self._may_be_proposed(fetch.replica_id):
                self._await(self._awaited | {fetch.replica_id})

    def propose_join(
        self, replica_id: int, *, high_watermark: int, required: int
    ) -> IsrChange | None:
        """The change that brings a follower into the ISR, if it may come in now."""
        follower = self.followers[replica_id]
        if (
            self.pending is not None
            or self.is_superseded
            or replica_id in self.facts.state.isr
            or not self._may_be_proposed(replica_id)
            or not may_join(
                follower.log_end, high_watermark=high_watermark, epoch_start=self.epoch_start
            )
        ):
            return None
        isr = (*self.facts.state.isr, replica_id)
        return self._propose(isr, required, follower.fetched_s, replica_id, follower.incarnation)

    def propose(
        self, *, leader_end: int, required: int, now: float, lag_max_s: float
    ) -> IsrChange | None:
        """The change that takes out who has not caught up for `lag_max_s`, or that ends the
        eligibility of others when the ISR is large enough without them; or a look whether what is
        stored is what it was: somebody in sync may have left, or lead."""
        self._await(
            frozenset(
                replica
                for replica in self._awaited
                if self.followers[replica].is_in_sync(leader_end, now, lag_max_s)
            )
        )
        if self.pending is not None or self.is_superseded:
            return None
        state = self.facts.state
        isr = tuple(
            replica
            for replica in state.isr
            if replica == self.broker_id
            or self.followers[replica].is_in_sync(leader_end, now, lag_max_s)
        )
        if isr != state.isr or (state.eligible and len(isr) >= required):
            return self._propose(isr, required, now)
        may_be_replaced = now - self.led_s > lag_max_s * _LOOK_SHARE
        if may_be_replaced or not self._doubted.isdisjoint(state.isr):
            self._doubted.clear()
            self._proposed_s = now
            facts = self.facts
            self.pending = IsrChange(
                facts.topic_partition,
                facts.topic_id,
                state,
                facts.partition_epoch,
                only_looks=True,
            )
            return self.pending
        return None

    # what becomes of changes

    def is_pending(self, change: IsrChange) -> bool:
        return self.pending is change

    def stored(self, change: IsrChange, version: int) -> None:
        """The change is in the state node, which has this version now."""
        self.adopt(change.state, version)
        self._found_s = self._proposed_s
        joined = self.followers.get(change.joins)
        if joined is not None:  # it has the lag time to reach the end
            joined.caught_up_s = max(joined.caught_up_s, joined.fetched_s)

    def adopt(self, state: PartitionState, version: int) -> None:
        """This is stored, in the same leader epoch: what was pending is part of it, or can no
        longer be applied."""
        assert self.pending is None or version > self.pending.expected_version
        self.pending = None
        self.facts = replace(self.facts, state=state, partition_epoch=version)
        for replica in state.isr:
            if replica != self.broker_id and replica not in self.followers:
                self.followers[replica] = Follower(-math.inf)
        self._awaited -= set(state.isr)
        self._recount()

    def told(self, state: PartitionState, version: int) -> None:
        """As `adopt`; but the controller may have read that before what a change under way was to
        find out."""
        if self.pending is not None:
            self._doubted.update(self._incarnations)
        self.adopt(state, version)

    def refused(self, change: IsrChange) -> None:
        """The change can never be applied: the broker that was to join has registered anew, and
        only its next fetch may speak for it. Of the others this proves nothing."""
        self.pending = None
        self._doubted.update(self._incarnations)
        self._refused[change.joins] = change.incarnation
        self._awaited -= {change.joins}
        self._recount()

    def unchanged(self) -> None:
        """What is stored is what is known."""
        self.pending = None
        self._found_s = self._proposed_s

    # private

    def _is_anew(self, fetch: FollowerFetch) -> bool:
        if fetch.incarnation == NO_INCARNATION:
            return False
        before = self._incarnations.get(fetch.replica_id)
        self._incarnations[fetch.replica_id] = fetch.incarnation
        return before != fetch.incarnation

    def _proved_incarnations(self) -> dict[int, int]:
        """Of those in sync, if what is stored has been found right since they were heard of: what a
        later epoch stored about them was written after they had registered."""
        isr = self.facts.state.isr
        if self.pending is not None or self.is_superseded or not self._doubted.isdisjoint(isr):
            return {}
        return {each: number for each, number in self._incarnations.items() if each in isr}

    def _may_be_proposed(self, replica_id: int) -> bool:
        incarnation = self.followers[replica_id].incarnation
        return incarnation != NO_INCARNATION and self._refused.get(replica_id) != incarnation

    def _propose(
        self,
        isr: tuple[int, ...],
        required: int,
        now: float,
        joins: int = NOBODY,
        incarnation: int = NO_INCARNATION,
    ) -> IsrChange:
        self._doubted.clear()
        self._proposed_s = now
        facts = self.facts
        state = isr_changed(facts.state, isr, required)
        self.pending = IsrChange(
            facts.topic_partition,
            facts.topic_id,
            state,
            facts.partition_epoch,
            joins,
            incarnation,
        )
        self._recount()
        return self.pending

    def _await(self, awaited: frozenset[int]) -> None:
        if awaited != self._awaited:
            self._awaited = awaited
            self._recount()

    def _recount(self) -> None:
        members = self.maximal_isr | self._awaited
        self._counted = tuple(
            follower for replica, follower in self.followers.items() if replica in members
        )
