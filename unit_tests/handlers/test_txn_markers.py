"""Tests of WriteTxnMarkers: the result of each partition, fencing, and the wait for replication."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.control import ControlType, EndTransaction, parse_control
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transactions import WriteTxnMarkersRequest
from unit_tests.handlers.bench import LISTENER, Bench, code, records_of, the_only
from unit_tests.handlers.transactions import (
    FOLLOWER,
    PRODUCER,
    codes_of,
    coordinator_of,
    end,
    marker_request,
    put,
    replicate,
    share,
)
from unit_tests.idle_loop import idle

NONE = ErrorCode.NONE
FENCED = ErrorCode.TRANSACTION_COORDINATOR_FENCED
T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", 2)
    coordinator_of(bench)


async def ask(bench: Bench, request: WriteTxnMarkersRequest, version: int = 1) -> list[ErrorCode]:
    return codes_of(await bench.ask(ApiKey.WRITE_TXN_MARKERS, version, request))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("commit", [True, False])
async def test_leader_writes_a_control_batch(bench: Bench, version: int, commit: bool) -> None:
    assert await put(bench) is NONE
    request = marker_request(("t", [0]), commit=commit, coordinator_epoch=5)
    assert await ask(bench, request, version) == [NONE]
    found = await bench.fetch("t", 1)
    record = the_only(records_of(found))
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    assert parse_control(record) == EndTransaction(kind, 5)
    state = bench.app.replicas.partition(T0).log.producers.entries[PRODUCER]
    assert (state.coordinator_epoch, state.transaction_first_offset) == (5, -1)


async def test_each_partition_of_each_marker_has_its_result(bench: Bench) -> None:
    assert await put(bench) is NONE
    both = marker_request(("t", [0, 9, 1]), ("missing", [0])).markers
    both += marker_request(("t", [1]), producer=8).markers
    answer = await bench.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=both))
    assert [
        [
            (topic.name, row.partition_index, code(row))
            for topic in marker.topics
            for row in topic.partitions
        ]
        for marker in answer.markers
    ] == [
        [
            ("t", 0, NONE),
            ("t", 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", 1, NONE),
            ("missing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ],
        [("t", 1, NONE)],
    ]
    assert [marker.producer_id for marker in answer.markers] == [PRODUCER, 8]
    assert await ask(bench, WriteTxnMarkersRequest()) == []


async def test_stale_coordinator_is_fenced(bench: Bench) -> None:
    assert await put(bench) is NONE
    assert await end(bench, coordinator_epoch=3) is NONE
    assert await put(bench, 1) is NONE
    assert await end(bench, coordinator_epoch=2) is FENCED
    assert (await bench.fetch("t", 0)).last_stable_offset == 2
    # A coordinator repeats a marker whose response was lost.
    assert await end(bench, coordinator_epoch=3) is NONE
    assert await end(bench, coordinator_epoch=3) is NONE
    assert await end(bench, commit=False, coordinator_epoch=4) is NONE


async def test_marker_of_an_older_producer_epoch_is_refused(bench: Bench) -> None:
    assert await put(bench, epoch=4) is NONE
    assert await end(bench, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await bench.fetch("t", 0)).last_stable_offset == 0
    assert await end(bench, epoch=5, commit=False) is NONE


@pytest.mark.parametrize(("producer", "epoch"), [(-1, 0), (7, -1), (-5, -5)])
async def test_marker_without_a_producer_is_refused(
    bench: Bench, producer: int, epoch: int
) -> None:
    assert await end(bench, producer=producer, epoch=epoch) is ErrorCode.INVALID_REQUEST
    assert (await bench.fetch("t", 0)).high_watermark == 0


async def test_marker_of_an_unknown_producer_is_written(bench: Bench) -> None:
    assert await end(bench, producer=12345) is NONE
    found = await bench.fetch("t", 0, read_committed=True)
    assert (found.high_watermark, found.aborted_transactions) == (1, [])


async def test_only_the_listener_of_the_brokers_may_commit(bench: Bench) -> None:
    """Admin clients abort hanging transactions, and use any listener."""
    assert await put(bench) is NONE
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert await end(bench, listener="OUTSIDE") is refused
    assert await end(bench, listener="OUTSIDE", commit=False) is NONE
    assert await end(bench, listener=LISTENER) is NONE


async def test_listener_of_internal_topics_learns_of_each_marker(bench: Bench) -> None:
    await bench.create("__consumer_offsets")
    told: list[tuple[object, ...]] = []
    bench.app.replicas.on_marker = lambda *marker: told.append(marker)
    request = marker_request(("__consumer_offsets", [0]), ("t", [0]), commit=False, epoch=3)
    assert await ask(bench, request) == [NONE, NONE]
    key = TopicPartition("__consumer_offsets", 0)
    assert told == [(key, 0, PRODUCER, 3, False)]


async def test_marker_is_acknowledged_when_it_is_committed(bench: Bench) -> None:
    assert await put(bench) is NONE
    await share(bench)
    partition = bench.app.replicas.partition(T0)
    waiting = asyncio.ensure_future(end(bench))
    await idle()
    replicate(bench, 1)
    await idle()
    assert not waiting.done()
    assert (partition.high_watermark, partition.last_stable_offset()) == (1, 0)
    replicate(bench, 2)
    assert await waiting is NONE
    assert (partition.high_watermark, partition.last_stable_offset()) == (2, 2)


async def test_marker_that_is_not_replicated_times_out(tmp_path: Path) -> None:
    async with Bench(tmp_path / "own", properties={"request.timeout.ms": "1"}) as bench:
        await bench.create("t")
        coordinator_of(bench)
        assert await put(bench) is NONE
        await share(bench)
        assert await end(bench) is ErrorCode.REQUEST_TIMED_OUT


async def test_follower_refuses_markers(bench: Bench) -> None:
    await share(bench, leader=FOLLOWER)
    assert await end(bench) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_thread_writes_the_leader_epoch_before_the_first_marker(bench: Bench) -> None:
    assert await put(bench) is NONE
    await share(bench)
    log = bench.app.replicas.partition(T0).log
    assert log.epoch_file.changed
    gate = bench.blocking.hold()
    waiting = asyncio.ensure_future(end(bench))
    await gate.reached.wait()
    assert log.log_end_offset == 1
    gate.open.set()
    await idle()
    assert log.log_end_offset == 2
    assert not log.epoch_file.changed
    replicate(bench, 2)
    assert await waiting is NONE
