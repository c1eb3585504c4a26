"""Tests of splitting ranges into pieces: the number of pieces, their bounds, and that the pieces
cover the range."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.client.range_reader import PartitionRange
from pybroker.client.ranges.options import parse_range_options
from pybroker.model import TopicPartition
from pybroker.spark import splits
from pybroker.spark.splits import Limits, align, pieces_of, split
from pybroker.testing.sockets import free_ports
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from pybroker.wire.messages.metadata import MetadataResponse, MetadataResponseBroker
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.patience import PATIENCE_S

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def edges(pieces: list[PartitionRange]) -> list[tuple[int, int, int]]:
    return [(piece.partition, piece.start, piece.end) for piece in pieces]


def test_without_limits_a_nonempty_range_is_one_piece() -> None:
    ranges = [PartitionRange("t", 0, 5, 9), PartitionRange("t", 1, 7, 7)]
    assert edges(split(ranges, Limits(), {})) == [(0, 5, 9)]


def test_range_of_known_size_is_split_by_bytes() -> None:
    ranges = [PartitionRange("t", 0, 0, 100), PartitionRange("t", 1, 0, 100)]
    assert edges(split(ranges, Limits(max_bytes=400), {P0: 10.0})) == [
        *((0, 0, 33), (0, 33, 66), (0, 66, 100)),
        (1, 0, 100),
    ]


def test_range_is_split_by_offsets() -> None:
    found = split([PartitionRange("t", 0, 10, 35)], Limits(max_offsets=10), {})
    assert edges(found) == [(0, 10, 18), (0, 18, 26), (0, 26, 35)]


def test_the_largest_ranges_are_split_most() -> None:
    ranges = [PartitionRange("t", 0, 0, 900), PartitionRange("t", 1, 0, 100)]
    assert len(split(ranges, Limits(min_pieces=10), {})) == 10
    assert edges(split(ranges, Limits(min_pieces=10), {}))[-1] == (1, 0, 100)
    by_bytes = split(ranges, Limits(min_pieces=10), {P0: 1.0, P1: 9.0})
    assert [piece.partition for piece in by_bytes] == [0] * 5 + [1] * 5
    assert edges(split(ranges[1:], Limits(min_pieces=500), {}))[:2] == [(1, 0, 1), (1, 1, 2)]


def test_splits_move_to_batch_starts() -> None:
    pieces = split([PartitionRange("t", 0, 0, 40)], Limits(max_offsets=10), {})
    moved = align(pieces, {(P0, 10): 4, (P0, 20): 4, (P0, 30): 33})
    assert edges(moved) == [(0, 0, 4), (0, 4, 33), (0, 33, 40)]
    assert edges(align(pieces, {(P0, 30): 44})) == [(0, 0, 10), (0, 10, 20), (0, 20, 40)]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), max_size=4),
    st.integers(1, 60),
    st.dictionaries(st.integers(0, 260), st.integers(0, 300)),
)
def test_pieces_cover_exactly_the_range(
    rows: list[tuple[int, int]], offsets_max: int, starts: dict[int, int]
) -> None:
    ranges = [PartitionRange("t", n, start, start + size) for n, (start, size) in enumerate(rows)]
    cut = split(ranges, Limits(max_offsets=offsets_max, min_pieces=7), {})
    known = {(TopicPartition("t", n), at): to for n in range(4) for at, to in starts.items()}
    for pieces in (cut, align(cut, known)):
        assert [row for piece in pieces for row in offsets(piece)] == [
            row for item in ranges for row in offsets(item)
        ]
        assert all(piece.offsets for piece in pieces)


def offsets(item: PartitionRange) -> list[tuple[int, int]]:
    return [(item.partition, offset) for offset in range(item.start, item.end)]


async def test_planning_does_not_wait_for_the_sizes_of_a_dead_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(splits, "SIZES_LIMIT_MS", 1_000)
    logs = [DescribeLogDirsPartition(partition_index=0, partition_size=4_000)]
    sizes = DescribeLogDirsResult(topics=[DescribeLogDirsTopic(name="t", partitions=logs)])
    async with FakeBroker({"t": 1}) as broker:
        broker.partition().end = 40
        broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: DescribeLogDirsResponse(
            results=[sizes]
        )
        alive = broker.handlers[ApiKey.METADATA]

        def as_if_two(request: Message) -> Message:
            answer = alive(request)
            assert isinstance(answer, MetadataResponse)
            gone = MetadataResponseBroker(node_id=2, host="127.0.0.1", port=free_port)
            return replace(answer, brokers=[*answer.brokers, gone])

        (free_port,) = free_ports(1)
        broker.handlers[ApiKey.METADATA] = as_if_two
        options, _ = parse_range_options({"bootstrap.servers": broker.address})
        whole = PartitionRange("t", 0, 0, 40)
        async with asyncio.timeout(PATIENCE_S):
            pieces = await pieces_of(options, [whole], Limits(max_bytes=1_000))
    assert [(piece.start, piece.end) for piece in pieces] == [(0, 10), (10, 20), (20, 30), (30, 40)]
