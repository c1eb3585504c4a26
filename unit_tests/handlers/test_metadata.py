"""Metadata and DescribeCluster, by version."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import (
    NO_TOPIC_ID,
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
NOT_ASKED = -(2**31)
OTHER_ID = uuid.UUID(int=77)


def by_name(*names: str, **fields: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)


def without_creation(*names: str) -> MetadataRequest:
    return by_name(*names, allow_auto_topic_creation=False)


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


async def names_of(bench: Bench, version: int, request: MetadataRequest) -> set[str]:
    answer = await bench.ask(ApiKey.METADATA, version, request)
    return {topic.name for topic in answer.topics}


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_topics_are_an_empty_list_in_version_0_and_null_later(
    bench: Bench, version: int
) -> None:
    await bench.create("one")
    await bench.create("two", 3)
    everything = MetadataRequest(topics=[] if version == 0 else None)
    assert await names_of(bench, version, everything) == {"one", "two"}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_an_empty_list_asks_for_brokers_only(bench: Bench, version: int) -> None:
    await bench.create("one")
    answer = await bench.ask(ApiKey.METADATA, version, MetadataRequest(topics=[]))
    assert answer.topics == []
    broker = the_only(answer.brokers)
    assert (broker.node_id, broker.host, broker.port) == (BROKER_ID, "broker.example", 9092)
    assert answer.controller_id == BROKER_ID
    assert answer.cluster_id == (bench.cluster_id if version >= 2 else None)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_is_described_by_the_fields_of_its_version(
    bench: Bench, version: int
) -> None:
    await bench.create("orders", 3)
    answer = await bench.ask(ApiKey.METADATA, version, by_name("orders"))
    topic = the_only(answer.topics)
    assert code(topic) is ErrorCode.NONE
    assert (topic.topic_id != NO_TOPIC_ID) == (version >= 10)
    assert [part.partition_index for part in topic.partitions] == [0, 1, 2]
    for part in topic.partitions:
        assert code(part) is ErrorCode.NONE
        assert part.leader_id == BROKER_ID
        assert part.leader_epoch == (0 if version >= 7 else -1)
        assert part.replica_nodes == part.isr_nodes == [BROKER_ID]
        assert part.offline_replicas == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_missing_topic_is_made_unless_the_client_says_no(
    bench: Bench, version: int
) -> None:
    answer = await bench.ask(ApiKey.METADATA, version, by_name("made"))
    topic = the_only(answer.topics)
    assert code(topic) is ErrorCode.NONE
    assert the_only(topic.partitions).leader_id == BROKER_ID
    implied = version < 4
    request = by_name("missing") if implied else without_creation("missing")
    refused = await bench.ask(ApiKey.METADATA, version, request)
    expected = ErrorCode.NONE if implied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(the_only(refused.topics)) is expected


async def test_nothing_is_made_where_the_broker_forbids_it(tmp_path: Path) -> None:
    forbidding = {"auto.create.topics.enable": "false"}
    async with Bench(tmp_path, properties=forbidding) as bench:
        answer = await bench.ask(ApiKey.METADATA, 9, by_name("missing"))
        assert code(the_only(answer.topics)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert bench.app.metadata.topics == {}


async def test_topics_made_on_the_way_have_the_defaults_of_the_broker(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"num.partitions": "4"}) as bench:
        answer = await bench.ask(ApiKey.METADATA, 9, by_name("made"))
        assert len(the_only(answer.topics).partitions) == 4


async def test_two_clients_that_ask_at_once_make_a_topic_once(bench: Bench) -> None:
    answers = await asyncio.gather(
        *(bench.ask(ApiKey.METADATA, 9, by_name("made", "too")) for _ in range(5))
    )
    for answer in answers:
        assert [code(topic) for topic in answer.topics] == [ErrorCode.NONE] * 2


async def test_a_topic_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"default.replication.factor": "3"}) as bench:
        answer = await bench.ask(ApiKey.METADATA, 9, by_name("made"))
        assert code(the_only(answer.topics)) is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_a_topic_is_not_made_while_zookeeper_is_away(bench: Bench) -> None:
    bench.coord.suspend()
    answer = await bench.ask(ApiKey.METADATA, 9, by_name("made"))
    assert code(the_only(answer.topics)) is ErrorCode.LEADER_NOT_AVAILABLE
    bench.coord.resume()


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
async def test_an_invalid_name_is_17_and_makes_nothing(bench: Bench, name: str) -> None:
    for version in VERSIONS:
        answer = await bench.ask(ApiKey.METADATA, version, by_name(name))
        topic = the_only(answer.topics)
        assert (code(topic), topic.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)
        assert bench.app.metadata.topics == {}


async def test_a_name_that_collides_with_another_topic_is_17(bench: Bench) -> None:
    await bench.create("a.b")
    answer = await bench.ask(ApiKey.METADATA, 9, by_name("a_b"))
    assert code(the_only(answer.topics)) is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", VERSIONS)
async def test_internal_topics_are_marked_and_never_made(bench: Bench, version: int) -> None:
    answer = await bench.ask(ApiKey.METADATA, version, by_name("__consumer_offsets", "plain"))
    internal, plain = answer.topics
    assert code(internal) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert internal.is_internal is (version >= 1)
    assert plain.is_internal is False


async def test_one_topic_that_fails_does_not_hold_up_the_others(bench: Bench) -> None:
    await bench.create("good")
    answer = await bench.ask(ApiKey.METADATA, 9, without_creation("bad!", "good", "missing"))
    assert [(topic.name, code(topic)) for topic in answer.topics] == [
        ("bad!", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("good", ErrorCode.NONE),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_version_12_looks_up_by_id_and_answers_100_for_an_unknown_one(bench: Bench) -> None:
    await bench.create("orders")
    known = bench.app.metadata.topics["orders"].topic_id
    request = MetadataRequest(
        topics=[
            MetadataRequestTopic(topic_id=known, name=None),
            MetadataRequestTopic(topic_id=OTHER_ID, name=None),
        ]
    )
    answer = await bench.ask(ApiKey.METADATA, 12, request)
    found, unknown = answer.topics
    assert (code(found), found.name, found.topic_id) == (ErrorCode.NONE, "orders", known)
    assert (code(unknown), unknown.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert unknown.topic_id == OTHER_ID


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("name", [None, "orders"])
async def test_ids_in_versions_10_and_11_are_42(
    bench: Bench, version: int, name: str | None
) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=OTHER_ID, name=name)])
    answer = await bench.ask(ApiKey.METADATA, version, request)
    assert code(the_only(answer.topics)) is ErrorCode.INVALID_REQUEST
    assert bench.app.metadata.topics == {}


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


async def test_replicas_that_the_controller_calls_offline_are_offline(bench: Bench) -> None:
    await bench.tell(facts("bad-disk", leader=-1, offline=(BROKER_ID,)))
    answer = await bench.ask(ApiKey.METADATA, 9, by_name("bad-disk"))
    assert the_only(the_only(answer.topics).partitions).offline_replicas == [BROKER_ID]


@pytest.mark.parametrize("version", VERSIONS[8:])
async def test_authorized_operations_are_answered_when_asked_for(
    bench: Bench, version: int
) -> None:
    await bench.create("orders")
    silent = await bench.ask(ApiKey.METADATA, version, by_name("orders"))
    assert silent.cluster_authorized_operations == NOT_ASKED
    assert the_only(silent.topics).topic_authorized_operations == NOT_ASKED
    asking = by_name("orders", include_topic_authorized_operations=True)
    asking.include_cluster_authorized_operations = version <= 10
    told = await bench.ask(ApiKey.METADATA, version, asking)
    assert the_only(told.topics).topic_authorized_operations == 3576
    assert told.cluster_authorized_operations == (8096 if version <= 10 else NOT_ASKED)


@pytest.mark.parametrize("version", [0, 1])
async def test_describe_cluster_names_cluster_controller_and_brokers(
    bench: Bench, version: int
) -> None:
    answer = await bench.ask(ApiKey.DESCRIBE_CLUSTER, version, DescribeClusterRequest())
    assert code(answer) is ErrorCode.NONE
    assert answer.endpoint_type == 1
    assert (answer.cluster_id, answer.controller_id) == (bench.cluster_id, BROKER_ID)
    assert the_only(answer.brokers).broker_id == BROKER_ID
    assert answer.cluster_authorized_operations == NOT_ASKED
    asking = DescribeClusterRequest(include_cluster_authorized_operations=True)
    told = await bench.ask(ApiKey.DESCRIBE_CLUSTER, version, asking)
    assert told.cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "expected", "words"),
    [
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE, "endpoint of type BROKER, but we wanted"),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 3"),
    ],
)
async def test_a_broker_describes_brokers_only(
    bench: Bench, endpoint_type: int, expected: ErrorCode, words: str
) -> None:
    asking = DescribeClusterRequest(endpoint_type=endpoint_type)
    answer = await bench.ask(ApiKey.DESCRIBE_CLUSTER, 1, asking)
    assert code(answer) is expected
    assert words in answer.error_message
    assert answer.brokers == []


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
async def test_a_node_that_nobody_can_be_told_of_does_not_hold_up_others(
    bench: Bench, path: str, data: str
) -> None:
    await bench.coord.create(path, data.encode(errors="surrogatepass"))
    await bench.create("t")
    answer = await bench.ask(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert [topic.name for topic in answer.topics] == ["t"]
    assert [broker.node_id for broker in answer.brokers] == [BROKER_ID]
