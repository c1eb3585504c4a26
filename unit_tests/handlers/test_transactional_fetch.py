"""Tests of Fetch by read_committed consumers: the end of the wait, fetch sessions, and the list
of aborted transactions."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import iter_headers
from pybroker.records.control import ControlType, parse_control
from pybroker.records.record import decode_records
from pybroker.storage.files import SystemFile
from pybroker.storage.log import Log
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchRequest, FetchResponse, PartitionData
from unit_tests.handlers.bench import Bench, batch, code, fetch_request, the_only, values_of
from unit_tests.handlers.transactions import (
    coordinator_of,
    end,
    of,
    produce_in,
    put,
    replicate,
    share,
)
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_MS, in_time

T0 = TopicPartition("t", 0)
NONE = ErrorCode.NONE
FOREVER_MS = 10 * PATIENCE_MS


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)
    coordinator_of(bench)


def ask(bench: Bench, request: FetchRequest) -> asyncio.Future[FetchResponse]:
    return asyncio.ensure_future(bench.ask(ApiKey.FETCH, 12, request))


def committed(offset: int = 0, **options: Any) -> FetchRequest:
    return fetch_request(("t", 0, offset), read_committed=True, **options)


def only_part(answer: FetchResponse) -> PartitionData:
    return the_only(the_only(answer.responses).partitions)


async def plain(bench: Bench, value: bytes) -> None:
    """Send a batch without a transaction, and do not wait for its commit."""
    await bench.produce("t", batch(value, timestamp=bench.clock.wall_ms()), acks=1)


# the end of the wait


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_waiting_fetch_wakes_when_the_transaction_ends(
    bench: Bench, commit: bool, session: bool
) -> None:
    """The marker has few bytes, but it makes all records of the transaction readable."""
    options: dict[str, Any] = {"max_wait_ms": FOREVER_MS, "min_bytes": 1000}
    request = committed(**options)
    if session:
        opened = await ask(bench, committed(session=(0, 0)))
        request = fetch_request(session=(opened.session_id, 1), read_committed=True, **options)
    waiting = ask(bench, request)
    await idle()
    assert code_of(await produce_in(bench, of(bench, b"v" * 2000))) is NONE
    await plain(bench, b"v" * 2000)
    await idle()
    assert not waiting.done()
    assert await end(bench, commit=commit) is NONE
    part = only_part(await in_time(waiting))
    assert (part.last_stable_offset, part.high_watermark) == (3, 3)
    assert len(values_of(part)) == 3
    assert len(part.aborted_transactions or []) == (0 if commit else 1)


async def test_marker_counts_when_it_is_below_the_high_watermark(bench: Bench) -> None:
    assert await put(bench) is NONE
    await share(bench)
    waiting = ask(bench, committed(max_wait_ms=FOREVER_MS, min_bytes=1000))
    assert code_of(await produce_in(bench, of(bench, b"v" * 2000, sequence=1), acks=1)) is NONE
    ended = asyncio.ensure_future(end(bench, commit=False))
    for offset in (1, 2):
        replicate(bench, offset)
        await idle()
        assert not waiting.done() and not ended.done()
        found = only_part(await ask(bench, committed()))
        assert (found.high_watermark, found.last_stable_offset) == (offset, 0)
    replicate(bench, 3)
    part = only_part(await in_time(waiting))
    assert (part.high_watermark, part.last_stable_offset) == (3, 3)
    assert await in_time(ended) is NONE


async def test_waiting_fetch_for_uncommitted_records_does_not_wait_for_the_marker(
    bench: Bench,
) -> None:
    waiting = ask(bench, fetch_request(("t", 0, 0), max_wait_ms=FOREVER_MS))
    assert await put(bench) is NONE
    assert len(values_of(only_part(await in_time(waiting)))) == 1


async def test_last_stable_offset_is_in_the_answers_of_all_isolation_levels(bench: Bench) -> None:
    await plain(bench, b"a")
    assert await put(bench) is NONE
    for read_committed in (False, True):
        found = await bench.fetch("t", 0, read_committed=read_committed)
        assert (found.high_watermark, found.last_stable_offset) == (2, 1)


async def test_session_sends_a_moved_last_stable_offset(bench: Bench) -> None:
    """The session sends it also if the partition has no new records. The last stable offset moves
    only with the high watermark, and the session sends each change of the high watermark."""
    assert await put(bench) is NONE
    await share(bench)
    first = await ask(bench, committed(1, session=(0, 0)))
    assert only_part(first).last_stable_offset == 0
    ended = asyncio.ensure_future(end(bench))
    await idle()
    waiting = ask(
        bench,
        fetch_request(session=(first.session_id, 1), read_committed=True, max_wait_ms=FOREVER_MS),
    )
    await idle()
    replicate(bench, 2)
    part = only_part(await in_time(waiting))
    assert (part.last_stable_offset, part.high_watermark) == (2, 2)
    assert await in_time(ended) is NONE


# the list of aborted transactions


async def test_only_aborted_transactions_of_the_returned_records_are_listed(bench: Bench) -> None:
    for sequence in range(100):
        assert await put(bench, sequence) is NONE
        assert await end(bench, commit=sequence % 2 == 0) is NONE
    everything = await bench.fetch("t", 0, read_committed=True)
    assert everything.aborted_transactions is not None
    assert [each.first_offset for each in everything.aborted_transactions] == list(range(2, 200, 4))
    size = len(everything.records or b"") // 200
    for offset in (0, 2, 3, 77, 198, 199):
        some = await bench.fetch("t", offset, read_committed=True, partition_max_bytes=10 * size)
        assert some.aborted_transactions is not None
        assert len(some.aborted_transactions) <= 4
        firsts = [each.first_offset for each in some.aborted_transactions]
        last = max(header.last_offset for _, header in iter_headers(some.records or b""))
        assert firsts == [each for each in range(2, 200, 4) if offset <= each + 1 and each <= last]
    empty = await bench.fetch("t", 200, read_committed=True)
    assert (empty.records, empty.aborted_transactions) == (b"", [])


async def test_index_of_aborted_transactions_is_read_in_a_thread_if_it_is_not_cached(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await put(bench) is NONE
    assert await end(bench, commit=False) is NONE
    cached = SystemFile.pread_cached

    def not_cached(file: SystemFile, position: int, length: int) -> Buffer | None:
        return None if file.path.endswith(".txnindex") else cached(file, position, length)

    monkeypatch.setattr(SystemFile, "pread_cached", not_cached)
    bench.blocking.done.clear()
    found = await bench.fetch("t", 0, read_committed=True)
    assert len(found.aborted_transactions or []) == 1
    assert bench.blocking.done == ["_read_next"]


async def test_records_whose_index_is_deleted_during_the_read_are_not_returned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the index their transaction would count as committed."""
    assert await put(bench) is NONE
    assert await end(bench, commit=False) is NONE
    log = bench.app.replicas.partition(T0).log
    log.roll(bench.clock.wall_ms())
    await plain(bench, b"later")
    read = Log.read

    def read_and_lose(*arguments: Any, **options: Any) -> Buffer | None:
        found = read(*arguments, **options)
        log.advance_log_start(2)
        log.delete_expired(0, 3)
        return found

    monkeypatch.setattr(Log, "read", read_and_lose)
    found = await bench.fetch("t", 0, read_committed=True)
    assert (code(found), found.records) == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")


# consumers and a model


def consumed(part: PartitionData, aborting: set[int]) -> list[bytes | None]:
    """Return the values that Kafka's consumer returns from an answer. `aborting` are the producers
    whose transaction at the consumer's position was aborted."""
    listed = sorted(
        (each.first_offset, each.producer_id) for each in part.aborted_transactions or []
    )
    values: list[bytes | None] = []
    data = bytes(part.records or b"")
    for position, header in iter_headers(data):
        while listed and listed[0][0] <= header.last_offset:
            aborting.add(listed.pop(0)[1])
        records = decode_records(
            data[position : position + header.size], decompressed_bytes_max=10_000
        )
        if header.is_control:
            marker = parse_control(records[0])
            assert marker is not None
            if marker.type is ControlType.ABORT:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            values += [record.value for record in records]
    return values


@pytest.mark.parametrize("seed", range(6))
async def test_consumer_reads_exactly_the_committed_transactions(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    sequences = dict.fromkeys(range(1, 5), 0)
    pending: dict[int, list[bytes]] = {}
    outcome: dict[bytes, bool] = {}
    order: list[bytes] = []
    for step in range(120):
        producer = rng.randrange(0, 5)
        value = b"%d:%d" % (producer, step)
        if producer == 0:
            await plain(bench, value)
            order.append(value)
            outcome[value] = True
        elif producer in pending and rng.random() < 0.4:
            commit = rng.random() < 0.5
            assert await end(bench, producer=producer, commit=commit) is NONE
            outcome.update(dict.fromkeys(pending.pop(producer), commit))
        else:
            data = of(bench, value, sequence=sequences[producer], producer=producer)
            assert code_of(await produce_in(bench, data)) is NONE
            sequences[producer] += 1
            pending.setdefault(producer, []).append(value)
            order.append(value)
        if rng.random() < 0.05:
            bench.app.replicas.partition(T0).log.roll(bench.clock.wall_ms())
    # Nothing after the first record of an open transaction is read.
    stop = next((n for n, value in enumerate(order) if value not in outcome), len(order))
    expected = [value for value in order[:stop] if outcome[value]]
    assert await _consume(bench, rng) == expected
    for producer in pending:
        assert await end(bench, producer=producer) is NONE
        outcome.update(dict.fromkeys(pending[producer], True))
    assert await _consume(bench, rng) == [value for value in order if outcome[value]]


async def _consume(bench: Bench, rng: random.Random) -> list[bytes | None]:
    offset, values, aborting = 0, list[bytes | None](), set[int]()
    while True:
        size = rng.choice([1, 200, 500, 5000])
        part = await bench.fetch("t", offset, read_committed=True, partition_max_bytes=size)
        if not part.records:
            assert offset == part.last_stable_offset
            return values
        values += consumed(part, aborting)
        offset = max(header.next_offset for _, header in iter_headers(part.records))


def code_of(rows: list[Any]) -> ErrorCode:
    return code(the_only(rows))
