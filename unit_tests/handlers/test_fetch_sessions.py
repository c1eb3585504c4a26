"""Tests of the cache of fetch sessions: ids, evictions, and limits."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers import fetch_sessions
from pybroker.handlers.fetch_sessions import (
    CONSUMER,
    NO_SESSION,
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    next_epoch,
)
from pybroker.metrics import FetchSessionCounters
from pybroker.model import TopicPartition
from pybroker.wire.messages.fetch import (
    DivergingEpoch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

INT_MAX = 2**31 - 1
FOLLOWER = 2
TWO_MINUTES_S = 120.0


class Rng(random.Random):
    """An `Rng` that returns the given numbers first, and then random ones."""

    def __init__(self, *first: int) -> None:
        super().__init__(7)
        self._first = list(first)

    def randrange(self, stop: int, *others: int) -> int:  # type: ignore[override]
        return self._first.pop(0) if self._first else super().randrange(stop, *others)


class Cache(FetchSessionCache):
    """A cache with a clock that the test sets, and helpers."""

    def __init__(self, slots: int = 3, rng: Rng | None = None) -> None:
        self.counters = FetchSessionCounters()
        super().__init__(slots_max=slots, rng=rng or Rng(), counters=self.counters)
        self.now = 1000.0

    def begin(self, size: int = 1, replica_id: int = CONSUMER) -> FetchSession | None:
        session = self.create(replica_id, size, self.now)
        if session is not None:
            for _ in session.update(asking(range(size)), ()):
                pass
            self.resized(session)
        return session

    def use(self, session: FetchSession) -> None:
        self.take(session.id, session.epoch, session.replica_id, self.now)

    def holds(self, session: FetchSession | None) -> bool:
        assert session is not None
        return self._sessions.get(session.id) is session


def asking(
    partitions: Sequence[int], offset: int = 0, topic: str = "t", epoch: int = -1
) -> list[FetchTopic]:
    wanted = [
        FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=1,
            current_leader_epoch=epoch,
        )
        for partition in partitions
    ]
    return [FetchTopic(topic=topic, partitions=wanted)]


def updated(
    session: FetchSession, topics: list[FetchTopic], forgotten: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """Apply a request; return the partitions and their offsets."""
    for _ in session.update(topics, [ForgottenTopic(topic="t", partitions=list(forgotten))]):
        pass
    return [(key.partition, item.wanted.fetch_offset) for key, item in session.pending.items()]


def of_error(error: pytest.ExceptionInfo[BrokerError]) -> ErrorCode:
    return error.value.code


# ids and epochs


def test_ids_are_positive_and_never_given_twice() -> None:
    cache = Cache(slots=10, rng=Rng(0, 5, 5, 0, 6))
    assert [session.id for session in (cache.begin(), cache.begin()) if session] == [5, 6]
    assert NO_SESSION == 0


def test_the_session_epoch_increases_with_every_request_and_wraps_to_one() -> None:
    cache = Cache()
    session = cache.begin()
    assert session is not None and session.epoch == 1
    for epoch in (1, 2, 3):
        assert cache.take(session.id, epoch, CONSUMER, cache.now) is session
    session.epoch = INT_MAX
    cache.use(session)
    assert session.epoch == 1
    assert next_epoch(INT_MAX) == 1


@pytest.mark.parametrize("epoch", [-(2**31), -5, 0, 2, 3, INT_MAX])
def test_another_epoch_than_expected_is_71_and_changes_nothing(epoch: int) -> None:
    cache = Cache()
    session = cache.begin()
    assert session is not None
    with pytest.raises(BrokerError) as error:
        cache.take(session.id, epoch, CONSUMER, cache.now)
    assert of_error(error) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert session.epoch == 1 and cache.holds(session)


def test_a_session_that_is_unknown_or_of_another_replica_is_not_found() -> None:
    cache = Cache()
    mine, followers = cache.begin(), cache.begin(replica_id=FOLLOWER)
    assert mine is not None and followers is not None
    for session_id, replica_id in (
        (0, CONSUMER),
        (-1, CONSUMER),
        (mine.id ^ 1, CONSUMER),
        (mine.id, FOLLOWER),
        (followers.id, CONSUMER),
        (followers.id, FOLLOWER + 1),
    ):
        with pytest.raises(BrokerError) as error:
            cache.take(session_id, 1, replica_id, cache.now)
        assert of_error(error) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.take(mine.id, 1, -2, cache.now) is mine, "every negative id is a consumer's"


# evictions


def test_without_slots_there_are_no_sessions() -> None:
    assert Cache(slots=0).begin() is None


def test_a_full_cache_of_young_sessions_evicts_none() -> None:
    cache = Cache(slots=2)
    old = [cache.begin(), cache.begin()]
    cache.now += TWO_MINUTES_S
    assert cache.begin(size=1000) is None
    assert all(cache.holds(session) for session in old)
    assert cache.counters.evictions == 0


def test_a_session_unused_for_two_minutes_is_evicted_first() -> None:
    cache = Cache(slots=2)
    follower = cache.begin(size=50, replica_id=FOLLOWER)
    used = cache.begin()
    assert used is not None
    cache.now += TWO_MINUTES_S
    cache.use(used)
    cache.now += 0.1
    assert cache.begin() is not None
    assert not cache.holds(follower) and cache.holds(used)
    assert cache.counters.evictions == 1


def test_a_larger_session_takes_the_place_of_the_smallest_old_one() -> None:
    cache = Cache(slots=3)
    sessions = [cache.begin(size) for size in (20, 10, 30)]
    cache.now += TWO_MINUTES_S
    for session in sessions:
        assert session is not None
        cache.use(session)
    cache.now += 1
    assert cache.begin(size=10) is None, "only a larger one"
    cache.now += 2
    assert cache.begin(size=11) is not None
    assert [cache.holds(session) for session in sessions] == [True, False, True]


def test_followers_evict_young_consumers_and_consumers_never_evict_followers() -> None:
    cache = Cache(slots=2)
    sessions = [cache.begin(size=20), cache.begin(size=30)]
    first = cache.begin(size=1, replica_id=FOLLOWER)
    assert first is not None
    assert [cache.holds(session) for session in sessions] == [False, True]
    second = cache.begin(size=2, replica_id=FOLLOWER + 1)
    assert second is not None
    assert cache.begin(size=5, replica_id=FOLLOWER + 2) is None, "those are young"
    cache.now += TWO_MINUTES_S
    cache.use(first)
    cache.use(second)
    cache.now += 1
    assert cache.begin(size=1000) is None
    cache.now += 2
    assert cache.begin(size=5, replica_id=FOLLOWER + 2) is not None
    assert not cache.holds(first) and cache.holds(second)


def test_many_rejected_sessions_cost_one_search_a_second() -> None:
    searches = 0

    class Counting(dict[int, FetchSession]):
        def values(self) -> object:  # type: ignore[override]
            nonlocal searches
            searches += 1
            return super().values()

    cache = Cache(slots=2)
    cache.begin(), cache.begin()
    cache._sessions = Counting(cache._sessions)
    for _ in range(100):
        assert cache.begin() is None
    assert searches == 100 + 1, "the longest unused each time, the least worth once"
    cache.now += 1.5
    assert cache.begin() is None
    assert searches == 101 + 2


def test_the_counters_follow_the_cached_sessions() -> None:
    cache = Cache()
    counters = cache.counters
    first, second = cache.begin(size=3), cache.begin(size=4, replica_id=FOLLOWER)
    assert first is not None and second is not None
    assert (counters.sessions, counters.partitions) == (2, 7)
    updated(first, asking([7, 8]), [0])
    cache.resized(first)
    assert (counters.sessions, counters.partitions) == (2, 8)
    cache.remove(second.id)
    cache.remove(second.id)
    assert (counters.sessions, counters.partitions) == (1, 4)
    updated(first, [], [1, 2, 7, 8])
    cache.resized(first)
    assert (counters.sessions, counters.partitions) == (0, 0)
    assert not cache.holds(first), "a session of nothing ends"


# the partitions of a session


def test_changes_keep_the_order_and_new_partitions_come_last() -> None:
    session = FetchSession(1, CONSUMER, 0, 0.0)
    assert updated(session, asking([2, 0, 1])) == [(2, 0), (0, 0), (1, 0)]
    assert updated(session, asking([0, 3], offset=5)) == [(2, 0), (0, 5), (1, 0), (3, 5)]
    assert updated(session, asking([2, 4]), forgotten=[0, 4, 9]) == [(2, 0), (1, 0), (3, 5)]


def test_a_partition_that_returned_records_is_read_last() -> None:
    session = FetchSession(1, CONSUMER, 0, 0.0)
    updated(session, asking([0, 1, 2]))
    first = session.partitions[TopicPartition("t", 0)]
    session.move_to_end(first)
    assert updated(session, []) == [(1, 0), (2, 0), (0, 0)]
    updated(session, [], forgotten=[0])
    session.move_to_end(first)
    assert updated(session, []) == [(1, 0), (2, 0)]


def test_a_changed_partition_request_is_checked_for_divergence_again() -> None:
    session = FetchSession(1, CONSUMER, 0, 0.0)
    updated(session, asking([0], epoch=3))
    cached = session.partitions[TopicPartition("t", 0)]
    cached.verified_epoch = 3
    updated(session, asking([1], epoch=3))
    assert cached.verified_epoch == 3
    updated(session, asking([0], epoch=3))
    assert cached.verified_epoch == -1


def test_many_changes_are_taken_in_step_by_step() -> None:
    session = FetchSession(1, CONSUMER, 0, 0.0)
    forgotten = [ForgottenTopic(topic="t", partitions=list(range(100_000)))]
    assert sum(1 for _ in session.update(asking(range(2_000)), forgotten)) >= 200
    assert session.partitions == {}


# news


def answer(**fields: object) -> PartitionData:
    values: dict[str, object] = {"high_watermark": 5, "log_start_offset": 1, "records": b""}
    values.update(fields)
    return PartitionData(partition_index=0, error_code=values.pop("error", 0), **values)  # type: ignore[arg-type]


def sent(*answers: PartitionData, follows: bool = False) -> CachedPartition:
    wanted = asking([0])[0].partitions[0]
    session = FetchSession(1, 2 if follows else CONSUMER, 0, 0.0)
    cached = CachedPartition(TopicPartition("t", 0), wanted, session)
    for each in answers:
        cached.record_sent(each)
    return cached


@pytest.mark.parametrize(
    ("fields", "is_news"),
    [
        ({}, False),
        ({"last_stable_offset": 4}, False),
        ({"high_watermark": 6}, True),
        ({"high_watermark": 4}, True),
        ({"log_start_offset": 2}, True),
        ({"records": b"x"}, True),
        ({"error": 6}, True),
        ({"diverging_epoch": DivergingEpoch(epoch=1, end_offset=2)}, True),
    ],
)
def test_only_values_that_the_client_lacks_are_news(
    fields: dict[str, object], is_news: bool
) -> None:
    assert sent(answer()).is_news(answer(**fields)) is is_news


def test_the_first_answer_and_the_one_after_an_error_are_news() -> None:
    assert sent().is_news(answer())
    assert sent(answer(), answer(error=6)).is_news(answer())
    assert not sent(answer(error=6), answer()).is_news(answer())


def test_a_follower_that_truncates_or_changes_epoch_gets_all_values_again() -> None:
    """The follower may have skipped the rest of the answer."""
    parted = answer(diverging_epoch=DivergingEpoch(epoch=1, end_offset=2))
    assert sent(answer(), parted, follows=True).is_news(answer())
    assert not sent(answer(), parted).is_news(answer()), "consumers read all answers"
    for follows in (True, False):
        cached = sent(answer(), follows=follows)
        cached.ask(asking([0], offset=3)[0].partitions[0])
        assert not cached.is_news(answer())
        cached.ask(asking([0], offset=3, epoch=7)[0].partitions[0])
        assert cached.is_news(answer()) == follows


# limits


def test_a_session_that_is_too_large_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    cache = Cache()
    for replica_id in (CONSUMER, FOLLOWER):
        assert cache.create(replica_id, 11, cache.now) is None
        assert cache.create(replica_id, 10, cache.now) is not None


def test_a_session_that_becomes_too_large_is_70(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    session = Cache().begin(size=10)
    assert session is not None
    with pytest.raises(BrokerError) as error:
        updated(session, asking([10]))
    assert of_error(error) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(session.partitions) == 10


def test_the_partitions_of_all_consumers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "CONSUMER_PARTITIONS_MAX", 10)
    cache = Cache()
    first, second = cache.begin(size=6), cache.begin(size=4)
    assert first is not None and second is not None
    assert cache.begin(size=1) is None
    updated(first, asking([99]))
    with pytest.raises(BrokerError) as error:
        cache.resized(first)
    assert of_error(error) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    cache.remove(first.id)
    assert cache.begin(size=6) is not None
    cache.remove(second.id)
    assert cache.begin(size=50, replica_id=FOLLOWER) is not None, "followers do not count"
    assert cache.begin(size=4) is not None


def test_a_topic_name_that_is_too_long_gets_no_session() -> None:
    session = FetchSession(1, CONSUMER, 0, 0.0)
    updated(session, asking([0], topic="n" * 249))
    with pytest.raises(BrokerError) as error:
        updated(session, asking([0], topic="n" * 250))
    assert of_error(error) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
