"""Tests of Metadata with unusual options, listeners, lost replicas and malformed nodes."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import (
    Endpoint,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.cluster import DescribeClusterRequest
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from unit_tests.handlers.bench import BROKER_ID, LISTENER, Bench, code, the_only

VERSIONS = range(13)
OTHER_ID = uuid.UUID(int=77)


def by_name(*names: str, **fields: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


def facts(
    topic: str,
    *,
    leader: int = BROKER_ID,
    replicas: tuple[int, ...] = (BROKER_ID,),
    isr: tuple[int, ...] | None = None,
    topic_id: uuid.UUID = OTHER_ID,
    offline: tuple[int, ...] = (),
) -> PartitionFacts:
    state = PartitionState(leader, 5, isr or replicas, 1)
    return PartitionFacts(TopicPartition(topic, 0), topic_id, state, 0, replicas, offline)


async def test_no_topic_is_created_if_auto_creation_is_disabled(tmp_path: Path) -> None:
    forbidding = {"auto.create.topics.enable": "false"}
    async with Bench(tmp_path, properties=forbidding) as bench:
        answer = await bench.ask(ApiKey.METADATA, 9, by_name("missing"))
        assert code(the_only(answer.topics)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert bench.app.metadata.topics == {}


async def test_auto_created_topics_have_the_defaults_of_the_broker(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"num.partitions": "4"}) as bench:
        answer = await bench.ask(ApiKey.METADATA, 9, by_name("made"))
        assert len(the_only(answer.topics).partitions) == 4


async def test_concurrent_metadata_requests_create_a_topic_once(bench: Bench) -> None:
    answers = await asyncio.gather(
        *(bench.ask(ApiKey.METADATA, 9, by_name("made", "too")) for _ in range(5))
    )
    for answer in answers:
        assert [code(topic) for topic in answer.topics] == [ErrorCode.NONE] * 2


async def test_a_failed_auto_creation_returns_its_error(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"default.replication.factor": "3"}) as bench:
        answer = await bench.ask(ApiKey.METADATA, 9, by_name("made"))
        assert code(the_only(answer.topics)) is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_no_topic_is_auto_created_while_zookeeper_does_not_answer(bench: Bench) -> None:
    bench.coord.suspend()
    answer = await bench.ask(ApiKey.METADATA, 9, by_name("made"))
    assert code(the_only(answer.topics)) is ErrorCode.LEADER_NOT_AVAILABLE
    bench.coord.resume()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_leader_without_the_listener_is_5_up_to_version_5_and_72_later(
    tmp_path: Path, version: int
) -> None:
    async with Bench(tmp_path) as bench:
        await bench.create("orders")
        answer = await bench.ask(ApiKey.METADATA, version, by_name("orders"), listener="INTERNAL")
        part = the_only(the_only(answer.topics).partitions)
        late = version >= 6
        expected = ErrorCode.LISTENER_NOT_FOUND if late else ErrorCode.LEADER_NOT_AVAILABLE
        assert code(part) is expected
        assert part.leader_id == -1
        assert answer.brokers == []


async def test_endpoints_are_those_of_the_listener_that_was_asked(tmp_path: Path) -> None:
    endpoints = (Endpoint(LISTENER, "outside", 9092), Endpoint("INTERNAL", "inside", 9093))
    listeners = {
        "listeners": "PLAINTEXT://0.0.0.0:9092,INTERNAL://0.0.0.0:9093",
        "advertised.listeners": "PLAINTEXT://outside:9092,INTERNAL://inside:9093",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
    }
    async with Bench(tmp_path, properties=listeners, endpoints=endpoints) as bench:
        for listener, host, port in (("PLAINTEXT", "outside", 9092), ("INTERNAL", "inside", 9093)):
            for key, version, request in (
                (ApiKey.METADATA, 9, MetadataRequest(topics=[])),
                (ApiKey.DESCRIBE_CLUSTER, 0, DescribeClusterRequest()),
            ):
                answer = await bench.ask(key, version, request, listener=listener)
                broker = the_only(answer.brokers)
                assert (broker.host, broker.port) == (host, port)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_partition_without_a_leader_is_5(bench: Bench, version: int) -> None:
    await bench.tell(facts("orphan", leader=-1))
    answer = await bench.ask(ApiKey.METADATA, version, by_name("orphan"))
    part = the_only(the_only(answer.topics).partitions)
    assert (code(part), part.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_dead_replicas_are_an_error_in_version_0_and_offline_from_version_5(
    bench: Bench, version: int
) -> None:
    await bench.tell(facts("half", replicas=(BROKER_ID, 2), isr=(BROKER_ID,)))
    answer = await bench.ask(ApiKey.METADATA, version, by_name("half"))
    part = the_only(the_only(answer.topics).partitions)
    early = version == 0
    assert code(part) is (ErrorCode.REPLICA_NOT_AVAILABLE if early else ErrorCode.NONE)
    assert part.replica_nodes == ([BROKER_ID] if early else [BROKER_ID, 2])
    assert part.offline_replicas == ([2] if version >= 5 else [])


async def test_offline_replicas_of_the_controller_are_returned(bench: Bench) -> None:
    await bench.tell(facts("bad-disk", leader=-1, offline=(BROKER_ID,)))
    answer = await bench.ask(ApiKey.METADATA, 9, by_name("bad-disk"))
    assert the_only(the_only(answer.topics).partitions).offline_replicas == [BROKER_ID]


DIGITS = "9" * 5000
UNTELLABLE = [
    ("/brokers/topics/foreign", '{"version":1,"partitions":{"2147483648":[1]}}'),
    ("/brokers/topics/foreign", f'{{"version":1,"partitions":{{"{DIGITS}":[1]}}}}'),
    ("/brokers/ids/2147483648", '{"version":5,"endpoints":["PLAINTEXT://h:1"]}'),
    ("/brokers/ids/7", f'{{"version":5,"endpoints":["PLAINTEXT://h:{DIGITS}"]}}'),
    ("/brokers/ids/7", f'{{"version":5,"endpoints":["PLAINTEXT://{"h" * 2**15}:1"]}}'),
    ("/brokers/ids/7", '{"version":5,"endpoints":["PLAINTEXT://h:1"],"rack":"\ud800"}'),
]


@pytest.mark.parametrize(("path", "data"), UNTELLABLE)
async def test_a_node_that_no_message_can_describe_does_not_block_others(
    bench: Bench, path: str, data: str
) -> None:
    await bench.coord.create(path, data.encode(errors="surrogatepass"))
    await bench.create("t")
    answer = await bench.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert [topic.name for topic in answer.topics] == ["t"]
    assert [broker.node_id for broker in answer.brokers] == [BROKER_ID]
