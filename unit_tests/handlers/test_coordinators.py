"""Tests of FindCoordinator: the first request creates the topic, whose leaders are the
coordinators."""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from pybroker.applog.rate_limit import LogLimit
from pybroker.clock import ManualClock
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.internal_topic import InternalTopic, NewTopic
from pybroker.handlers.topic_admin import ZooKeeperTopicAdmin
from pybroker.model import Endpoint
from pybroker.replication.internal_log import InternalLog
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from unit_tests.handlers.bench import BROKER_ID, NOW_MS, Bench

TOPIC = "__consumer_offsets"
SMALL = {"offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "1"}


async def find(
    bench: Bench, key: str = "g", version: int = 3, key_type: int = 0
) -> FindCoordinatorResponse:
    request = FindCoordinatorRequest(key=key, key_type=key_type)
    answer: FindCoordinatorResponse = await bench.ask(ApiKey.FIND_COORDINATOR, version, request)
    return answer


@pytest.mark.parametrize("version", range(5))
async def test_the_first_request_creates_the_topic(tmp_path: Path, version: int) -> None:
    async with Bench(tmp_path, properties=SMALL) as bench:
        request = FindCoordinatorRequest(key="g")
        if version == 4:
            request = FindCoordinatorRequest(coordinator_keys=["g", ""])
        answer = await bench.ask(ApiKey.FIND_COORDINATOR, version, request)
        said = {0: None, 4: ""}.get(version, "NONE")
        for found in answer.coordinators if version == 4 else [answer]:
            assert found.error_message == said, "as Kafka 3.9 says it"
            assert found.error_code == ErrorCode.NONE
            assert (found.node_id, found.host, found.port) == (BROKER_ID, "broker.example", 9092)
        topic = bench.app.metadata.topic(TOPIC)
        assert topic is not None and len(topic.partitions) == 3
        node = bench.tree.node(paths.topic_config(TOPIC))
        assert node is not None
        assert json.loads(node[0])["config"] == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }


async def test_concurrent_requests_create_one_topic(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=SMALL) as bench:
        answers = await asyncio.gather(*(find(bench, f"g{number}") for number in range(20)))
        assert {answer.error_code for answer in answers} == {ErrorCode.NONE}


async def test_too_few_brokers_for_the_replication_factor(tmp_path: Path) -> None:
    async with Bench(tmp_path) as bench:
        answer = await find(bench)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert answer.error_message is not None and "larger than available" in answer.error_message
        assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
        assert bench.app.metadata.topic(TOPIC) is None


async def test_a_coordinator_without_the_listener_is_not_available(tmp_path: Path) -> None:
    endpoints = (Endpoint("PLAINTEXT", "a", 1), Endpoint("INSIDE", "b", 2))
    async with Bench(tmp_path, properties=SMALL, endpoints=endpoints) as bench:
        request = FindCoordinatorRequest(key="g")
        answer = await bench.ask(ApiKey.FIND_COORDINATOR, 3, request, listener="INSIDE")
        assert (answer.error_code, answer.host, answer.port) == (ErrorCode.NONE, "b", 2)
        answer = await bench.ask(ApiKey.FIND_COORDINATOR, 3, request, listener="OUTSIDE")
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_the_leader_loads_its_shards_and_fences_them(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=SMALL) as bench:
        await find(bench)
        shards = bench.app.groups.shards
        await shards.settled()
        assert sorted(shards.serving()) == [0, 1, 2]
        for partition in range(3):
            node = bench.tree.node(paths.coordinator(partition))
            assert node is not None
            content = json.loads(node[0])
            assert (content["broker"], content["leader_epoch"]) == (BROKER_ID, 0)
            assert shards.shard_for(partition).context.fence_version == node[1].version


async def test_a_coordinator_that_may_have_been_replaced_does_not_name_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise new members would wait for a coordinator that cannot store anything while it is cut
    off."""
    async with Bench(tmp_path, properties=SMALL) as bench:
        assert (await find(bench)).error_code == ErrorCode.NONE
        await bench.app.groups.shards.settled()
        with monkeypatch.context() as cut_off:
            cut_off.setattr(InternalLog, "has_zookeeper_lease", property(lambda _: False))
            answer = await find(bench)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)
        assert (await find(bench)).error_code == ErrorCode.NONE


async def test_a_recreated_group_topic_has_its_new_number_of_partitions(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=SMALL) as bench:
        await find(bench)
        groups = bench.app.groups
        await groups.shards.settled()
        names = [f"group-{number}" for number in range(20)]
        before = [groups.topic.partition_of(name) for name in names]
        await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request(TOPIC))
        assert groups.shards.serving() == {}
        with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
            groups.topic.partition_of(names[0])
        await bench.create(TOPIC, 7)
        assert (await find(bench)).error_code == ErrorCode.NONE
        await groups.shards.settled()
        assert sorted(groups.shards.serving()) == list(range(7))
        after = [groups.topic.partition_of(name) for name in names]
        assert before == [partition_of(name, 3) for name in names]
        assert after == [partition_of(name, 7) for name in names]


async def test_the_number_of_partitions_is_not_taken_from_partial_metadata(
    tmp_path: Path,
) -> None:
    """A controller may send a topic in several UpdateMetadata commands."""
    async with Bench(tmp_path, properties=SMALL) as bench:
        await find(bench)
        stored = InternalTopic(
            TOPIC,
            metadata=bench.app.metadata,
            topics=ThreePartitions(),
            new_topic=lambda: NewTopic(1, 1),
            clock=bench.clock,
            log_limit=LogLimit(bench.clock),
        )
        topic = bench.app.metadata.topic(TOPIC)
        assert topic is not None
        del topic.partitions[2]
        await stored.settle(0)
        assert stored.partition_of("ab") == partition_of("ab", 3) != partition_of("ab", 2)
        with pytest.raises(BrokerError, match="partition 2 has no leader"):
            stored.leader_of(2)
        assert stored.leader_of(1) == BROKER_ID
        topic.topic_id = uuid.UUID(int=1)  # another topic of that name
        with pytest.raises(BrokerError, match="COORDINATOR_NOT_AVAILABLE"):
            stored.partition_of("ab")


async def test_a_failed_topic_creation_is_not_repeated_with_every_request(tmp_path: Path) -> None:
    clock = ManualClock(NOW_MS)
    async with Bench(tmp_path) as bench:
        topics = ThreePartitions()
        topic = InternalTopic(
            TOPIC,
            metadata=bench.app.metadata,
            topics=topics,
            new_topic=lambda: NewTopic(3, 3),
            clock=clock,
            log_limit=LogLimit(clock),
        )
        for seconds, tries in ((0, 1), (0.4, 1), (0.2, 2)):
            clock.advance(seconds)
            with pytest.raises(BrokerError, match="only one broker"):
                await topic.settle(0)
            assert topics.creations == tries


class ThreePartitions(ZooKeeperTopicAdmin):
    """A TopicAdmin with one topic of three partitions; it creates none."""

    def __init__(self) -> None:
        self.creations = 0

    async def create(self, name: str, **wanted: Any) -> Any:
        self.creations += 1
        raise BrokerError(ErrorCode.INVALID_REPLICATION_FACTOR, "there is only one broker")

    async def stored_count(self, name: str) -> tuple[uuid.UUID | None, int] | None:
        return None, 3
