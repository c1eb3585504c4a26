"""Fetch sessions (KIP-227): a client that fetches the same partitions repeatedly sends only its
changes, and receives only partitions with news. This module does no I/O; times are seconds of a
monotonic clock.

    full request, epoch 0        -> a new session, if there is room; its id is in the answer
    incremental, epoch 1, 2, ... -> the changes are applied, then the pending partitions are read
    full request, epoch 0 or -1  -> the session that it names ends

A partition of a session is pending or watched. A watched partition has no records and no news for
the client. Its next change makes it pending, and so does a request that names it. A request reads
the pending partitions only, so its work is proportional to the partitions that changed.

Eviction is as in Kafka. A session may be evicted if it was not used for two minutes, or if it is
two minutes old and smaller than the new one. A follower's new session may evict any consumer's
session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import FetchSessionCounters
from pybroker.model import NO_EPOCH, NO_OFFSET, TOPIC_NAME_LENGTH_MAX, TopicPartition
from pybroker.ports import Rng
from pybroker.replication.authority import Authority
from pybroker.replication.leader_state import SessionRequests
from pybroker.replication.partition import Partition
from pybroker.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic, PartitionData

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
CONSUMER: Final = -1
PARTITIONS_MAX: Final = 200_000
"""The maximal number of partitions in one session. A larger client gets no session: its full
fetches need no memory here."""
CONSUMER_PARTITIONS_MAX: Final = 500_000
"""The maximal number of partitions in all consumers' sessions together: some 200 MB. Kafka has no
such limit."""
_MIN_LIFE_S: Final = 120.0
_SEARCH_AGAIN_S: Final = 1.0
"""How long (s) the cache does not search again after it found no session to evict."""
_ITEMS_PER_STEP: Final = 500
_INT_MAX: Final = (1 << 31) - 1


class CachedPartition:
    """A partition of a session: the request for it, and the values last sent to the client."""

    __slots__ = (
        "follows",
        "high_watermark",
        "key",
        "log_start_offset",
        "session",
        "verified_epoch",
        "wanted",
        "watched",
    )

    def __init__(self, key: TopicPartition, wanted: FetchPartition, session: FetchSession) -> None:
        self.key = key
        self.session = session
        self.follows = session.replica_id != CONSUMER
        """Whether the client is a follower. A follower may skip an answer, so it gets the values
        again."""
        self.wanted = wanted
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.verified_epoch = NO_EPOCH
        """The leader epoch in which `wanted` was found not to diverge. It cannot diverge later in
        the same epoch."""
        self.watched: Partition | None = None
        """The replica whose next change makes this partition pending. None while it is pending."""

    def watch(self, partition: Partition) -> None:
        """Do not read the partition again before its next change. It must have no records and no
        news for the client, and the leader must have recorded a follower's fetch of it."""
        session = self.session
        if session.is_open and session.partitions.get(self.key) is self:
            partition.watch(self)
            self.watched = partition
            session.pending.pop(self.key, None)
            if self.follows:
                partition.session_repeats(session.replica_id, session.requests)

    def unwatch(self) -> None:
        if self.watched is not None:
            self.watched.unwatch(self)
            self._end_watch(self.watched)

    def partition_changed(self) -> None:
        if self.watched is not None:
            self._end_watch(self.watched)
            self.session.look_at(self)

    def _end_watch(self, partition: Partition) -> None:
        self.watched = None
        if self.follows:
            partition.session_ends(self.session.replica_id, self.session.requests)

    def ask(self, wanted: FetchPartition) -> None:
        if self.follows and wanted.current_leader_epoch != self.wanted.current_leader_epoch:
            self.high_watermark = self.log_start_offset = NO_OFFSET
        self.wanted = wanted
        self.verified_epoch = NO_EPOCH
        self.unwatch()

    def is_news(self, answer: PartitionData) -> bool:
        """Whether the answer has anything that the client does not have yet."""
        return bool(
            answer.records
            or answer.error_code
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.diverging_epoch is not None
        )

    def record_sent(self, answer: PartitionData) -> None:
        """Record that the answer is sent. After an error, or if a follower has to truncate first,
        the next answer counts as news in any case."""
        if answer.error_code or (self.follows and answer.diverging_epoch is not None):
            self.high_watermark = self.log_start_offset = NO_OFFSET
            return
        self.high_watermark = answer.high_watermark
        self.log_start_offset = answer.log_start_offset


class FetchSession:
    """One client's partitions. Those to read next are pending; the others are watched."""

    __slots__ = (
        "created_s",
        "epoch",
        "id",
        "is_open",
        "on_pending",
        "partitions",
        "pending",
        "replica_id",
        "requests",
        "size",
        "terms",
        "used_s",
    )

    def __init__(self, session_id: int, replica_id: int, size: int, now_s: float) -> None:
        self.id = session_id
        self.replica_id = replica_id
        """The follower whose session it is, or CONSUMER."""
        self.epoch = 1
        """The epoch of the next request."""
        self.partitions: dict[TopicPartition, CachedPartition] = {}
        self.pending: dict[TopicPartition, CachedPartition] = {}
        """The partitions that the next request reads, in the order of reading. A partition that
        returned records moves to the end, so that every partition is read."""
        self.on_pending: Callable[[TopicPartition], None] | None = None
        """Called for each partition that becomes pending while a request waits."""
        self.is_open = True
        self.requests = SessionRequests(now_s)
        self.terms: tuple[object, ...] = ()
        """The arguments of the last `read_under`."""
        self.size = size
        """The number of partitions that the cache counts for this session."""
        self.created_s = now_s
        self.used_s = now_s

    def update(
        self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]
    ) -> Iterator[None]:
        """Apply the changes of a request, in short steps. Raise BrokerError
        FETCH_SESSION_ID_NOT_FOUND if the session becomes too large."""
        partitions, items = self.partitions, 0
        for topic in topics:
            if len(topic.topic) > TOPIC_NAME_LENGTH_MAX:
                raise _not_found("a topic name is too long")
            for wanted in topic.partitions:
                key = TopicPartition(topic.topic, wanted.partition)
                known = partitions.get(key)
                if known is None:
                    if len(partitions) >= PARTITIONS_MAX:
                        raise _not_found(f"it has more than {PARTITIONS_MAX} partitions")
                    self.add(key, wanted)
                else:
                    known.ask(wanted)
                    self.pending[key] = known
                items += 1
                if items % _ITEMS_PER_STEP == 0:
                    yield
        for gone in forgotten:
            for partition in gone.partitions:
                key = TopicPartition(gone.topic, partition)
                forgot = partitions.pop(key, None)
                if forgot is not None:
                    forgot.unwatch()
                    self.pending.pop(key, None)
                items += 1
                if items % _ITEMS_PER_STEP == 0:
                    yield

    def add(self, key: TopicPartition, wanted: FetchPartition) -> CachedPartition:
        added = self.partitions[key] = self.pending[key] = CachedPartition(key, wanted, self)
        return added

    def look_at(self, cached: CachedPartition) -> None:
        """Make the partition pending."""
        self.pending[cached.key] = cached
        if self.on_pending is not None:
            self.on_pending(cached.key)

    def read_under(self, lease: Authority, incarnation: int, committed_only: bool) -> None:
        """Make all partitions pending if one of these values differs from the last request: the
        broker's lease, the follower's incarnation, whether the client reads committed records
        only."""
        terms = (lease, incarnation, committed_only)
        if terms != self.terms:
            self.terms = terms
            self._unwatch_all()
            self.pending = dict(self.partitions)

    def move_to_end(self, cached: CachedPartition) -> None:
        """Move a partition that returned records to the end of the order."""
        if self.pending.get(cached.key) is cached:
            del self.pending[cached.key]
            self.pending[cached.key] = cached

    def close(self) -> None:
        """End all watches. A request under way may still read the partitions."""
        self.is_open = False
        self._unwatch_all()

    def _unwatch_all(self) -> None:
        for cached in self.partitions.values():
            cached.unwatch()


class FetchSessionCache:
    """All sessions of this broker, at most `slots_max`."""

    def __init__(self, *, slots_max: int, rng: Rng, counters: FetchSessionCounters) -> None:
        self._slots_max = slots_max
        self._rng = rng
        self._counters = counters
        self._sessions: dict[int, FetchSession] = {}
        """In the order of their last use, the oldest first."""
        self._consumer_partitions = 0
        self._refusals: dict[bool, tuple[float, tuple[bool, int] | None]] = {}
        """Whether the client is a follower -> the time of the next search for a session to evict,
        and the worth of the least session that may be evicted (None: none may)."""

    def create(self, replica_id: int, size: int, now_s: float) -> FetchSession | None:
        """Return a new session for `size` partitions, which the caller adds. Return None if there
        is no room, or if the session would be too large."""
        replica_id = max(replica_id, CONSUMER)
        is_follower = replica_id != CONSUMER
        if not self._has_room_for(size, is_follower):
            return None
        if len(self._sessions) >= self._slots_max and not self._evict(is_follower, size, now_s):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randrange(_INT_MAX)
        session = FetchSession(session_id, replica_id, size, now_s)
        self._sessions[session_id] = session
        self._count(session, size)
        self._counters.sessions += 1
        return session

    def take(self, session_id: int, epoch: int, replica_id: int, now_s: float) -> FetchSession:
        """Return the session of an incremental request, and increment its epoch. Raise BrokerError
        FETCH_SESSION_ID_NOT_FOUND, also for the session of another replica id, or
        INVALID_FETCH_SESSION_EPOCH."""
        session = self._sessions.get(session_id)
        if session is None or session.replica_id != max(replica_id, CONSUMER):
            raise _not_found("it is not known")
        if session.epoch != epoch:
            raise BrokerError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"session {session_id} is at epoch {session.epoch}, the request says {epoch}",
            )
        session.epoch = next_epoch(epoch)
        session.used_s = now_s
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def resized(self, session: FetchSession) -> None:
        """Count a session again after a change of its partitions. An empty session ends. Raise
        BrokerError FETCH_SESSION_ID_NOT_FOUND if all sessions together are too large."""
        size = len(session.partitions)
        if self._sessions.get(session.id) is not session:
            return
        if size == 0:
            self.remove(session.id)
        elif size == session.size:
            return
        elif self._has_room_for(size - session.size, session.replica_id != CONSUMER):
            self._count(session, size - session.size)
            session.size = size
        else:
            raise _not_found("the sessions have become too large")

    def remove(self, session_id: int) -> None:
        """End the session of that id, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()
            self._count(session, -session.size)
            self._counters.sessions -= 1

    def _has_room_for(self, partitions: int, is_follower: bool) -> bool:
        if is_follower:
            return partitions <= PARTITIONS_MAX
        together = self._consumer_partitions + partitions
        return partitions <= PARTITIONS_MAX and together <= CONSUMER_PARTITIONS_MAX

    def _count(self, session: FetchSession, partitions: int) -> None:
        self._counters.partitions += partitions
        if session.replica_id == CONSUMER:
            self._consumer_partitions += partitions

    def _evict(self, is_follower: bool, size: int, now_s: float) -> bool:
        """Evict a session for a new one of that size. Return whether one was evicted."""
        longest_unused = next(iter(self._sessions.values()), None)
        if longest_unused is None:
            return False
        if now_s - longest_unused.used_s > _MIN_LIFE_S:
            going: FetchSession | None = longest_unused
        else:
            going = self._least(is_follower, size, now_s)
        if going is None:
            return False
        self.remove(going.id)
        self._counters.evictions += 1
        return True

    def _least(self, is_follower: bool, size: int, now_s: float) -> FetchSession | None:
        """Return the session to evict for a new one of that size, or None."""
        search_again_s, least_worth = self._refusals.get(is_follower, (now_s, None))
        if now_s < search_again_s and (least_worth is None or (is_follower, size) <= least_worth):
            return None
        least = min(
            (
                session
                for session in self._sessions.values()
                if now_s - session.created_s > _MIN_LIFE_S
                or (is_follower and session.replica_id == CONSUMER)
            ),
            key=_worth,
            default=None,
        )
        if least is not None and (is_follower, size) > _worth(least):
            return least
        worth = None if least is None else _worth(least)
        self._refusals[is_follower] = (now_s + _SEARCH_AGAIN_S, worth)
        return None


def next_epoch(epoch: int) -> int:
    """Return the epoch after `epoch`. It wraps to 1, since 0 means a new session."""
    return epoch + 1 if epoch < _INT_MAX else 1


def _worth(session: FetchSession) -> tuple[bool, int]:
    return (session.replica_id != CONSUMER, session.size)


def _not_found(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no such session: {reason}")
