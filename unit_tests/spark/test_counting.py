"""Tests of counting records when a snapshot is taken: the choice of topics, the counted parts,
and the tasks of a counted range."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.range_reader import PartitionRange, RangeFailed, RangeFault
from pybroker.client.ranges.model import DIGEST_END, Counted
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import HEADER_SIZE, read_header, seal, stamp
from pybroker.spark import snapshot as snapshots
from pybroker.spark.counting import PARTS_MAX, Count, CountedParts, thinned
from pybroker.spark.readability import Readability
from pybroker.spark.snapshot_model import PartitionCut, Snapshot, SnapshotError, TopicCut
from pybroker.spark.splits import (
    Limits,
    align,
    counted_starts,
    pieces_blocking,
    split,
    with_counts,
)
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from pybroker.wire.messages.fetch import FetchRequest
from pybroker.wire.messages.log_dirs import DescribeLogDirsResponse
from unit_tests.client.compaction import compact
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.held_logs import batch, holding
from unit_tests.client.ranges.readings import OLD, failure, numbers, read_now
from unit_tests.client.ranges.test_counts import digest

CONF = {"retry.backoff.ms": "1", "bootstrap.timeout.ms": "500", "default.api.timeout.ms": "5000"}

# CountedParts


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=60),
    st.data(),
)
def test_parts_cover_the_range_and_count_its_records(
    shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    place, batches = 7, []
    for hole, size in shapes:
        place += hole
        made = bytearray(batch(*numbers(0, size)))
        stamp(made, 0, place, 0)
        batches.append(bytes(made))
        place += size
    first = data.draw(st.integers(7, 7 + shapes[0][0] + shapes[0][1] - 1), "start")
    end = data.draw(st.integers(place - shapes[-1][1] + 1, place + 4), "end")
    end = max(end, first + 1)
    records_max = data.draw(st.integers(1, 30), "records")
    parts = CountedParts(first, end, part_records=records_max, parts_max=6)
    for each in batches:
        parts.add(read_header(each), each, first)
    found = parts.finish()
    assert len(found) <= 7
    assert [each.first for each in found] == [first, *(each.beyond for each in found[:-1])]
    assert found[-1].beyond == end
    seen = [offset for each in batches for offset in offsets_of(each)]
    for counted in found:
        inside = [each for each in seen if counted.first <= each < counted.beyond]
        assert counted[2:] == (len(inside), digest(inside))


def offsets_of(data: bytes) -> range:
    header = read_header(data)
    return range(header.base_offset, header.next_offset)


def test_neighboring_parts_are_joined() -> None:
    rows = [Counted(place, place + 5, place, DIGEST_END - 1) for place in range(0, 25, 5)]
    assert thinned(rows) == [
        Counted(0, 10, 5, DIGEST_END - 2),
        Counted(10, 20, 25, DIGEST_END - 2),
        Counted(20, 25, 20, DIGEST_END - 1),
    ]
    assert thinned(rows[:1]) == rows[:1]


# Which topics


def policies(**topics: str | ErrorCode) -> DescribeConfigsResponse:
    results = []
    for name, policy in topics.items():
        result = DescribeConfigsResult(resource_type=2, resource_name=name)
        if isinstance(policy, ErrorCode):
            result.error_code = policy
        else:
            result.configs = [DescribeConfigsResourceResult(name="cleanup.policy", value=policy)]
        results.append(result)
    return DescribeConfigsResponse(results=results)


def two_topics(a: str | ErrorCode = "compact", b: str | ErrorCode = "delete") -> FakeBroker:
    broker = FakeBroker({"a": 2, "b": 1})
    for name in ("a", "b"):
        broker.topic_ids[name] = OLD
        for first in range(0, 50, 5):
            holding(broker.partition(name, 0), batch(*numbers(first, first + 5)))
    broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda _: policies(a=a, b=b)
    return broker


async def taken(broker: FakeBroker, **options: Any) -> Snapshot:
    given = {"topics": ["a", "b"], "conf": CONF, **options}
    return await asyncio.to_thread(lambda: snapshots.take(broker.address, **given))


@pytest.mark.parametrize(
    ("a", "b", "count", "expected"),
    [
        ("compact", "delete", "compacted", {"a": 50, "b": None}),
        ("delete,compact", "delete", "compacted", {"a": 50, "b": None}),
        ("delete", "delete", "compacted", {"a": None, "b": None}),
        ("delete", "delete", "always", {"a": 50, "b": 50}),
        ("compact", "delete", "never", {"a": None, "b": None}),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "delete", "compacted", {"a": 50, "b": None}),
    ],
)
async def test_count_chooses_the_topics(
    a: str | ErrorCode, b: str, count: Count, expected: dict[str, int | None]
) -> None:
    async with two_topics(a, b) as broker:
        snap = await taken(broker, count=count)
        assert snap.records() == expected
        assert snap.version == (1 if set(expected.values()) == {None} else 2)
        assert Snapshot.from_json(snap.to_json()) == snap
        if snap.version == 1:
            assert not broker.requests(FetchRequest), "what is not counted costs no pass"
        assert [item.counts[-1].beyond for item in snap.ranges() if item.counts] == [
            number for number in expected.values() if number
        ]


async def test_unknown_count_is_refused() -> None:
    async with two_topics() as broker:
        with pytest.raises(SnapshotError, match="count is 'all': give one of compacted, always"):
            await taken(broker, count="all")


async def test_a_counted_snapshot_fails_after_compaction_removed_a_record() -> None:
    async with two_topics() as broker:
        told: list[tuple[int, int]] = []
        snap = await taken(broker, progress=lambda done, total: told.append((done, total)))
        assert told == sorted(told) and told[-1] == (50, 50)
        (item, _, _) = Snapshot.from_json(snap.to_json()).ranges()
        assert (await asyncio.to_thread(read_now, broker.address, item)).values == numbers(0, 50)
        compact(broker.partition("a", 0), lambda offset: offset != 33)
        failed = failure(await asyncio.to_thread(read_now, broker.address, item))
        assert (failed.reason, str(failed)[:22]) == (RangeFault.COMPACTED, "a-0@0: compacted: 50 r")


async def test_snapshot_with_since_counts_only_its_new_range() -> None:
    async with two_topics() as broker:
        first = await taken(broker)
        holding(broker.partition("a", 0), batch(b"50"))
        second = await taken(broker, since=first)
        assert second.records() == {"a": 1, "b": 0}
        assert second.topics["a"].partitions[0].counts == (Counted(50, 51, 1, digest([50])),)
        assert [each.offsets for each in second.diff(first)] == [1, 0, 0]


async def test_counting_skips_records_deleted_by_retention() -> None:
    async with two_topics() as broker:
        first = await taken(broker)
        holding(broker.partition("a", 0), *(batch(b"more") for _ in range(10)))
        broker.partition("a", 0).start = 55
        second = await taken(broker, since=first)
        (item, _, _) = second.ranges()
        assert (item.start, item.end) == (50, 60)
        failed = failure(await asyncio.to_thread(read_now, broker.address, item))
        assert failed.reason is RangeFault.AGED_OUT
        found = await asyncio.to_thread(read_now, broker.address, item, fail_on_data_loss=False)
        assert (found.failed, found.lost) == (None, [(50, 55)])


async def test_undecodable_batch_fails_the_counting() -> None:
    async with two_topics() as broker:
        log = broker.partition("a", 0)
        compact(log, lambda offset: offset != 7)
        log.batches[1] = with_wrong_record_length(log.batches[1])
        with pytest.raises(RangeFailed, match=r"^a-0@5: the batch cannot be decoded: ") as caught:
            await taken(broker)
        assert caught.value.reason is RangeFault.CORRUPT


def with_wrong_record_length(data: bytes) -> bytes:
    """Return the batch with a wrong length of its first record and a valid CRC."""
    found = bytearray(data)
    found[HEADER_SIZE] ^= 0x40
    seal(found, 0, len(found))
    return bytes(found)


async def test_warning_says_whether_a_read_detects_compaction() -> None:
    async with two_topics(b="compact") as broker:
        snap = await taken(broker)
        uncounted = replace(snap.topics["b"].partitions[0], counts=())
        topics = {**snap.topics, "b": TopicCut(str(OLD), {0: uncounted})}
        standing = await asyncio.to_thread(
            lambda: replace(snap, topics=topics).is_readable(conf=CONF)
        )
        assert standing
        counted, other = standing.warnings
        assert counted.startswith("a is compacted: ")
        assert "and a read then fails, because the records were counted" in counted
        assert other.startswith("b is compacted: ") and "and a read does not detect this" in other


async def test_recount_finds_records_removed_by_compaction() -> None:
    async with two_topics() as broker:
        snap = await taken(broker)

        async def asked() -> Readability:
            return await asyncio.to_thread(lambda: snap.is_readable(conf=CONF, recount=True))

        assert await asked() == Readability(), "nothing is left to warn of"
        compact(broker.partition("a", 0), lambda offset: offset not in (7, 9))
        found = await asked()
        (problem,) = found.problems
        assert problem.startswith("a-0@0: compacted: 50 records were counted from 0 to 50 when the")
        assert ", 48 are there now: " in problem
        broker.partition("a", 0).start = 2
        (problem,) = (await asked()).problems
        assert problem.startswith("a-0@0: the partition now begins at offset 2")


# Tasks


def in_parts(*edges: int, partition: int = 0) -> PartitionRange:
    counts = tuple(
        Counted(first, beyond, beyond - first, digest(range(first, beyond)))
        for first, beyond in pairwise(edges)
    )
    return PartitionRange("t", partition, edges[0], edges[-1], counts=counts)


def pieces(ranges: Collection[PartitionRange], limits: Limits) -> list[PartitionRange]:
    cut = split(list(ranges), limits, {TopicPartition("t", 0): 1.0})
    return with_counts(list(ranges), align(cut, counted_starts(list(ranges), cut)))


def test_tasks_begin_at_part_boundaries() -> None:
    item = in_parts(10, 40, 70, 75, 110)
    found = pieces([item], Limits(max_bytes=20))
    assert [(each.start, each.end) for each in found] == [(10, 40), (40, 70), (70, 75), (75, 110)]
    assert [each for piece in found for each in piece.counts] == list(item.counts)
    found = pieces([item], Limits(min_pieces=2))
    assert [(each.start, each.end) for each in found] == [(10, 40), (40, 110)]
    assert [each for piece in found for each in piece.counts] == list(item.counts)


def test_uncounted_ranges_are_split_at_batches() -> None:
    plain = PartitionRange("t", 1, 0, 100)
    found = pieces([in_parts(0, 100), plain], Limits(max_offsets=50))
    assert [(each.partition, each.start, each.end) for each in found] == [
        *((0, 0, 100), (1, 0, 50), (1, 50, 100)),
    ]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 60),
    st.integers(1, 20),
)
def test_tasks_cover_the_range_with_all_counts(
    sizes: list[int], offsets_max: int, least: int
) -> None:
    edges = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    item = in_parts(*edges)
    found = pieces([item], Limits(max_offsets=offsets_max, min_pieces=least))
    assert [found[0].start, *(each.end for each in found)] == [
        *(each.start for each in found),
        edges[-1],
    ]
    assert all(each.counts for each in found)
    assert [each for piece in found for each in piece.counts] == list(item.counts)


async def test_each_task_finds_its_counted_records() -> None:
    async with two_topics() as broker:
        broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: DescribeLogDirsResponse()
        log = broker.partition("a", 0)
        parts = CountedParts(0, 50, part_records=10)
        for data in log.batches:
            parts.add(read_header(data), data, 0)
        whole = PartitionRange("a", 0, 0, 50, str(OLD), 7, 0, parts.finish())
        options = {"bootstrap.servers": broker.address, **CONF}
        cut = await asyncio.to_thread(pieces_blocking, options, [whole], Limits(max_offsets=17))
        assert [(each.start, each.end) for each in cut] == [(0, 10), (10, 30), (30, 50)]
        assert tuple(each for piece in cut for each in piece.counts) == whole.counts
        compact(log, lambda offset: offset != 12)
        found = [await asyncio.to_thread(read_now, broker.address, piece) for piece in cut]
        assert [each.values for each in found[::2]] == [numbers(0, 10), numbers(30, 50)]
        assert str(failure(found[1])).startswith("a-0@10: compacted: 10 records were counted from")


def test_document_of_a_counted_snapshot_is_small() -> None:
    counts = tuple(
        Counted(place, place + 10**9, 10**9, DIGEST_END - 1)
        for place in range(10**12, 10**12 + PARTS_MAX * 10**9, 10**9)
    )
    cut = PartitionCut(10**12, counts[-1].beyond, 0, 7, counts)
    snap = Snapshot("01J", "c", 1, "read_committed", {"t": TopicCut("", {0: cut})})
    assert len(snap.to_json()) < 4_000
