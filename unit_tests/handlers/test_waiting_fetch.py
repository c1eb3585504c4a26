"""Tests of fetches that wait: they need no task, and they end in every way in which a request can
end."""

from __future__ import annotations

import asyncio
import gc

import pytest

from pybroker.broker.shutdown import close_connections
from pybroker.deferred import Deferred
from pybroker.handlers import dispatch, fetch, fetch_reading
from pybroker.handlers.dispatch import Answer
from pybroker.handlers.fetch_reading import Reading
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchResponse
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, fetch_request, the_only, values_of
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_MS, in_time

FOREVER_MS = 10 * PATIENCE_MS
SHORT_MS = 20
FOLLOWERS = (2, 3)
T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)


def ask(bench: Bench, *, max_wait_ms: int, min_bytes: int = 1) -> Deferred[Answer]:
    """Fetch t-0 from offset 0. Return the dispatcher's answer."""
    request = fetch_request(("t", 0, 0), max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    answer = bench.dispatch(ApiKey.FETCH, 12, request)
    assert isinstance(answer, Deferred)
    return answer


async def values(bench: Bench, answer: Deferred[Answer]) -> list[bytes | None]:
    response: FetchResponse = bench.decode(ApiKey.FETCH, 12, await in_time(answer))
    return values_of(the_only(the_only(response.responses).partitions))


async def test_a_fetch_that_waits_starts_no_task(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(fetch, "_read_until_enough", lambda *given: started.append(given))
    answer = ask(bench, max_wait_ms=FOREVER_MS)
    await bench.waits(bench.app.replicas.fetches, answer)
    await bench.produce("t", batch(b"a"))
    assert await values(bench, answer) == [b"a"]
    assert await values(bench, ask(bench, max_wait_ms=SHORT_MS, min_bytes=10**6)) == [b"a"]
    assert not started and len(bench.app.replicas.fetches) == 0


async def test_an_answered_fetch_leaves_nothing_to_the_garbage_collector(bench: Bench) -> None:
    gc.collect()
    gc.disable()
    try:
        answer = ask(bench, max_wait_ms=FOREVER_MS)
        await bench.waits(bench.app.replicas.fetches, answer)
        await bench.produce("t", batch(b"a"))
        assert await values(bench, answer) == [b"a"]
        del answer
        assert not [each for each in gc.get_objects() if isinstance(each, fetch._WaitingFetch)]
    finally:
        gc.enable()


async def test_a_fetch_waits_again_after_too_few_bytes(bench: Bench) -> None:
    size = len(batch(b"a"))
    answer = ask(bench, max_wait_ms=FOREVER_MS, min_bytes=3 * size)
    for _ in range(2):
        await bench.waits(bench.app.replicas.fetches, answer)
        await bench.produce("t", batch(b"a"))
        bench.app.replicas.fetches.disturbed(T0)
        await idle()
        assert not answer.done() and len(bench.app.replicas.fetches) == 1
    await bench.produce("t", batch(b"a"))
    assert await values(bench, answer) == [b"a", b"a", b"a"]


async def test_a_task_goes_on_if_the_page_cache_lacks_the_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_records = fetch_reading._read_records

    def not_on_the_loop(partition, wanted, answer, reading: Reading) -> None:  # type: ignore[no-untyped-def]
        if reading.cached_only:
            raise fetch_reading._WouldBlock
        read_records(partition, wanted, answer, reading)

    answer = ask(bench, max_wait_ms=FOREVER_MS)
    await bench.waits(bench.app.replicas.fetches, answer)
    monkeypatch.setattr(fetch_reading, "_read_records", not_on_the_loop)
    await bench.produce("t", batch(b"a"))
    assert await values(bench, answer) == [b"a"]


@pytest.mark.parametrize("in_a_task", [False, True])
async def test_a_fetch_that_is_given_up_leaves_nothing(bench: Bench, in_a_task: bool) -> None:
    answer = ask(bench, max_wait_ms=FOREVER_MS)
    await bench.waits(bench.app.replicas.fetches, answer)
    before = asyncio.all_tasks()
    if in_a_task:
        gate = bench.blocking.hold()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch, "advance", _would_block)
            bench.app.replicas.fetches.disturbed(T0)
            await idle()
        await in_time(gate.reached.wait())
        assert asyncio.all_tasks() != before
    answer.cancel()
    await idle()
    assert len(bench.app.replicas.fetches) == 0 and asyncio.all_tasks() <= before


def _would_block(_: object, reading: Reading) -> bool:
    reading.cached_only = False
    return False


@pytest.mark.parametrize("in_a_task", [False, True])
async def test_an_unexpected_exception_reaches_the_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, in_a_task: bool
) -> None:
    answer = ask(bench, max_wait_ms=FOREVER_MS)
    await bench.waits(bench.app.replicas.fetches, answer)

    def fails(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(fetch, "advance", _would_block if in_a_task else fails)
    monkeypatch.setattr(fetch, "complete", fails)
    bench.app.replicas.fetches.disturbed(T0)
    with pytest.raises(ZeroDivisionError):
        await in_time(answer)
    assert len(bench.app.replicas.fetches) == 0


async def test_a_response_that_cannot_be_encoded_reaches_the_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    answer = ask(bench, max_wait_ms=SHORT_MS)
    monkeypatch.setattr(dispatch, "encode_fetch_response", fails)
    with pytest.raises(ZeroDivisionError):
        await in_time(answer)


async def test_fetches_of_followers_are_answered_together(bench: Bench) -> None:
    facts = PartitionFacts(
        T0,
        bench.app.metadata.topics["t"].topic_id,
        PartitionState(BROKER_ID, 1, (BROKER_ID, *FOLLOWERS), 1),
        1,
        (BROKER_ID, *FOLLOWERS),
    )
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    await bench.app.replicas.leader_and_isr(command)
    answers = []
    for follower in FOLLOWERS:
        request = fetch_request(
            ("t", 0, 0),
            replica_id=follower,
            current_leader_epoch=1,
            max_wait_ms=2_000,
        )
        answer = bench.dispatch(ApiKey.FETCH, 12, request)
        assert isinstance(answer, Deferred)
        answers.append(answer)
    assert len(bench.app.replicas.replica_fetches._due) == 1
    await in_time(answers[0])
    await idle()
    assert all(answer.done() for answer in answers)
    assert len(bench.app.replicas.replica_fetches) == 0


async def test_a_broker_that_stops_answers_waiting_fetches(bench: Bench) -> None:
    answer = ask(bench, max_wait_ms=FOREVER_MS)
    await bench.waits(bench.app.replicas.fetches, answer)
    await close_connections(bench.app._server, bench.app.replicas)
    assert await values(bench, answer) == []
