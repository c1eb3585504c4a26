"""Tests of Fetch requests and their responses: waiting fetches, transactions, replicas, and
damaged records."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.records.batch import read_header
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.replication.partition import Partition
from pybroker.server.listener import Server
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchRequest, FetchResponse
from unit_tests.handlers.bench import (
    BROKER_ID,
    NOW_MS,
    Bench,
    batch,
    code,
    fetch_request,
    the_only,
    values_of,
)
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_MS, in_time

VERSIONS = range(4, 13)
FOREVER_MS = 10 * PATIENCE_MS
T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)


def partition(bench: Bench, key: TopicPartition = T0) -> Partition:
    return bench.app.replicas.partition(key)


def asking(bench: Bench, request: FetchRequest, version: int = 12) -> asyncio.Future[FetchResponse]:
    return asyncio.ensure_future(bench.ask(ApiKey.FETCH, version, request))


async def waiting(bench: Bench, **options: Any) -> asyncio.Future[FetchResponse]:
    """Return a fetch of t-0 from its end that waits for records."""
    end = partition(bench).log.log_end_offset
    options.setdefault("max_wait_ms", FOREVER_MS)
    task = asking(bench, fetch_request(("t", 0, end), **options))
    await bench.waits(bench.app.replicas.fetches, task)
    assert not task.done()
    return task


def values(answer: FetchResponse) -> list[list[bytes | None]]:
    """Return the values of each partition in the answer."""
    return [values_of(part) for topic in answer.responses for part in topic.partitions]


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, ErrorCode.NONE),
        (1, ErrorCode.NONE),
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_older_leader_epochs_are_74_and_newer_ones_75(
    bench: Bench, epoch: int, expected: ErrorCode
) -> None:
    for version in VERSIONS[5:]:
        await lead(bench, 1)
        answer = await bench.fetch("t", 0, version=version, current_leader_epoch=epoch)
        assert code(answer) is expected


async def lead(
    bench: Bench, epoch: int, isr: tuple[int, ...] = (BROKER_ID,), leader: int = BROKER_ID
) -> None:
    """Apply a LeaderAndIsr that makes `leader` the leader of t-0."""
    facts = PartitionFacts(
        T0,
        bench.app.metadata.topics["t"].topic_id,
        PartitionState(leader, epoch, isr, 1),
        epoch,
        tuple(sorted({BROKER_ID, *isr})),
    )
    answers = await bench.app.replicas.leader_and_isr(
        LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    )
    assert answers == {T0: ErrorCode.NONE}


# sizes


async def test_fetch_max_bytes_of_the_broker_limits_an_answer(tmp_path: Path) -> None:
    async with Bench(tmp_path / "own", properties={"fetch.max.bytes": "1024"}) as bench:
        await bench.create("t")
        for _ in range(3):
            await bench.produce("t", batch(b"v" * 600))
        assert len(values_of(await bench.fetch("t", 0))) == 1


# waiting


async def test_a_fetch_gets_one_batch_while_peers_leave_too_much_unread(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition_ in (0, 1):
        await bench.produce("t", batch(b"a"), partition=partition_)
        await bench.produce("t", batch(b"b"), partition=partition_)
    request = fetch_request(("t", 0, 0), ("t", 1, 0))
    assert values(await asking(bench, request)) == [[b"a", b"b"], [b"a", b"b"]]
    monkeypatch.setattr(Server, "unsent_bytes", property(lambda server: 2**40))
    assert values(await asking(bench, request)) == [[b"a"], []]
    task = await waiting(bench)  # still waits for more records
    await bench.produce("t", batch(b"c"))
    assert values(await in_time(task)) == [[b"c"]]


async def test_a_batch_produced_just_before_the_waiting_begins_is_not_missed(
    bench: Bench,
) -> None:
    request = fetch_request(("t", 0, 0), max_wait_ms=FOREVER_MS)
    task = asking(bench, request)
    produced = asyncio.ensure_future(bench.produce("t", batch(b"a")))
    assert values(await in_time(task)) == [[b"a"]]
    await produced


async def test_a_batch_produced_between_reading_and_waiting_is_not_missed(bench: Bench) -> None:
    """The first read finds nothing, and the coroutine that waits starts only later."""
    frame_answer = bench.dispatch(
        ApiKey.FETCH, 12, fetch_request(("t", 0, 0), max_wait_ms=FOREVER_MS)
    )
    await bench.produce("t", batch(b"a"))
    assert not isinstance(frame_answer, list) and frame_answer is not None
    answer: FetchResponse = bench.decode(ApiKey.FETCH, 12, await in_time(frame_answer))
    assert values(answer) == [[b"a"]]


async def test_a_duplicate_batch_wakes_no_fetch(bench: Bench) -> None:
    data = batch(b"a", producer=(7, 0, 0))
    await bench.produce("t", data)
    task = await waiting(bench)
    await bench.produce("t", data)
    await idle()
    assert not task.done()
    task.cancel()


async def test_a_deleted_partition_wakes_the_waiting_fetch(bench: Bench) -> None:
    task = await waiting(bench)
    await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("t"))
    answer = await in_time(task)
    part = the_only(the_only(answer.responses).partitions)
    assert code(part) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_deposed_leader_wakes_the_waiting_fetch(bench: Bench) -> None:
    task = await waiting(bench)
    await lead(bench, 1, isr=(2,), leader=2)
    part = the_only(the_only((await in_time(task)).responses).partitions)
    assert code(part) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_cancelled_fetch_leaves_the_purgatory(bench: Bench) -> None:
    task = await waiting(bench)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(bench.app.replicas.fetches) == 0


# transactions


async def transact(bench: Bench, value: bytes, sequence: int, producer: int = 7) -> None:
    append(bench, batch(value, producer=(producer, 0, sequence), transactional=True))


def end_transaction(bench: Bench, kind: ControlType, producer: int = 7) -> None:
    """Append a transaction marker as a coordinator does."""
    data = bytearray(
        build_end_transaction(
            EndTransaction(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=NOW_MS
        )
    )
    append(bench, bytes(data))


def append(bench: Bench, data: bytes) -> None:
    """Append to the partition itself, since Produce rejects transactional batches."""
    writable = memoryview(bytearray(data))
    partition(bench).append(writable, read_header(writable), acks=1, now_ms=NOW_MS)


@pytest.mark.parametrize("version", VERSIONS)
async def test_read_committed_reads_up_to_the_last_stable_offset(
    bench: Bench, version: int
) -> None:
    await bench.produce("t", batch(b"before"))
    await transact(bench, b"open", 0)
    await bench.produce("t", batch(b"after"))
    committed = await bench.fetch("t", 0, version=version, read_committed=True)
    assert values_of(committed) == [b"before"]
    assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
    everything = await bench.fetch("t", 0, version=version)
    assert values_of(everything) == [b"before", b"open", b"after"]
    assert everything.last_stable_offset == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_aborted_transactions_are_listed_for_read_committed_and_null_otherwise(
    bench: Bench, version: int
) -> None:
    await bench.produce("t", batch(b"before"))
    plain = await bench.fetch("t", 0, version=version, read_committed=True)
    assert plain.aborted_transactions == []
    await transact(bench, b"aborted", 0)
    end_transaction(bench, ControlType.ABORT)
    await transact(bench, b"committed", 1)
    end_transaction(bench, ControlType.COMMIT)
    committed = await bench.fetch("t", 0, version=version, read_committed=True)
    assert committed.last_stable_offset == committed.high_watermark == 5
    assert committed.aborted_transactions is not None
    aborted = the_only(committed.aborted_transactions)
    assert (aborted.producer_id, aborted.first_offset) == (7, 1)
    assert len(values_of(committed)) == 5  # the client skips markers and aborted records
    assert (await bench.fetch("t", 0, version=version)).aborted_transactions is None


async def test_read_committed_waits_for_the_open_transaction(bench: Bench) -> None:
    task = await waiting(bench, read_committed=True)
    await transact(bench, b"open", 0)
    await bench.produce("t", batch(b"after"))
    await idle()
    assert not task.done()
    end_transaction(bench, ControlType.COMMIT)
    bench.app.replicas.became_readable(T0, 100)
    assert len(the_only(values(await in_time(task)))) == 3


# replication


async def test_consumers_read_up_to_the_high_watermark(bench: Bench) -> None:
    await bench.produce("t", batch(b"a"))
    await lead(bench, 1, isr=(BROKER_ID, 2))
    await bench.produce("t", batch(b"b"), acks=1)
    answer = await bench.fetch("t", 0)
    assert values_of(answer) == [b"a"]
    assert answer.high_watermark == answer.last_stable_offset == 1
    beyond = await bench.fetch("t", 2)
    assert (code(beyond), values_of(beyond)) == (ErrorCode.NONE, [])


async def test_a_fetch_beyond_the_end_of_its_epoch_gets_the_diverging_epoch(bench: Bench) -> None:
    await bench.produce("t", batch(b"a"))
    await lead(bench, 4)
    await bench.produce("t", batch(b"b"))
    same = await bench.fetch("t", 1, last_fetched_epoch=0)
    assert same.diverging_epoch is None and values_of(same) == [b"b"]
    further = await bench.fetch("t", 2, last_fetched_epoch=0)
    assert further.diverging_epoch is not None
    assert (further.diverging_epoch.epoch, further.diverging_epoch.end_offset) == (0, 1)
    assert values_of(further) == []
    other = await bench.fetch("t", 2, last_fetched_epoch=3)
    assert other.diverging_epoch is not None
    assert (other.diverging_epoch.epoch, other.diverging_epoch.end_offset) == (0, 1)


# damaged records


@pytest.mark.parametrize("place", [0, 4, 11, 16, 17, 40, 70])
async def test_a_damaged_batch_is_corrupt_message_and_the_batches_around_it_are_served(
    bench: Bench, place: int
) -> None:
    """The damage is a flipped bit in the base offset, length, magic, checksum, timestamps or
    records."""
    for value in (b"a", b"b", b"c"):
        await bench.produce("t", batch(value))
    suspicions = []
    bench.app.replicas.on_suspicion = lambda key, offset: suspicions.append((key, offset))
    (path,) = Path(partition(bench).log.directory).glob("*.log")
    data = bytearray(path.read_bytes())
    size = len(data) // 3
    data[size + place] ^= 1
    path.write_bytes(data)
    assert values_of(await bench.fetch("t", 0)) == [b"a"]
    assert code(await bench.fetch("t", 1)) is ErrorCode.CORRUPT_MESSAGE
    assert suspicions == [(T0, 1)]
