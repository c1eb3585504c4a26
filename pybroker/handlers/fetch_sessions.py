"""Fetch sessions (KIP-227). This module does no I/O; times are seconds of a monotonic clock.

    full request, epoch 0        -> a new session, if there is room; its id is in the response
    incremental, epoch 1, 2, ... -> the session is changed, then its pending partitions are read
    full request with an id      -> the session with that id ends (whether the epoch is 0 or -1)

A partition without news is not pending. It is watched, and becomes pending at its next change.

As in Kafka, a new session may evict a session unused for two minutes, or a smaller session that is
two minutes old. A follower's new session may evict any consumer's session.
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
"""The maximum number of partitions in one session. A client with more partitions gets no session
and sends full requests."""
CONSUMER_PARTITIONS_MAX: Final = 500_000
"""The maximum number of partitions in the sessions of all consumers together; they need some 200
MB. Kafka has no such limit."""
_MIN_LIFE_S: Final = 120.0
_SEARCH_AGAIN_S: Final = 1.0
"""After the cache has found no session that it may evict, it does not search again for this time
(s)."""
_ITEMS_PER_STEP: Final = 500
_INT_MAX: Final = (1 << 31) - 1


class CachedPartition:
    """A partition of a fetch session: the client's request (`wanted`), and the offsets last sent to
    the client."""

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
        """Whether the client of the session is a follower. A follower may ignore a response, so the
        values in it are sent again when the follower states a new leader epoch."""
        self.wanted = wanted
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.verified_epoch = NO_EPOCH
        """The leader epoch in which a check found that the client's log does not diverge from the
        leader's log. The check need not be repeated in this leader epoch."""
        self.watched: Partition | None = None
        """The local replica that is watched: its next change makes this partition pending. None
        while this partition is pending."""

    def watch(self, partition: Partition) -> None:
        """Let the session skip this partition until the local replica `partition` changes. The
        caller must first check that the replica has nothing new for the client. If the client is a
        follower, the caller must also first record the fetch."""
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
        """Whether `answer` has anything new for the client: records, an error, a diverging epoch,
        or a changed high watermark or log start offset."""
        return bool(
            answer.records
            or answer.error_code
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.diverging_epoch is not None
        )

    def record_sent(self, answer: PartitionData) -> None:
        """Record that `answer` is sent to the client."""
        if answer.error_code or (self.follows and answer.diverging_epoch is not None):
            self.high_watermark = self.log_start_offset = NO_OFFSET
            return
        self.high_watermark = answer.high_watermark
        self.log_start_offset = answer.log_start_offset


class FetchSession:
    """The partitions of one client's fetch session."""

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
        """The broker id of the follower that uses the session, or CONSUMER."""
        self.epoch = 1
        """The session epoch that the client's next request must have."""
        self.partitions: dict[TopicPartition, CachedPartition] = {}
        self.pending: dict[TopicPartition, CachedPartition] = {}
        """The partitions that the next request reads, in this order. A partition that has returned
        records moves to the end, so that every partition gets its turn."""
        self.on_pending: Callable[[TopicPartition], None] | None = None
        """Called with each partition that becomes pending while a request of the session waits for
        records."""
        self.is_open = True
        self.requests = SessionRequests(now_s)
        self.terms: tuple[object, ...] = ()
        """The arguments of the last `read_under`."""
        self.size = size
        """The session's number of partitions, as the cache counts it for its limits."""
        self.created_s = now_s
        self.used_s = now_s

    def update(
        self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]
    ) -> Iterator[None]:
        """Apply the changes of a request. The caller may let other tasks run at each yield. Raise
        BrokerError FETCH_SESSION_ID_NOT_FOUND if a limit is exceeded: the caller must then end the
        session."""
        partitions, items = self.partitions, 0
        for topic in topics:
            if len(topic.topic) > TOPIC_NAME_LENGTH_MAX:
                raise _not_found(f"a topic name has more than {TOPIC_NAME_LENGTH_MAX} characters")
            for wanted in topic.partitions:
                key = TopicPartition(topic.topic, wanted.partition)
                known = partitions.get(key)
                if known is None:
                    if len(partitions) >= PARTITIONS_MAX:
                        raise _not_found(
                            f"the session would have more than {PARTITIONS_MAX} partitions"
                        )
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
        """Make a partition pending, so that the session's waiting request reads it. If no request
        waits, the next request reads it."""
        self.pending[cached.key] = cached
        if self.on_pending is not None:
            self.on_pending(cached.key)

    def read_under(self, lease: Authority, incarnation: int, committed_only: bool) -> None:
        """If an argument has changed since the last call, make all partitions pending, so that each
        is read again. `incarnation` grows with each registration of the follower."""
        terms = (lease, incarnation, committed_only)
        if terms != self.terms:
            self.terms = terms
            self._unwatch_all()
            self.pending = dict(self.partitions)

    def move_to_end(self, cached: CachedPartition) -> None:
        """Move a partition to the end of the reading order."""
        if self.pending.get(cached.key) is cached:
            del self.pending[cached.key]
            self.pending[cached.key] = cached

    def close(self) -> None:
        """End the session and stop watching its partitions."""
        self.is_open = False
        self._unwatch_all()

    def _unwatch_all(self) -> None:
        for cached in self.partitions.values():
            cached.unwatch()


class FetchSessionCache:
    """All fetch sessions of this broker, at most `slots_max`."""

    def __init__(self, *, slots_max: int, rng: Rng, counters: FetchSessionCounters) -> None:
        self._slots_max = slots_max
        self._rng = rng
        self._counters = counters
        self._sessions: dict[int, FetchSession] = {}
        """Session id -> session, ordered by their last use; the session that was unused for longest
        is first."""
        self._consumer_partitions = 0
        self._refusals: dict[bool, tuple[float, tuple[bool, int] | None]] = {}
        """Remembers unsuccessful searches for a session to evict. The key is whether the client of
        the new session was a follower. The value has two parts. The first is the time before which
        the search is not repeated. The second is the worth of the least valuable session that was
        old enough to be evicted, or None if there was none. A session's worth is a pair: whether a
        follower uses it, and its size."""

    def create(self, replica_id: int, size: int, now_s: float) -> FetchSession | None:
        """Return a new session, to which the caller adds `size` partitions, or None if a limit is
        reached."""
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
        FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH."""
        session = self._sessions.get(session_id)
        if session is None or session.replica_id != max(replica_id, CONSUMER):
            raise _not_found(
                f"this broker has no fetch session with the id {session_id} and the "
                f"replica id {replica_id}"
            )
        if session.epoch != epoch:
            raise BrokerError(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {session_id}: the epoch is {epoch}, expected {session.epoch}",
            )
        session.epoch = next_epoch(epoch)
        session.used_s = now_s
        del self._sessions[session_id]
        self._sessions[session_id] = session
        return session

    def resized(self, session: FetchSession) -> None:
        """Count the session's partitions again. A session without partitions ends. Raise
        BrokerError FETCH_SESSION_ID_NOT_FOUND if the cache has no room for the added partitions."""
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
            raise _not_found(
                f"the session would have more than {PARTITIONS_MAX} partitions, or the sessions of "
                f"all consumers together would have more than {CONSUMER_PARTITIONS_MAX}"
            )

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
        """Evict a session to make room for a new session of `size` partitions. Return False if no
        session may be evicted."""
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
        """Return the session to evict for a new session of `size` partitions; None if there is
        none. Consumers' sessions are evicted before followers' sessions, and small sessions before
        large ones."""
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
    """Return the session epoch that follows `epoch`. After the largest 32-bit number comes 1,
    because 0 asks for a new session."""
    return epoch + 1 if epoch < _INT_MAX else 1


def _worth(session: FetchSession) -> tuple[bool, int]:
    return (session.replica_id != CONSUMER, session.size)


def _not_found(reason: str) -> BrokerError:
    return BrokerError(
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        f"the fetch session cannot be used: {reason}",
    )
