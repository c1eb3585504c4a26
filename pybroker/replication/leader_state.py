"""The leader's view of its followers in one leader epoch, and the ISR changes that the leader
proposes. No I/O: `IsrChanges` writes a change and reports the result.

While a change is pending, the high watermark waits for the members of both the old and the new ISR.
At most one change is pending.
"""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from pybroker.model import NO_OFFSET, PartitionFacts, PartitionState, TopicPartition, isr_changed
from pybroker.replication.isr import committed_end, maximal_isr, may_commit, may_join

NO_INCARNATION: Final = -1
NOBODY: Final = -1
REVIEW_SHARE: Final = 1 / 3
"""The time between two reviews of the ISR, as a share of replica.lag.time.max.ms (Kafka: 1/2)."""
LOOK_SHARE: Final = 1 / 2
"""A leader checks the state node when it has had no proof of its leadership for this share of
replica.lag.time.max.ms. LOOK_SHARE + REVIEW_SHARE < 1 leaves time for ZooKeeper's answer."""


class FollowerFetch(NamedTuple):
    """The state of a follower, as its fetch request reports it. The leader has already checked the
    request's leader epoch, so the logs of leader and follower are equal below `fetch_offset`."""

    replica_id: int
    fetch_offset: int
    """The follower's log end offset."""
    log_start_offset: int
    incarnation: int = NO_INCARNATION
    """The incarnation of the follower's broker (KIP-903); -1 if the fetch does not contain it."""


@dataclass(slots=True, eq=False)
class SessionRequests:
    """The arrival times (monotonic seconds) of the last two requests in one fetch session of a
    follower. Compared by identity."""

    last_s: float
    last_but_one_s: float = -math.inf

    def arrived(self, now: float) -> None:
        self.last_but_one_s, self.last_s = self.last_s, now


@dataclass(slots=True)
class Follower:
    """The leader's view of one follower. Times are monotonic seconds. Invariant: caught_up_s <=
    fetched_s, once the follower has fetched.

    While the follower waits at the leader's log end offset, the requests of its fetch session omit
    this partition. Each request in `session` then counts as a fetch at this offset.
    """

    caught_up_s: float
    """The last time at which the follower had all records that the leader had at that time."""
    log_end: int = NO_OFFSET
    """The follower's log end offset at its last fetch; NO_OFFSET until it has fetched in this
    leader epoch."""
    log_start: int = NO_OFFSET
    incarnation: int = NO_INCARNATION
    fetched_s: float = -math.inf
    _followed_s: float = -math.inf
    leader_end_then: int = NO_OFFSET
    """The leader's log end offset at the follower's last fetch."""
    is_stuck: bool = False
    """Whether the follower's last two fetches had the same offset, although the leader had records
    from this offset on."""
    session: SessionRequests | None = None
    """The fetch session whose requests count as fetches of this partition; None if there is
    none."""

    @property
    def followed_s(self) -> float:
        """The arrival time of the follower's second-to-last fetch. The follower certainly still
        followed this leader at that time, because it sent one more fetch to this leader later."""
        # The arrival of the last fetch proves less: that fetch may have been under way for long.
        session = self.session
        if session is not None and session.last_but_one_s >= self.fetched_s:
            return session.last_but_one_s
        return self._followed_s

    def end_session(self, session: SessionRequests) -> None:
        """Stop counting requests of this fetch session as fetches of the partition."""
        if self.session is session:
            self._followed_s = self.followed_s
            self.fetched_s = max(self.fetched_s, session.last_s)
            self.caught_up_s = max(self.caught_up_s, session.last_s)
            self.session = None

    def fetched(self, fetch: FollowerFetch, leader_end: int, now: float) -> None:
        """Record a fetch that arrived at the time `now`. `leader_end` is the leader's log end
        offset."""
        if self.session is not None:
            self.end_session(self.session)
        if fetch.fetch_offset >= leader_end:
            self.caught_up_s = max(self.caught_up_s, now)
        elif fetch.fetch_offset >= self.leader_end_then != NO_OFFSET:
            self.caught_up_s = max(self.caught_up_s, self.fetched_s)
        self.is_stuck = fetch.fetch_offset == self.log_end < self.leader_end_then
        self.log_end = fetch.fetch_offset
        self.log_start = fetch.log_start_offset
        self.incarnation = fetch.incarnation
        self._followed_s, self.fetched_s = self.fetched_s, now
        self.leader_end_then = max(self.leader_end_then, leader_end)

    def is_in_sync(self, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Return whether the follower is at the leader's log end offset now, or was there within
        the last `lag_max_s` seconds."""
        return self.log_end == leader_end or now - self.caught_up_s <= lag_max_s


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A request to write `state` to the partition's state node in ZooKeeper, or only to check the
    node (`only_looks`). The request succeeds only if the topic still has the id `topic_id`, and the
    node still has the version `expected_version`.

    `joins` is the broker that the change adds to the ISR, or NOBODY. The broker must be registered
    with `incarnation`, a number that grows with every registration.
    """

    topic_partition: TopicPartition
    topic_id: uuid.UUID
    state: PartitionState
    expected_version: int
    joins: int = NOBODY
    incarnation: int = NO_INCARNATION
    only_looks: bool = False
    """Whether the change writes nothing, and only checks that the node still has
    `expected_version`."""


@dataclass(slots=True)
class LeaderState:
    """The state of a leader in one leader epoch. `facts` contain the ISR that is known to be stored
    in ZooKeeper. Invariant: the leading replica is in that ISR, and in the new ISR of each
    `IsrChange`."""

    facts: PartitionFacts
    broker_id: int
    epoch_start: int
    """The log end offset of this replica when it became the leader of this epoch."""
    followers: dict[int, Follower]
    _found_s: float
    """The last time at which the state node is known to have had the content in `facts`. At first
    this is the time of the controller's command."""
    _proposed_s: float = -math.inf
    """The time at which the pending change was proposed."""
    pending: IsrChange | None = None
    is_superseded: bool = False
    """Whether the state node has a later leader epoch. The leader then proposes no changes, keeps
    the pending one, and waits for the controller's next command."""
    maximal_isr: frozenset[int] = frozenset()
    """The replicas that are in the stored ISR, or in the new ISR of the pending change."""
    _awaited: frozenset[int] = frozenset()
    """The followers that have caught up and are about to join the ISR."""
    _counted: tuple[Follower, ...] = ()
    """The followers whose log ends limit the high watermark."""
    _refused: dict[int, int] = field(default_factory=dict)
    """Broker id -> an incarnation that the broker certainly no longer has."""
    _incarnations: dict[int, int] = field(default_factory=dict)
    """Broker id -> the incarnation in the broker's last fetch."""
    _doubted: set[int] = field(default_factory=set)
    """The in-sync followers that may have restarted. Such a follower may have left the stored ISR
    because its log was damaged, and this leader may not know that yet. The next write of the state
    node shows it, because the write succeeds only for the known version of the node."""

    @classmethod
    def begin(
        cls,
        facts: PartitionFacts,
        *,
        broker_id: int,
        epoch_start: int,
        now: float,
        previous: LeaderState | None = None,
    ) -> LeaderState:
        """Return the leader's state at the start of a leader epoch, at `now` (monotonic seconds).
        `previous` is the state in the previous epoch, None if this replica did not lead then."""
        isr = facts.state.isr
        followers = {
            replica: Follower(now if replica in isr else -math.inf)
            for replica in (*facts.replicas, *isr)
            if replica != broker_id
        }
        state = cls(facts, broker_id, epoch_start, followers, now)
        if previous is not None:
            state._incarnations = previous._proved_incarnations()
        state._recount()
        return state

    # queries

    @property
    def is_alone(self) -> bool:
        """Whether no follower's log end offset limits the high watermark."""
        return not self._counted

    @property
    def led_s(self) -> float:
        """The latest time (monotonic seconds) at which this replica was certainly the leader.
        Infinity if no other replica can be elected."""
        electable = self.maximal_isr.union(self.facts.state.eligible)
        followed = (each.followed_s for key, each in self.followers.items() if key in electable)
        return max(self._found_s, min(followed, default=math.inf))

    @property
    def is_followed(self) -> bool:
        """Whether each in-sync follower has fetched in this leader epoch."""
        return all(
            each.log_end != NO_OFFSET
            for key, each in self.followers.items()
            if key in self.maximal_isr
        )

    def is_settled(self, leader_end: int, now: float, lag_max_s: float) -> bool:
        """Return True only if `propose` would certainly return None: no ISR change and no check of
        the state node is due. False means that a change or a check may be due."""
        if self._awaited or self._doubted or self.facts.state.eligible:
            return False
        oldest_s = now
        for each in self.followers.values():
            if each.log_end != leader_end:
                return False
            oldest_s = min(oldest_s, each.followed_s)
        return now - max(self._found_s, oldest_s) <= lag_max_s * LOOK_SHARE

    @property
    def sessions(self) -> tuple[SessionRequests, ...] | None:
        """The fetch sessions of all followers; None unless the last two fetches of each follower
        were part of that follower's session."""
        found = []
        for each in self.followers.values():
            if each.session is None or each.session.last_but_one_s < each.fetched_s:
                return None
            found.append(each.session)
        return tuple(found)

    def committed_end(self, current: int, *, leader_end: int, required: int) -> int:
        """Return the new high watermark, or `current` if the high watermark cannot advance yet.
        `required` is the number of in-sync replicas that acks=all needs."""
        # Followers that are about to join the ISR count too: under load the high watermark would
        # otherwise stay ahead of their log ends, and they could not join.
        if not may_commit(self.facts.state, required):
            return current
        return committed_end(current, leader_end, [each.log_end for each in self._counted])

    # fetches and proposals

    def fetched(
        self, fetch: FollowerFetch, *, leader_end: int, now: float, lag_max_s: float
    ) -> None:
        """Record a follower's fetch that arrived at `now` (monotonic seconds). `leader_end` is the
        leader's log end offset."""
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
        """Return the proposed change that adds the follower `replica_id` to the ISR; None if the
        follower may not join now."""
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
        """Return a write or a check of the partition's state node; None if neither is due.

        A write removes lagging followers from the ISR. It also empties the list of eligible
        replicas if the new ISR has at least `required` replicas.

        A check (`only_looks`) compares the version of the state node. A check is due if more than
        half of `lag_max_s` has passed since this replica was last certainly the leader (`led_s`),
        or if the stored ISR may differ from the known ISR.
        """
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
        may_be_replaced = now - self.led_s > lag_max_s * LOOK_SHARE
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

    # outcomes of changes

    def is_pending(self, change: IsrChange) -> bool:
        return self.pending is change

    def stored(self, change: IsrChange, version: int) -> None:
        """Record that ZooKeeper has stored the change. `version` is the new version of the
        partition's state node."""
        self.adopt(change.state, version)
        self._found_s = self._proposed_s
        joined = self.followers.get(change.joins)
        if joined is not None:  # the new member has the lag time to reach the log end
            joined.caught_up_s = max(joined.caught_up_s, joined.fetched_s)

    def adopt(self, state: PartitionState, version: int) -> None:
        """Adopt the content and the version of the partition's state node in ZooKeeper. `state` has
        the same leader epoch as before. No change is pending afterwards."""
        assert self.pending is None or version > self.pending.expected_version
        self.pending = None
        self.facts = replace(self.facts, state=state, partition_epoch=version)
        for replica in state.isr:
            if replica != self.broker_id and replica not in self.followers:
                self.followers[replica] = Follower(-math.inf)
        self._awaited -= set(state.isr)
        self._recount()

    def told(self, state: PartitionState, version: int) -> None:
        """Adopt a partition state that the controller sent. `version` is the version of the
        partition's state node in ZooKeeper."""
        if self.pending is not None:  # the controller may have read the node before that change
            self._doubted.update(self._incarnations)
        self.adopt(state, version)

    def refused(self, change: IsrChange) -> None:
        """Record that ZooKeeper can never apply the change: the broker that the change adds has
        registered again, or is not registered."""
        self.pending = None
        # The refusal proves nothing about the stored ISR: the next proposal is a check.
        self._doubted.update(self._incarnations)
        self._refused[change.joins] = change.incarnation
        self._awaited -= {change.joins}
        self._recount()

    def unchanged(self) -> None:
        """Record that the pending `IsrChange`, which writes nothing, has found the partition's
        state node in ZooKeeper unchanged."""
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
        """Return broker id -> incarnation (the broker's registration count in its last fetch), for
        the followers in the ISR. Return {} if the ISR in ZooKeeper may differ from the ISR that
        this leader knows."""
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
        pending = None if self.pending is None else self.pending.state.isr
        self.maximal_isr = maximal_isr(self.facts.state.isr, pending)
        members = self.maximal_isr | self._awaited
        self._counted = tuple(
            follower for replica, follower in self.followers.items() if replica in members
        )
