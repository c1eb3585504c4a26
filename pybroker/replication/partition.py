"""One replica of a partition on this broker. If a method makes records readable, its caller must
wake the waiting requests."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Container
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import TopicCounters
from pybroker.model import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TOPIC_ID,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader
from pybroker.records.validate import BatchRules
from pybroker.replication.append_rules import AppendRules
from pybroker.replication.authority import Authority
from pybroker.replication.isr import has_enough_replicas, required_replicas
from pybroker.replication.leader_state import FollowerFetch, IsrChange, LeaderState, SessionRequests
from pybroker.replication.watched import Watched
from pybroker.storage.log import Log
from pybroker.storage.log_config import NEVER
from pybroker.storage.log_parts import AppendResult
from pybroker.storage.producer_state import EXEMPT, Verification

_ANY_NUMBER: Final = 2**31


class Partition(Watched):
    """One replica of a partition on this broker. Owns the high watermark of its log.

    Invariant: log_start_offset <= high_watermark <= log_end_offset."""

    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        log: Log,
        broker_id: int,
        high_watermark: int,
        counters: TopicCounters | None = None,
    ) -> None:
        super().__init__()
        self.topic_partition = topic_partition
        self.log = log
        log.on_start_moved = self.changed
        self._counters = TopicCounters() if counters is None else counters
        self.broker_id = broker_id
        self._facts: PartitionFacts | None = None
        # The next four are derived from the facts, because every request needs them.
        self.granted = Authority.NOTHING
        """ALL if the controller's last command made this replica the leader; READ once the broker
        has learned that this replica does not lead any more (`superseded`); else NOTHING."""
        self.is_replicated = False
        """Whether this replica leads and the partition has other replicas."""
        self.leading_since = NO_EPOCH
        """The leader epoch in which this replica began to lead, without interruption since."""
        self._leader: LeaderState | None = None
        self._isr_size = 0
        self._alone_up_to = 0
        """While min.insync.replicas is at most this number, followers do not limit the high
        watermark."""
        self._uncommitted_bytes = 0
        """The approximate number of bytes between the high watermark and the log end."""
        self._rules = AppendRules(topic_partition)
        self._high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)
        log.producers.decide(self._high_watermark)
        self.on_decided: Callable[[], None] = lambda: None
        """Called when the leader's high watermark has passed the marker of a transaction."""
        log.changes.committed(topic_partition)

    def replace_log(self, log: Log) -> None:
        """Use `log` from now on. It is a copy of the present log in another log directory."""
        self.log = log
        log.on_start_moved = self.changed
        self.changed()

    # queries

    @property
    def is_leader(self) -> bool:
        """Whether the controller's last command made this replica the leader."""
        return bool(self.granted)

    @property
    def followers(self) -> LeaderState | None:
        """The leader's view of its followers; None if this replica does not lead."""
        return self._leader

    @property
    def leader_epoch(self) -> int:
        return NO_EPOCH if self._facts is None else self._facts.state.leader_epoch

    @property
    def state(self) -> PartitionState | None:
        """The partition state in the controller's last command, with later ISR changes; None before
        the first command."""
        return None if self._facts is None else self._facts.state

    @property
    def topic_id(self) -> uuid.UUID | None:
        return None if self._facts is None else self._facts.topic_id

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def leader_end(self) -> int:
        """The end of the leader's durable records. It limits the high watermark."""
        return self.log.durable_end

    @property
    def epoch_start(self) -> int:
        """The log end offset of this leader at the start of its leader epoch (KIP-207); NO_OFFSET
        for a follower."""
        return NO_OFFSET if self._leader is None else self._leader.epoch_start

    def low_watermark(self, live: Container[int]) -> int:
        """Return the smallest log start offset among this replica and its followers on `live`
        brokers. Return NO_OFFSET if one of these followers has not fetched in this leader epoch."""
        followers = {} if self._leader is None else self._leader.followers
        starts = [each.log_start for broker, each in followers.items() if broker in live]
        return min([self.log.log_start_offset, *starts])

    def last_stable_offset(self) -> int:
        """Return the last stable offset, but at least the log start offset."""
        stable = self.log.producers.last_stable_offset(self._high_watermark)
        return max(stable, self.log.log_start_offset)

    def readable_end(self, read_committed: bool) -> int:
        """Return the offset below which a consumer may read: the last stable offset if
        `read_committed`, else the high watermark."""
        return self.last_stable_offset() if read_committed else self._high_watermark

    def batch_rules(self, api_version: int) -> BatchRules:
        """Return the rules for a batch in a Produce request of version `api_version`."""
        return self._rules.of(self.log.config, api_version)

    # the controller's commands

    def check_epoch(self, facts: PartitionFacts) -> bool:
        """Return whether `facts` require a new role: True for a higher leader epoch or another
        topic id, False for the current leader epoch and leader. Otherwise raises BrokerError
        STALE_CONTROLLER_EPOCH."""
        if facts.state.leader_epoch > self.leader_epoch:
            return True
        if self._facts is not None and facts.topic_id not in (NO_TOPIC_ID, self._facts.topic_id):
            return True
        known, told = self.state, facts.state
        if known and (told.leader_epoch, told.leader) == (known.leader_epoch, known.leader):
            return False  # the ISR may differ: this leader may have changed it since
        raise BrokerError(
            ErrorCode.STALE_CONTROLLER_EPOCH,
            f"{self.topic_partition}: LeaderAndIsr refused: it names leader {told.leader} in leader"
            f" epoch {told.leader_epoch}, but this broker knows leader {known and known.leader} in"
            f" leader epoch {self.leader_epoch}",
        )

    def told_again(self, facts: PartitionFacts) -> int:
        """Adopt the state in `facts` if its partition epoch is higher than the known partition
        epoch. The leader epoch must not have changed. Return the approximate number of bytes that
        became readable."""
        assert self._facts is not None
        if facts.partition_epoch <= self._facts.partition_epoch:
            return 0
        if self._leader is not None:
            self._leader.told(facts.state, facts.partition_epoch)
            return self._settled()
        self._facts = facts
        self.changed()
        return 0

    def lead(self, facts: PartitionFacts, now: float) -> None:
        """Become the leader at `now` (monotonic s). `check_epoch` must have returned True for
        `facts`. The first append writes the new leader epoch to disk, unless the caller does so
        earlier."""
        assert facts.state.leader == self.broker_id
        epoch_start = self.log.log_end_offset
        self.log.begin_epoch(facts.state.leader_epoch, epoch_start)
        if not self.is_leader:
            self.leading_since = facts.state.leader_epoch
        self.granted = Authority.ALL
        self._leader = LeaderState.begin(
            facts, broker_id=self.broker_id, epoch_start=epoch_start, now=now, previous=self._leader
        )
        # An estimate that is too high wakes requests too early, which is harmless.
        self._uncommitted_bytes = self.log.size_bytes
        self._settled()

    def follow(self, facts: PartitionFacts) -> None:
        """Become a follower: the command's `facts` name another leader, or no leader."""
        assert facts.state.leader != self.broker_id
        self._facts = facts
        self._leader = None
        self.granted = Authority.NOTHING
        self.is_replicated = False
        self.changed()

    # the in-sync replicas

    def propose_isr(self, now: float, lag_max_s: float) -> IsrChange | None:
        """Return the ISR change that is due; None if none is due, one is pending, or this replica
        does not lead."""
        if self._leader is None or not self.is_replicated:
            return None
        change = self._leader.propose(
            leader_end=self.log.log_end_offset,
            required=self._required_replicas(),
            now=now,
            lag_max_s=lag_max_s,
        )
        self._recount()
        return change

    def propose_join(self, replica_id: int) -> IsrChange | None:
        """Return the proposed change that adds the follower `replica_id` to the ISR; None if the
        follower may not join now."""
        if self._leader is None:
            return None
        change = self._leader.propose_join(
            replica_id,
            high_watermark=self._high_watermark,
            required=self._required_replicas(),
        )
        if change is not None:
            self._recount()
        return change

    def is_pending(self, change: IsrChange) -> bool:
        """Return whether this leader still waits for the result of the ISR change."""
        return self._leader is not None and self._leader.is_pending(change)

    def isr_stored(self, change: IsrChange, version: int) -> int:
        """Record that ZooKeeper has stored the pending ISR change. `version` is the new version of
        the partition's state node. Return the approximate number of bytes that became readable."""
        assert self._leader is not None
        self._leader.stored(change, version)
        return self._settled()

    def isr_adopted(self, state: PartitionState, version: int) -> int:
        """Adopt the state that another process wrote in this leader epoch, with the `version` of
        the state node. Return about how many bytes became readable."""
        assert self._leader is not None
        self._leader.adopt(state, version)
        return self._settled()

    def isr_refused(self, change: IsrChange) -> int:
        """Record that ZooKeeper can never accept the pending ISR change. The high watermark then no
        longer waits for the broker that the change adds. Return about how many bytes became
        readable."""
        assert self._leader is not None
        self._leader.refused(change)
        return self._settled()

    def isr_unchanged(self) -> None:
        """Record that the check of the partition's state node in ZooKeeper (`IsrChange.only_looks`)
        found the version that this leader expected."""
        assert self._leader is not None
        self._leader.unchanged()

    def superseded(self, *, is_replaced: bool) -> None:
        """Record that ZooKeeper has a later leader epoch. `is_replaced`: the leader of that
        epoch is another broker. This replica proposes no ISR changes until the controller's next
        command."""
        assert self._leader is not None
        self._leader.is_superseded = True
        self.granted = Authority.READ if is_replaced else Authority.ALL
        self.changed()

    def settle(self) -> int:
        """Advance the high watermark as far as allowed. Return the approximate number of bytes that
        became readable; 0 if the high watermark did not advance."""
        self._recount()
        if self._leader is None:
            return 0
        before, end = self._high_watermark, self.leader_end
        advanced = self._leader.committed_end(
            before, leader_end=end, required=self._required_replicas()
        )
        assert before <= advanced <= max(end, before)
        if advanced == before:
            return 0
        self._move_high_watermark(advanced)
        self.changed()
        # Exact if the high watermark reaches the end, else in proportion to the offsets.
        readable_bytes = self._uncommitted_bytes * (advanced - before) // (end - before)
        self._uncommitted_bytes -= readable_bytes
        return max(readable_bytes, 1)

    def _settled(self) -> int:
        """Copy the partition state of `_leader` to this partition's fields, then advance the high
        watermark (`settle`). Return the approximate number of bytes that became readable."""
        assert self._leader is not None
        self._facts = facts = self._leader.facts
        self._isr_size = len(facts.state.isr)
        self.is_replicated = len(self._leader.followers) > 0
        readable_bytes = self.settle()
        self.log.changes.touch(self.topic_partition)
        self.changed()
        return readable_bytes

    def _recount(self) -> None:
        leader = self._leader
        if leader is None or not leader.is_alone or leader.facts.state.eligible:
            self._alone_up_to = 0
        else:
            self._alone_up_to = 1 if self.is_replicated else _ANY_NUMBER

    def _required_replicas(self) -> int:
        assert self._facts is not None
        return required_replicas(self.log.config.min_insync_replicas, len(self._facts.replicas))

    # requests of clients and followers

    def require_epoch(self, current_leader_epoch: int) -> None:
        """Check the leader epoch in a request (KIP-320); -1 is always accepted. Raises BrokerError:
        FENCED_LEADER_EPOCH for an epoch below this broker's, UNKNOWN_LEADER_EPOCH for one above."""
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.leader_epoch:
            older = current_leader_epoch < self.leader_epoch
            raise BrokerError(
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self.topic_partition}: the request has leader epoch {current_leader_epoch},"
                f" but this broker has leader epoch {self.leader_epoch}: refresh the metadata",
            )

    def certainly_leads(self, now: float, lag_max_s: float) -> bool:
        """Return whether this replica certainly led at some moment in the last `lag_max_s` seconds.
        The proof is a fetch by each other electable replica, or ZooKeeper's confirmation. Always
        True for a leader without another electable replica. `now`: monotonic s."""
        return self._leader is not None and now - self._leader.led_s <= lag_max_s

    @property
    def is_followed(self) -> bool:
        """Whether this replica leads and each in-sync replica has fetched in this leader epoch."""
        return self._leader is not None and self._leader.is_followed

    @property
    def led_version(self) -> int | None:
        """The version of the state node in ZooKeeper that this leader knows. None if this replica
        does not lead. Also None if no other replica can be elected: then no other leader is
        possible, so no check of ZooKeeper is needed."""
        has_heirs = self._leader is not None and not math.isinf(self._leader.led_s)
        return self._leader.facts.partition_epoch if self._leader and has_heirs else None

    def append(
        self,
        data: memoryview,
        header: BatchHeader,
        *,
        acks: int,
        now_ms: int,
        guard: Verification | None = EXEMPT,
    ) -> AppendResult:
        """Append one validated batch as the leader, and advance the high watermark if allowed.
        `guard`: see `Verification`. Raises BrokerError NOT_ENOUGH_REPLICAS if acks is -1 and the
        ISR is too small. Raises the errors of `Log.append`."""
        assert self._leader is not None
        assert self._facts is not None
        config = self.log.config
        may_lack = acks == -1 and self._isr_size < config.min_insync_replicas
        if may_lack and not self.has_enough_replicas():
            raise BrokerError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self._facts.state.isr)} in-sync replicas,"
                f" but acks=all needs {self.log.config.min_insync_replicas} (min.insync.replicas)",
            )
        result = self.log.append(
            data,
            header,
            leader_epoch=self._facts.state.leader_epoch,
            now_ms=now_ms,
            guard=guard,
        )
        counters = self._counters
        counters.produce_requests += 1
        counters.messages_in += header.record_count
        counters.bytes_in += len(data)
        if self._alone_up_to >= config.min_insync_replicas and config.flush_messages == NEVER:
            self._move_high_watermark(max(self._high_watermark, result.last_offset + 1))
        else:
            self._uncommitted_bytes += len(data)
            # `settle` is called only if this batch is durable. Otherwise it could advance the high
            # watermark after the sync of an earlier batch, and `log_synced` would wake no request.
            if self._alone_up_to and self.log.durable_end > result.last_offset:
                self.settle()
        if self._watchers:
            self.changed()
        return result

    def follower_fetched(self, fetch: FollowerFetch, now: float, lag_max_s: float) -> int:
        """Record a follower's fetch at `now` (monotonic s). Return about how many bytes became
        readable. Raises BrokerError UNKNOWN_LEADER_EPOCH if the follower is no replica."""
        leader = self._leader
        assert leader is not None
        if fetch.replica_id not in leader.followers:
            raise BrokerError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {fetch.replica_id} has no replica of {self.topic_partition}",
            )
        leader_end = self.log.log_end_offset
        if fetch.fetch_offset > leader_end:
            return 0  # a fetch beyond the log end reports no progress
        leader.fetched(fetch, leader_end=leader_end, now=now, lag_max_s=lag_max_s)
        self.log.changes.touch(self.topic_partition)
        return self.settle()

    def session_repeats(self, replica_id: int, session: SessionRequests) -> None:
        """From now until `session_ends`, count each request of the follower's fetch session
        (KIP-227) as a fetch of this partition at the log end offset."""
        if self._leader is not None:
            self._leader.followers[replica_id].session = session

    def session_ends(self, replica_id: int, session: SessionRequests) -> None:
        if self._leader is not None and replica_id in self._leader.followers:
            self._leader.followers[replica_id].end_session(session)
            self.log.changes.touch(self.topic_partition)

    def is_stuck(self, replica_id: int) -> bool:
        """Return whether this follower repeats its fetch offset although the leader has more
        records."""
        follower = None if self._leader is None else self._leader.followers.get(replica_id)
        return follower is not None and follower.is_stuck

    def is_in_isr(self, replica_id: int) -> bool:
        return self._facts is not None and replica_id in self._facts.state.isr

    # changes of the log

    def append_replicated(
        self, data: Buffer, *, leader_high_watermark: int, leader_log_start: int, now_ms: int
    ) -> None:
        """Append the leader's records to the follower's log, and adopt the leader's high watermark
        and log start offset. Raises the errors of `Log.append_replicated`."""
        assert self._leader is None
        if data:
            self.log.append_replicated(data, now_ms=now_ms, epoch_max=self.leader_epoch)
            self.changed()
        committed = min(leader_high_watermark, self.log.log_end_offset)
        if committed > self._high_watermark:
            self._move_high_watermark(committed)
        if leader_log_start > self.log.log_start_offset:
            self.log.advance_log_start(min(leader_log_start, self.log.log_end_offset))

    def truncate_to(self, offset: int) -> None:
        """Truncate the follower's log to the end offset `offset`. Waits for the disk."""
        assert self._leader is None
        # First, so that no concurrent checkpoint stores the old high watermark.
        self._move_high_watermark(min(self._high_watermark, offset))
        self.log.truncate_to(offset)
        self._move_high_watermark(min(self._high_watermark, self.log.log_end_offset))

    def start_over(self, offset: int) -> None:
        """Discard the whole log of this follower replica. The next record gets `offset`. Waits for
        the disk."""
        assert self._leader is None
        self._move_high_watermark(min(self._high_watermark, offset))
        self.log.truncate_fully_and_start_at(offset)
        self._move_high_watermark(offset)

    def _move_high_watermark(self, offset: int) -> None:
        self._high_watermark = offset
        self.log.changes.committed(self.topic_partition)  # after the change
        if self.log.producers.undecided and self.log.producers.decide(offset) and self._leader:
            self.changed()
            self.on_decided()

    def has_enough_replicas(self) -> bool:
        """Return whether the ISR is large enough for appends with acks=all."""
        return self._isr_size >= self._required_replicas()

    def may_have_enough_replicas(self) -> bool:
        """Return whether the ISR may be large enough for acks=all. The members of a pending ISR
        change count too."""
        assert self._leader is not None
        return has_enough_replicas(
            len(self._leader.maximal_isr),
            self.log.config.min_insync_replicas,
            len(self._leader.facts.replicas),
        )
