"""Tests of the data source before it reads records: snapshots, and brokers that do not answer."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pybroker.client.errors import NoBrokers
from pybroker.client.range_reader import PartitionRange
from pybroker.client.ranges.model import DIGEST_END, Counted
from pybroker.errors import ConfigError
from pybroker.records.builder import BatchBuilder
from pybroker.spark.batch_reader import read_batches
from pybroker.spark.failures import ReadFailed
from pybroker.spark.options import read_request
from pybroker.spark.reading import BatchOnly, FrozenReader, freeze, schema_of
from pybroker.spark.rows import BATCH_ROWS
from pybroker.spark.snapshot_model import PartitionCut, Snapshot, SnapshotError, TopicCut
from pybroker.spark.source import PybrokerDataSource
from unit_tests.client.fake_broker import FakeBroker


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment after each test: the code sets a variable because its worker is about
    to end."""
    monkeypatch.setattr(os, "environ", dict(os.environ))


@pytest.fixture
def no_listener() -> Iterator[str]:
    """Return an address on which no process listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def snapshot(bootstrap: str, end: int = 250) -> Snapshot:
    cuts = {0: PartitionCut(100, end, 0, 7), 1: PartitionCut(5, 5, 0, 7)}
    return Snapshot(
        "01J", "c", 1, "read_committed", {"orders": TopicCut("", cuts)}, bootstrap=bootstrap
    )


def quickly(bootstrap: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "kafka.bootstrap.timeout.ms": "1"}


def test_brokers_default_to_those_of_the_snapshot() -> None:
    text = snapshot("one:1").to_json()
    assert freeze({"snapshot": text}).request.client["bootstrap.servers"] == "one:1"
    named = freeze({"snapshot": text, "kafka.bootstrap.servers": "two:2"})
    assert named.request.client["bootstrap.servers"] == "two:2"
    with pytest.raises(
        ConfigError, match=r"kafka\.bootstrap\.servers is missing, and the snapshot"
    ):
        freeze({"snapshot": snapshot("").to_json()})


def test_isolation_level_must_equal_that_of_the_snapshot() -> None:
    text = snapshot("one:1").to_json()
    assert freeze({"snapshot": text, "kafka.isolation.level": "read_committed"})
    with pytest.raises(
        ConfigError, match="contradicts the snapshot, whose isolation is read_committed"
    ):
        freeze({"snapshot": text, "kafka.isolation.level": "read_uncommitted"})


def test_a_malformed_snapshot_is_refused() -> None:
    for text in ("{", '{"version": 2}', "/nowhere/cut.json"):
        with pytest.raises(SnapshotError) as raised:
            freeze({"snapshot": text})
        assert "\n" not in str(raised.value)


def test_read_can_be_pickled_for_workers() -> None:
    frozen = freeze({"snapshot": snapshot("one:1").to_json()})
    assert pickle.loads(pickle.dumps(frozen)) == frozen
    reader = FrozenReader(frozen, schema_of(["key"]))
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._schema == reader._schema
    assert copy._frozen.request == frozen.request
    assert copy._frozen.snapshot.isolation == frozen.snapshot.isolation


def test_a_task_does_not_receive_all_counts() -> None:
    counts = tuple(Counted(place, place + 9, 9, DIGEST_END - 1) for place in range(0, 576, 9))
    cuts = {number: PartitionCut(0, 576, 0, 1, counts) for number in range(100)}
    text = replace(snapshot("one:1"), topics={"t": TopicCut("", cuts)}).to_json()
    assert len(text) > 100_000
    reader = FrozenReader(freeze({"snapshot": text}), schema_of(["key"]))
    assert len(pickle.dumps(reader)) < 10_000


def test_an_empty_read_sends_no_request(no_listener: str) -> None:
    frozen = freeze({"snapshot": snapshot(no_listener, end=100).to_json()})
    assert FrozenReader(frozen, schema_of(["key"])).partitions() == []


def test_unreachable_brokers_are_tried_once(no_listener: str) -> None:
    with pytest.raises(NoBrokers, match=f"no broker could be reached .*{no_listener}"):
        freeze(
            {
                **quickly(no_listener),
                "subscribe": "orders",
                "fetchOffset.retryIntervalMs": "9999999",
            }
        )


def test_error_of_an_unreachable_broker_names_the_offset(no_listener: str) -> None:
    request = read_request({**quickly(no_listener), "subscribe": "orders"})
    wanted = PartitionRange("orders", 3, 100, 250)
    with pytest.raises(
        ReadFailed, match=f"^orders-3@100: no broker could be reached .*{no_listener}"
    ):
        list(read_batches(request, "read_committed", wanted, ["key"]))


@pytest.mark.parametrize(
    ("batches", "records", "value", "expected"),
    [
        (2_000, 10, b"v", [BATCH_ROWS + 8, BATCH_ROWS + 8, 3_600]),
        (6, 3, bytes(500_000), [9, 9]),
        (2, 10_000, b"v", [10_000, 10_000]),
    ],
    ids=["small batches", "by size", "large batches stay whole"],
)
async def test_small_stored_batches_are_joined(
    batches: int, records: int, value: bytes, expected: list[int]
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        for _ in range(batches):
            builder = BatchBuilder()
            for _ in range(records):
                builder.append(1, b"k", value)
            broker.partition("t", 0).append(builder.build())
        wanted = PartitionRange("t", 0, 0, batches * records)
        options = {"kafka.bootstrap.servers": broker.address, "subscribe": "t"}

        def read() -> list[int]:
            found = read_batches(
                read_request(options), "read_uncommitted", wanted, ["value", "offset"]
            )
            return [batch.num_rows for batch in found]

        assert await asyncio.to_thread(read) == expected


def test_streams_and_writes_are_refused() -> None:
    source = PybrokerDataSource({"snapshot": snapshot("one:1").to_json()})
    assert source.name() == "pybroker"
    schema = source.schema()
    for ask in (
        lambda: source.streamReader(schema).initialOffset(),
        lambda: source.writer(schema, True),
        lambda: source.streamWriter(schema, True),
    ):
        with pytest.raises(BatchOnly, match="reads in batch only"):
            ask()
