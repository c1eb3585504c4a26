"""Tests of taking snapshots: the result for each spec, and one line for a spec that cannot be
satisfied."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pybroker.client.errors import NoBrokers
from pybroker.client.offset_lookup import EARLIEST, LATEST
from pybroker.clock import ManualClock
from pybroker.errors import ConfigError, ErrorCode
from pybroker.records.builder import BatchBuilder
from pybroker.spark import planning, snapshot
from pybroker.spark.planning import AtTime, SnapshotSpec, new_id
from pybroker.spark.snapshot_model import PartitionCut, Snapshot, SnapshotError, TopicCut
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import DescribeConfigsResponse
from pybroker.wire.messages.metadata import MetadataRequest
from unit_tests.client.fake_broker import LOSE_REQUEST, FakeBroker

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
QUICK = {"retry.backoff.ms": "1", "retry.backoff.max.ms": "5", "bootstrap.timeout.ms": "500"}


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "UNKNOWN_TOPIC_LIMIT_S", 0.1)


def fill(broker: FakeBroker, topic: str, partition: int, count: int, first_ms: int = 1_000) -> None:
    """Append records with rising timestamps."""
    for number in range(count):
        builder = BatchBuilder()
        builder.append(first_ms + number, b"k", b"v")
        broker.partition(topic, partition).append(builder.build())


def two_partitions() -> FakeBroker:
    broker = FakeBroker({"orders": 2})
    broker.topic_ids["orders"] = OLD
    fill(broker, "orders", 0, 10)
    fill(broker, "orders", 1, 4)
    broker.partition("orders", 0).start = 3
    broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda _: DescribeConfigsResponse()
    return broker


async def plan(broker: FakeBroker, **spec: Any) -> Snapshot:
    options = {"bootstrap.servers": broker.address, **QUICK}
    return await asyncio.to_thread(planning.plan_blocking, options, SnapshotSpec(**spec))


async def refusal(broker: FakeBroker, **spec: Any) -> str:
    with pytest.raises(SnapshotError) as caught:
        await plan(broker, **spec)
    text = str(caught.value)
    assert "\n" not in text
    return text


def ends(snap: Snapshot) -> dict[int, tuple[int, int]]:
    return {
        number: (cut.start, cut.end) for number, cut in snap.topics["orders"].partitions.items()
    }


async def test_a_snapshot_holds_the_ranges_of_all_partitions() -> None:
    async with two_partitions() as broker:
        snap = await plan(broker, topics=["orders"])
        assert snap.topics == {
            "orders": TopicCut(
                str(OLD), {0: PartitionCut(3, 10, 3, 7), 1: PartitionCut(0, 4, 0, 7)}
            )
        }
        assert (snap.cluster_id, snap.isolation, snap.parent) == ("fake", "read_committed", None)
        assert snap.bootstrap == broker.address
        assert Snapshot.from_json(snap.to_json()) == snap
        assert len(broker.requests(MetadataRequest)) <= 2


async def test_a_topic_without_records_is_an_empty_range() -> None:
    async with FakeBroker({"orders": 1}) as broker:
        assert ends(await plan(broker, topics=["orders"])) == {0: (0, 0)}


async def test_snapshot_with_since_starts_where_the_earlier_snapshot_ends() -> None:
    async with two_partitions() as broker:
        first = await plan(broker, topics=["orders"])
        fill(broker, "orders", 0, 2)
        broker.topics["orders"] = 3
        fill(broker, "orders", 2, 1)
        broker.partition("orders", 1).start = 4
        second = await plan(broker, topics=["orders"], since=first)
        assert ends(second) == {0: (10, 12), 1: (4, 4), 2: (0, 1)}
        assert second.parent == first.id
        assert second.id != first.id


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (EARLIEST, LATEST, (3, 10)),
        (5, 8, (5, 8)),
        (0, EARLIEST, (0, 3)),
        (LATEST, LATEST, (10, 10)),
        (AtTime(1_005), AtTime(1_007), (5, 7)),
        (AtTime(9_999), AtTime(9_999), (10, 10)),
        (AtTime(0, or_latest=False), AtTime(9_999), (0, 10)),
        ({"orders": {0: 4}}, {"orders": AtTime(1_006)}, (4, 6)),
    ],
)
async def test_bounds_may_be_offsets_earliest_latest_or_times(
    start: object, end: object, expected: tuple[int, int]
) -> None:
    async with two_partitions() as broker:
        snap = await plan(broker, partitions={"orders": [0]}, starts=start, ends=end)
        assert ends(snap) == {0: expected}


async def test_topics_are_found_by_a_pattern() -> None:
    async with two_partitions() as broker:
        broker.topics |= {"my-orders-2": 1, "users": 1, "__orders": 1}
        snap = await plan(broker, pattern="ord[a-z]rs")
        assert list(snap.topics) == ["my-orders-2", "orders"]
        assert "no topic" in await refusal(broker, pattern="nosuch.*")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "the list of topics is empty: give at least one"),
        ({"topics": ["orders"], "pattern": "x"}, "exclude each other"),
        ({"topics": [""]}, "the topic name is empty: name an existing topic"),
        ({"topics": ["a/b"]}, "characters other than letters"),
        ({"pattern": "("}, "is not a regular expression"),
        ({"topics": ["orders"], "isolation": "x"}, "isolation is 'x', expected read_uncommitted"),
        ({"partitions": {"orders": []}}, "the list of partitions of topic orders is empty"),
        ({"partitions": {"orders": [1, 5]}}, "has no partition 5: choose partitions below 2"),
        ({"topics": ["order"]}, "no topic order at .*: did you mean orders[?]"),
        ({"topics": ["xyz", "orders"]}, "no topic xyz at .*: create it, or give another topic"),
        ({"topics": ["orders"], "ends": {"orders": {0: 9}}}, "orders-1 is missing from the end"),
        (
            {"topics": ["orders"], "starts": {"orders": {1: 0}}},
            "orders-0 is missing from the start",
        ),
        (
            {"topics": ["orders"], "ends": {"users": 5}},
            "topic users in the end offsets is not a chosen topic",
        ),
        (
            {"topics": ["orders"], "ends": {"orders": {0: 9, 1: 3, 2: 1}}},
            "orders-2 in the end offsets is not a chosen partition: leave it out",
        ),
        (
            {"topics": ["orders"], "ends": 11},
            "orders-0 ends at offset 10, so its end offset 11 does not exist yet",
        ),
        (
            {"topics": ["orders"], "ends": {"orders": {0: 9, 1: 4}}, "starts": 10},
            "orders-1 ends at",
        ),
        (
            {"topics": ["orders"], "ends": 2},
            "range of orders-0 starts at offset 3, after its end 2: give an",
        ),
        ({"topics": ["orders"], "ends": -7}, "the end offset of orders-0 is -7: give 0 or more"),
        (
            {"topics": ["orders"], "starts": AtTime(9_999, or_latest=False)},
            "orders-0 has no record with the timestamp 9999 or later for its start",
        ),
    ],
)
async def test_an_impossible_spec_is_refused_in_one_line(spec: dict[str, Any], text: str) -> None:
    async with two_partitions() as broker:
        found = await refusal(broker, **spec)
        assert re.search(text, found), found


def other(snap: Snapshot, **changes: Any) -> Snapshot:
    """Return the snapshot with another range of partition 0, or with another topic id."""
    cuts = dict(snap.topics["orders"].partitions)
    topic_id = changes.pop("topic_id", snap.topics["orders"].topic_id)
    extra = changes.pop("extra", {})
    if changes:
        cuts[0] = replace(cuts[0], **changes)
    return replace(snap, topics={"orders": TopicCut(topic_id, {**cuts, **extra})})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda s, b: other(s, topic_id=str(NEW)),
            "orders-0@10: the topic was deleted and recreated",
        ),
        (
            lambda s, b: other(s, extra={7: PartitionCut(0, 5)}),
            "orders-7@5: the partition does not exist",
        ),
        (
            lambda s, b: other(s, end=12),
            "orders-0@10: leader epoch 7 now ends at offset 10, but the range",
        ),
        (
            lambda s, b: other(s, end=12, leader_epoch=-1),
            "orders-0 now ends at offset 10, before the end of snapshot",
        ),
        (
            lambda s, b: replace(s, cluster_id="other"),
            "of the cluster fake, but the snapshot is of the cluster other",
        ),
        (lambda s, b: replace(s, isolation="read_uncommitted"), "isolation=read_uncommitted"),
        (
            lambda s, b: replace(s, topics={**s.topics, "gone": s.topics["orders"]}),
            "topic gone of snapshot .* is not chosen: add it, or take a snapshot without",
        ),
    ],
)
async def test_an_earlier_snapshot_that_cannot_be_continued_gives_the_reason(
    change: Callable[[Snapshot, FakeBroker], Snapshot], text: str
) -> None:
    async with two_partitions() as broker:
        since = change(await plan(broker, topics=["orders"]), broker)
        found = await refusal(broker, topics=["orders"], since=since)
        assert re.search(text, found), found


async def test_an_end_before_the_earlier_end_is_refused() -> None:
    async with two_partitions() as broker:
        since = await plan(broker, topics=["orders"])
        found = await refusal(broker, topics=["orders"], since=since, ends=AtTime(1_001))
        assert "the range of orders-0 would end at offset 1, before offset" in found


async def test_since_refuses_a_truncated_log_that_has_grown_again() -> None:
    async with two_partitions() as broker:
        since = await plan(broker, topics=["orders"])
        broker.partition("orders", 0).epoch_end = 8
        fill(broker, "orders", 0, 5)
        found = await refusal(broker, topics=["orders"], since=since)
        assert "orders-0@8: leader epoch 7 now ends at offset 8, but the range" in found


async def test_many_faults_give_one_line_of_bounded_length() -> None:
    async with FakeBroker({"orders": 100}) as broker:
        found = await refusal(broker, topics=["orders"], ends=5)
        assert found.endswith("; and 95 more")


async def test_new_topic_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker({}) as broker:
        monkeypatch.setattr(planning, "UNKNOWN_TOPIC_LIMIT_S", 20.0)
        planned = asyncio.ensure_future(plan(broker, topics=["orders"]))
        await broker.until(lambda: len(broker.requests(MetadataRequest)) > 2)
        broker.topics["orders"] = 1
        assert ends(await planned) == {0: (0, 0)}


async def test_planning_retries_after_lost_responses() -> None:
    async with two_partitions() as broker:
        broker.will(ApiKey.METADATA, LOSE_REQUEST)
        broker.will(ApiKey.LIST_OFFSETS, LOSE_REQUEST, LOSE_REQUEST)
        assert ends(await plan(broker, topics=["orders"])) == {0: (3, 10), 1: (0, 4)}


async def test_a_topic_without_permission_is_reported() -> None:
    async with two_partitions() as broker:
        broker.topic_errors["orders"] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "TOPIC_AUTHORIZATION_FAILED" in await refusal(broker, topics=["orders"])


async def test_take_gives_the_snapshot_of_plan(tmp_path: Any) -> None:
    async with two_partitions() as broker:

        def work() -> None:
            first = snapshot.take(broker.address, "orders", conf=QUICK)
            path = tmp_path / "first.json"
            first.save(path)
            fill(broker, "orders", 1, 3)
            second = snapshot.take(broker.address, since=path, conf=QUICK)
            assert ends(second) == {0: (10, 10), 1: (4, 7)}
            assert second.parent == first.id
            cut = snapshot.take(
                broker.address, ["orders"], until={"orders": {0: 5, 1: 6}}, conf=QUICK
            )
            assert ends(cut) == {0: (3, 5), 1: (0, 6)}
            assert (
                ends(snapshot.take(broker.address, ["orders"], until=1_004, conf=QUICK))[0][1] == 4
            )
            for wrong in ("earliest", "1", -1, 2**63, True):
                with pytest.raises(SnapshotError, match="until is"):
                    snapshot.take(broker.address, ["orders"], until=wrong, conf=QUICK)
            with pytest.raises(ConfigError):
                snapshot.take(broker.address, ["orders"], conf={"nosuch": "1"})
            with pytest.raises(SnapshotError, match="cannot be read"):
                snapshot.take(broker.address, since=tmp_path / "nosuch.json")

        await asyncio.to_thread(work)
        work_in_loop = snapshot.take  # in a notebook, the event loop is running while a cell runs
        with pytest.raises(NoBrokers):
            work_in_loop("127.0.0.1:1", "orders", conf=QUICK)


def test_ids_sort_by_time() -> None:
    class Dice:
        def randrange(self, stop: int, /) -> int:
            return stop - 1

        def randbytes(self, n: int, /) -> bytes:
            return b"\xff" * n

    clock = ManualClock()
    first = new_id(clock.wall_ms(), Dice())
    clock.advance(0.001)
    assert first < new_id(clock.wall_ms(), Dice())
    assert (len(first), new_id(0, Dice())) == (26, "0" * 10 + "Z" * 16)
