"""Tests of fetch sessions through the dispatcher: leaders that change, followers, counters and
limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from pybroker.aligned_timers import TICK_S
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import ErrorCode
from pybroker.handlers import fetch_sessions
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, code, fetch_request, values_of
from unit_tests.handlers.session_reader import FOLLOWER, T0, lead, said
from unit_tests.patience import PATIENCE_MS, in_time

FOREVER_MS = 10 * PATIENCE_MS
PARTITIONS = 4


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", PARTITIONS)


async def send(
    bench: Bench,
    *wanted: tuple[str, int, int],
    session: tuple[int, int] = (0, 0),
    forgotten: tuple[int, ...] = (),
    version: int = 12,
    **options: Any,
) -> FetchResponse:
    request = fetch_request(*wanted, session=session, **options)
    if forgotten:
        request.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=list(forgotten))]
    answer: FetchResponse = await bench.ask(ApiKey.FETCH, version, request)
    return answer


def parts(answer: FetchResponse) -> list[int]:
    return [part for _, part in said(answer)]


async def begun(bench: Bench, *offsets: int, version: int = 12, **options: Any) -> int:
    """Create a session for t-0, t-1, ... at these offsets; return its id."""
    wanted = [("t", partition, offset) for partition, offset in enumerate(offsets)]
    answer = await send(bench, *wanted, version=version, **options)
    assert parts(answer) == list(range(len(offsets)))
    assert answer.session_id > 0
    return answer.session_id


# answers


async def test_a_moved_high_watermark_or_log_start_is_sent_once(bench: Bench) -> None:
    await lead(bench, 1)
    session = await begun(bench, 0)
    await bench.produce("t", batch(b"a"), acks=1)
    assert parts(await send(bench, session=(session, 1))) == []
    await bench.ask(
        ApiKey.FETCH,
        12,
        fetch_request(("t", 0, 1), replica_id=FOLLOWER, current_leader_epoch=1),
    )
    told = await send(bench, ("t", 0, 1), session=(session, 2))
    assert said(told)["t", 0].high_watermark == 1
    assert parts(await send(bench, session=(session, 3))) == []
    bench.app.replicas.partition(T0).log.advance_log_start(1)
    told = await send(bench, session=(session, 4))
    assert said(told)["t", 0].log_start_offset == 1
    assert parts(await send(bench, session=(session, 5))) == []


async def test_an_error_is_sent_every_time_and_its_end_once(bench: Bench) -> None:
    session = await begun(bench, 0, 0)
    await lead(bench, 1, leader=FOLLOWER)
    for epoch in (1, 2):
        answer = await send(bench, session=(session, epoch), max_wait_ms=FOREVER_MS)
        assert parts(answer) == [0]
        assert code(said(answer)["t", 0]) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await lead(bench, 2)
    over = await send(bench, session=(session, 3))
    assert code(said(over)["t", 0]) is ErrorCode.NONE
    assert parts(await send(bench, session=(session, 4))) == []


async def test_a_diverging_epoch_is_sent_every_time(bench: Bench) -> None:
    await bench.produce("t", batch(b"a"))
    await lead(bench, 4, replicas=(BROKER_ID,))
    await bench.produce("t", batch(b"b"))
    await lead(bench, 5)
    answer = await send(
        bench,
        ("t", 0, 2),
        current_leader_epoch=5,
        last_fetched_epoch=0,
        replica_id=FOLLOWER,
    )
    for epoch in (1, 2):
        again = await send(bench, session=(answer.session_id, epoch), replica_id=FOLLOWER)
        diverging = said(again)["t", 0].diverging_epoch
        assert diverging is not None and (diverging.epoch, diverging.end_offset) == (0, 1)


# how sessions begin and end


@pytest.mark.parametrize("version", range(4, 7))
async def test_older_versions_get_no_session(bench: Bench, version: int) -> None:
    request = fetch_request(("t", 0, 0), session=(0, -1))
    answer: FetchResponse = await bench.ask(ApiKey.FETCH, version, request)
    assert parts(answer) == [0]
    assert bench.app.rooms().metrics.fetch_sessions.sessions == 0


async def test_a_full_request_ends_the_session_that_it_names(bench: Bench) -> None:
    counters = bench.app.rooms().metrics.fetch_sessions
    first = await begun(bench, 0)
    second = await send(bench, ("t", 0, 0), session=(first, 0))
    assert second.session_id not in (0, first)
    assert (counters.sessions, counters.partitions) == (1, 1)
    last = await send(bench, ("t", 0, 0), session=(second.session_id, -1))
    assert parts(last) == [0] and last.session_id == 0
    assert (counters.sessions, counters.partitions) == (0, 0)
    for session in (first, second.session_id):
        gone = await send(bench, session=(session, 1))
        assert code(gone) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_followers_and_consumers_do_not_share_a_session(bench: Bench) -> None:
    session = await begun(bench, 0)
    answer = await send(bench, session=(session, 1), replica_id=FOLLOWER)
    assert code(answer) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert parts(await send(bench, session=(session, 1))) == []


async def test_a_fetch_overtaken_in_its_session_gets_invalid_fetch_session_epoch(
    bench: Bench,
) -> None:
    session = await begun(bench, 0)
    waiting = asyncio.ensure_future(send(bench, session=(session, 1), max_wait_ms=FOREVER_MS))
    await bench.waits(bench.app.replicas.fetches, waiting)
    assert parts(await send(bench, session=(session, 2))) == []
    await bench.produce("t", batch(b"a"))
    late = await in_time(waiting)
    assert code(late) is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert late.responses == []
    assert parts(await send(bench, session=(session, 3))) == [0]


async def test_without_slots_every_answer_is_without_a_session(tmp_path: Path) -> None:
    own = {"max.incremental.fetch.session.cache.slots": "0"}
    async with Bench(tmp_path / "own", properties=own) as bench:
        await bench.create("t")
        answer = await send(bench, ("t", 0, 0))
        assert (parts(answer), answer.session_id) == ([0], 0)


async def test_a_flood_of_sessions_takes_no_more_slots_than_there_are(tmp_path: Path) -> None:
    own = {"max.incremental.fetch.session.cache.slots": "10"}
    async with Bench(tmp_path / "own", properties=own) as bench:
        await bench.create("t")
        ids = [(await send(bench, ("t", 0, 0))).session_id for _ in range(50)]
        assert len(set(ids[:10])) == 10 and ids[10:] == [0] * 40
        assert bench.app.rooms().metrics.fetch_sessions.sessions == 10


async def test_a_session_that_grows_too_large_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 5)
    session = await begun(bench, 0)
    wanted = [("t", partition, 0) for partition in range(6)]
    answer = await send(bench, *wanted, session=(session, 1))
    assert code(answer) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert bench.app.rooms().metrics.fetch_sessions.sessions == 0
    refused = await send(bench, *wanted)
    assert refused.session_id == 0 and len(parts(refused)) == 6


async def test_names_that_no_topic_can_have_get_no_session(bench: Bench) -> None:
    answer = await send(bench, ("n" * 250, 0, 0))
    assert answer.session_id == 0
    session = await begun(bench, 0)
    answer = await send(bench, ("n" * 250, 0, 0), session=(session, 1))
    assert code(answer) is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# waiting and turns


async def test_a_page_cache_miss_is_read_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await begun(bench, 0, 0)
    await bench.produce("t", batch(b"a"))
    log = bench.app.replicas.partition(T0).log
    read = log.read

    def cold(*args: Any, cached_only: bool, **options: Any) -> Any:
        return None if cached_only else read(*args, cached_only=False, **options)

    monkeypatch.setattr(log, "read", cold)
    bench.blocking.done.clear()
    answer = await send(bench, session=(session, 1))
    assert values_of(said(answer)["t", 0]) == [b"a"]
    assert len(bench.blocking.done) == 1


async def test_very_many_partitions_in_a_session_yield_to_other_tasks(bench: Bench) -> None:
    count = 10_000

    def request(session: tuple[int, int], changed: int = 0, forgotten: int = 0) -> FetchRequest:
        asked = fetch_request(session=session)
        asked.topics = [
            FetchTopic(
                topic="t",
                partitions=[
                    FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1)
                    for number in range(changed)
                ],
            )
        ]
        asked.forgotten_topics_data = [
            ForgottenTopic(topic="t", partitions=list(range(count - forgotten, count)))
        ]
        return asked

    session = 0
    for epoch, changed, forgotten in ((0, count, 0), (1, count, 0), (2, 0, count - 9)):
        asked = request((session, epoch), changed, forgotten)
        answer = bench.dispatch(ApiKey.FETCH, 12, asked)
        assert isinstance(answer, Awaitable)
        turns = 0
        task = asyncio.ensure_future(answer)
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > count / 1000
        session = bench.decode(ApiKey.FETCH, 12, task.result()).session_id
        assert session > 0
    assert bench.app.rooms().metrics.fetch_sessions.partitions == 9


async def wait_of(bench: Bench, session: int, epoch: int, max_wait_ms: int) -> float:
    """Fetch in this session of the follower. Return the time (s) for which the leader lets the
    fetch wait."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await send(bench, session=(session, epoch), replica_id=FOLLOWER, max_wait_ms=max_wait_ms)
    return loop.time() - begun_s


@pytest.mark.parametrize("when", ["never", "before", "during"])
async def test_a_follower_waits_long_only_while_nothing_changes(bench: Bench, when: str) -> None:
    await lead(bench, 1)
    session = await begun(bench, 0, replica_id=FOLLOWER, current_leader_epoch=1)
    usual_s = BrokerConfig().replica_fetch_wait_max_ms / 1000
    assert await wait_of(bench, session, 1, 0) < usual_s / 2
    log = bench.app.replicas.partition(T0).log
    await bench.produce("t", batch(b"a"), acks=1)
    await send(
        bench,
        ("t", 0, 1),
        session=(session, 2),
        replica_id=FOLLOWER,
        current_leader_epoch=1,
    )
    assert await wait_of(bench, session, 3, 0) < usual_s / 2
    if when == "before":
        log.advance_log_start(1)
    if when == "during":
        asyncio.get_running_loop().call_later(usual_s, log.advance_log_start, 1)
    waited_s = await wait_of(bench, session, 4, int(usual_s * 8_000))
    longest = {"never": 8, "before": 1, "during": 2}[when]
    early_s = TICK_S if when == "never" else usual_s / 2  # waits share timers
    assert longest * usual_s - early_s - 0.05 < waited_s < (longest + 0.1) * usual_s
