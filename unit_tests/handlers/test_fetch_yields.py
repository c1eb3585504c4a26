"""Tests that a fetch reads on the event loop only from the page cache, and yields regularly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from pybroker.ports import Buffer
from pybroker.storage.log import Log
from pybroker.wire.api import ApiKey
from unit_tests.handlers.bench import Bench, batch, fetch_request, the_only, values_of


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)


async def test_a_page_cache_miss_is_read_in_a_thread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.produce("t", batch(b"a"))
    cached = Log.read

    def cold(self: Log, *args: Any, cached_only: bool, **options: Any) -> Buffer | None:
        return None if cached_only else cached(self, *args, cached_only=False, **options)

    monkeypatch.setattr(Log, "read", cold)
    bench.blocking.done.clear()
    assert values_of(await bench.fetch("t", 0)) == [b"a"]
    assert len(bench.blocking.done) == 1


async def test_a_large_answer_is_copied_in_a_thread_and_is_complete(bench: Bench) -> None:
    large = [b"%d" % number + bytes(900_000) for number in range(6)]
    for value in large:
        await bench.produce("t", batch(value))
    bench.blocking.done.clear()
    assert values_of(await bench.fetch("t", 0, max_bytes=50_000_000)) == large
    assert len(bench.blocking.done) == 1
    assert values_of(await bench.fetch("t", 0, max_bytes=1_000_000)) == large[:1]
    assert len(bench.blocking.done) == 1, "a small one is not"


async def test_a_large_answer_of_many_partitions_yields_to_other_tasks(bench: Bench) -> None:
    await bench.create("wide", partitions=8)
    values = [b"%d" % number + bytes(900_000) for number in range(8)]
    for number, value in enumerate(values):
        await bench.produce("wide", batch(value), partition=number)
    bench.blocking.done.clear()
    request = fetch_request(*(("wide", number, 0) for number in range(8)))
    answer = asyncio.ensure_future(bench.ask(ApiKey.FETCH, 11, request))
    turns = 0
    while not answer.done():
        turns += 1
        await asyncio.sleep(0)
    topics = (await answer).responses
    assert [values_of(the_only(topic.partitions)) for topic in topics] == [[v] for v in values]
    assert bench.blocking.done == []
    assert turns > 1


async def test_an_answer_of_very_many_partitions_yields_to_other_tasks(bench: Bench) -> None:
    request = fetch_request(*(("t", 0, 0) for _ in range(1200)), max_bytes=1000)
    answer = bench.dispatch(ApiKey.FETCH, 11, request)
    assert isinstance(answer, Awaitable)
    assert len(bench.decode(ApiKey.FETCH, 11, await answer).responses) == 1200
