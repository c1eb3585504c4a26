"""Tests of the check whether a snapshot can still be read: its problems and its warnings."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pybroker.client.errors import NoBrokers
from pybroker.errors import ErrorCode
from pybroker.spark.planning import SnapshotSpec, plan_blocking
from pybroker.spark.readability import Readability
from pybroker.spark.snapshot_model import PartitionCut, Snapshot, SnapshotError, TopicCut
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import FakeBroker
from unit_tests.client.held_logs import batch, holding
from unit_tests.client.ranges.readings import NEW, OLD, numbers

CONF = {"retry.backoff.ms": "1", "bootstrap.timeout.ms": "100", "default.api.timeout.ms": "500"}


def configs(**values: str) -> DescribeConfigsResponse:
    rows = [
        DescribeConfigsResourceResult(name=name.replace("_", "."), value=value)
        for name, value in values.items()
    ]
    return DescribeConfigsResponse(
        results=[DescribeConfigsResult(resource_type=2, resource_name="t", configs=rows)]
    )


def one_topic() -> FakeBroker:
    broker = FakeBroker({"t": 2})
    broker.topic_ids["t"] = OLD
    for number in (0, 1):
        holding(broker.partition("t", number), batch(*numbers(0, 10)))
    broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda _: configs(cleanup_policy="delete")
    return broker


async def taken(broker: FakeBroker) -> Snapshot:
    options = {"bootstrap.servers": broker.address, **CONF}
    return await asyncio.to_thread(plan_blocking, options, SnapshotSpec(topics=["t"]))


async def asked(snap: Snapshot) -> Readability:
    return await asyncio.to_thread(lambda: snap.is_readable(conf=CONF))


async def test_snapshot_is_readable_if_no_record_is_missing() -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        assert await asked(snap) == Readability()
        holding(broker.partition("t", 1), batch(b"more"))
        assert await asked(snap)
        broker.partition("t", 1).start = 4
        broker.partition("t", 0).epoch_end = 7
        found = await asked(snap)
        assert not found
        assert [text.partition(":")[0] for text in found.problems] == ["t-0@7", "t-1@0"]


async def test_an_empty_range_is_always_readable() -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        cuts = {0: PartitionCut(3, 3, 0, 7)}
        broker.partition("t", 0).start = 5
        assert await asked(replace(snap, topics={"t": TopicCut(str(OLD), cuts)}))


async def test_a_recreated_topic_and_another_cluster_are_problems() -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        (text,) = (await asked(replace(snap, cluster_id="other"))).problems
        assert "the snapshot is of the cluster other" in text
        broker.topic_ids["t"] = NEW
        found = await asked(snap)
        assert all("deleted and recreated" in text for text in found.problems)
        assert len(found.problems) == 2
        del broker.topics["t"]
        assert all("the partition does not exist" in text for text in (await asked(snap)).problems)


async def test_partition_without_a_response_is_a_problem() -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        broker.without_leader = True
        found = await asked(snap)
        assert not found
        assert "t-0 cannot be checked: LEADER_NOT_AVAILABLE" in found.problems[0]


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({"cleanup_policy": "compact"}, "a key's last record in the snapshot may be removed"),
        ({"cleanup_policy": "delete,compact", "min_compaction_lag_ms": "5"}, "(5)"),
        (
            {"cleanup_policy": "compact", "min_compaction_lag_ms": "99999999"},
            "the last record of each key in the snapshot exists",
        ),
        ({"cleanup_policy": "delete", "min_compaction_lag_ms": "0"}, ""),
    ],
)
async def test_compacted_topic_gives_a_warning(values: dict[str, str], warning: str) -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        snap = replace(snap, created_at_ms=snap.created_at_ms - 10)
        asked_for: list[Message] = []

        def describe(request: Message) -> Message:
            asked_for.append(request)
            return configs(**values)

        broker.handlers[ApiKey.DESCRIBE_CONFIGS] = describe
        found = await asked(snap)
        assert found, "a warning is no problem"
        assert [warning in text for text in found.warnings] == ([True] if warning else [])
        (request,) = asked_for
        assert isinstance(request, DescribeConfigsRequest)


async def test_a_topic_with_unknown_options_gives_a_warning() -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        answer = configs()
        answer.results[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda _: answer
        (text,) = (await asked(snap)).warnings
        assert "t may be compacted, because its options cannot be read" in text


async def test_snapshot_without_brokers_needs_bootstrap() -> None:
    async with one_topic() as broker:
        snap = await taken(broker)
        nowhere = replace(snap, bootstrap="")
        with pytest.raises(SnapshotError, match="give bootstrap='host:port'"):
            nowhere.is_readable()
        found = await asyncio.to_thread(
            lambda: nowhere.is_readable(bootstrap=broker.address, conf=CONF)
        )
        assert found
        with pytest.raises(NoBrokers):
            nowhere.is_readable(bootstrap="127.0.0.1:1", conf=CONF)
