"""Fetch sessions (KIP-227): who asks for the same partitions again and again names only what
changed, and is answered only what is new. Plain code; time is seconds of a monotonic clock.

    full request, epoch 0        -> a session, if there is room; its id in the answer
    incremental, epoch 1, 2, ... -> changes are taken in, then every partition of it is looked at
    full request, epoch 0 or -1  -> the session that it names ends

Which session has to make room for another is as in Kafka: one that was not used for two minutes,
or, once it is two minutes old, a smaller one. Followers push out consumers at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import FetchSessionCounters
from pybroker.model import NO_EPOCH, NO_OFFSET, TOPIC_NAME_LENGTH_MAX, TopicPartition
from pybroker.ports import Rng
from pybroker.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic, PartitionData

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
CONSUMER: Final = -1
NEVER_S: Final = float("-inf")
PARTITIONS_MAX: Final = 200_000
"""Of one session. Its client goes on without one; that also works, and costs us no memory."""
CONSUMER_PARTITIONS_MAX: Final = 500_000
"""Of all sessions of consumers together: some 200 MB. Kafka has no such limit."""
_MIN_LIFE_S: Final = 120.0
_SEARCH_AGAIN_S: Final = 1.0
"""How long it is remembered that nobody has to make room for whom."""
_ITEMS_PER_STEP: Final = 500
_INT_MAX: Final = (1 << 31) - 1


class CachedPartition:
    """A partition of a session: what is asked for, and what the client was last told."""

    __slots__ = (
        "follows",
        "high_watermark",
        "key",
        "log_start_offset",
        "noted_s",
        "verified_epoch",
        "wanted",
    )

    def __init__(
        self, key: TopicPartition, wanted: FetchPartition, *, follows: bool = False
    ) -> None:
        self.key = key
        self.follows = follows
        """Whether a follower asks. It may leave unread what it was told: it is told anew."""
        self.wanted = wanted
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.verified_epoch = NO_EPOCH
        """Our leader epoch in which `wanted` was found not to diverge: it cannot any more, as long
        as this epoch lasts."""
        self.noted_s = NEVER_S
        """When the leader last took down that the follower has everything."""

    def ask(self, wanted: FetchPartition) -> None:
        if self.follows and wanted.current_leader_epoch != self.wanted.current_leader_epoch:
            self.high_watermark = self.log_start_offset = NO_OFFSET
        self.wanted = wanted
        self.verified_epoch = NO_EPOCH
        self.noted_s = NEVER_S

    def is_news(self, answer: PartitionData) -> bool:
        """Whether the answer says anything that the client does not know."""
        return bool(
            answer.records
            or answer.error_code
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
            or answer.diverging_epoch is not None
        )

    def told(self, answer: PartitionData) -> None:
        """The answer is on its way. After an error, or when a follower has to cut its log first,
        the next one is news in any case."""
        if answer.error_code or (self.follows and answer.diverging_epoch is not None):
            self.high_watermark = self.log_start_offset = NO_OFFSET
            return
        self.high_watermark = answer.high_watermark
        self.log_start_offset = answer.log_start_offset


class FetchSession:
    """One client's partitions, in the order in which they are read: those that gave records go to
    the end, so that none starves."""

    __slots__ = ("created_s", "epoch", "id", "partitions", "replica_id", "size", "used_s")

    def __init__(self, session_id: int, replica_id: int, size: int, now_s: float) -> None:
        self.id = session_id
        self.replica_id = replica_id
        """The follower whose session it is, or CONSUMER."""
        self.epoch = 1
        """What the next request has to say."""
        self.partitions: dict[TopicPartition, CachedPartition] = {}
        self.size = size
        """How many partitions it counts for among the others."""
        self.created_s = now_s
        self.used_s = now_s

    def update(
        self, topics: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]
    ) -> Iterator[None]:
        """Take in the changes of a request, in steps that take no long time each. Raises
        BrokerError FETCH_SESSION_ID_NOT_FOUND if the session becomes too large."""
        partitions, items = self.partitions, 0
        for topic in topics:
            if len(topic.topic) > TOPIC_NAME_LENGTH_MAX:
                raise _not_found("a name in it is longer than any topic's")
            for wanted in topic.partitions:
                key = TopicPartition(topic.topic, wanted.partition)
                known = partitions.get(key)
                if known is None:
                    if len(partitions) >= PARTITIONS_MAX:
                        raise _not_found("it has become too large")
                    partitions[key] = CachedPartition(
                        key, wanted, follows=self.replica_id != CONSUMER
                    )
                else:
                    known.ask(wanted)
                items += 1
                if items % _ITEMS_PER_STEP == 0:
                    yield
        for gone in forgotten:
            for partition in gone.partitions:
                partitions.pop(TopicPartition(gone.topic, partition), None)
                items += 1
                if items % _ITEMS_PER_STEP == 0:
                    yield

    def gave(self, cached: CachedPartition) -> None:
        """The partition gave records: it is read last the next time."""
        if self.partitions.get(cached.key) is cached:
            del self.partitions[cached.key]
            self.partitions[cached.key] = cached


class FetchSessionCache:
    """All sessions of this broker; at most `slots_max`."""

    def __init__(self, *, slots_max: int, rng: Rng, counters: FetchSessionCounters) -> None:
        self._slots_max = slots_max
        self._rng = rng
        self._counters = counters
        self._sessions: dict[int, FetchSession] = {}
        """In the order of their last use, the longest ago first."""
        self._consumer_partitions = 0
        self._refusals: dict[bool, tuple[float, tuple[bool, int] | None]] = {}
        """By whether a follower asks: until when nothing is searched again, and the least of the
        sessions that may go at all (None: none may)."""

    def create(self, replica_id: int, size: int, now_s: float) -> FetchSession | None:
        """A session for so many partitions, which the caller puts into it; None if there is no
        room, or if it would be too large."""
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
        """The session of an incremental request, whose epoch goes on by that. Raises BrokerError
        FETCH_SESSION_ID_NOT_FOUND, also for somebody else's, INVALID_FETCH_SESSION_EPOCH."""
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
        """The session's partitions were changed; one that is empty ends. Raises BrokerError
        FETCH_SESSION_ID_NOT_FOUND if the sessions have become too large together."""
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
        """End a session, if there is one of that id."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
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
        """Make room for a session of that size; whether one had to go."""
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
        """The session that has to go for another of that size, if any has to."""
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
    """Epochs begin again at 1: 0 means a new session."""
    return epoch + 1 if epoch < _INT_MAX else 1


def _worth(session: FetchSession) -> tuple[bool, int]:
    return (session.replica_id != CONSUMER, session.size)


def _not_found(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no such session: {reason}")
