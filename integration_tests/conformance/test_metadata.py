"""Metadata, CreateTopics and DeleteTopics, one test a sentence."""

from __future__ import annotations

import uuid
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.process import wait_until
from integration_tests.stored import partition_folder
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create,
    create_topic,
    metadata,
    produce,
)
from pybroker.errors import ErrorCode
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pybroker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

NOT_ASKED: Final = -(2**31)
EVERY_VERSION: Final = range(13)


def names(answer: MetadataResponse) -> set[str]:
    return {t.name for t in answer.topics if t.name is not None}


def all_topics(connection: Connection, version: int) -> MetadataResponse:
    request = MetadataRequest(topics=[] if version == 0 else None, allow_auto_topic_creation=True)
    return connection.ask(version, request, MetadataResponse)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_topic_is_described_in_every_version(
    broker: Broker, connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic, partitions=3)
    answer = metadata(connection, topic, version=version)
    (node,) = answer.brokers
    assert (node.host, node.port) == ("127.0.0.1", broker.port)
    (found,) = answer.topics
    assert (found.error_code, found.name, found.is_internal) == (0, topic, False)
    assert sorted(p.partition_index for p in found.partitions) == [0, 1, 2]
    for partition in found.partitions:
        assert partition.error_code == 0
        assert partition.leader_id == node.node_id
        assert partition.replica_nodes == partition.isr_nodes == [node.node_id]
        assert partition.offline_replicas == []
    if version >= 1:
        assert answer.controller_id == node.node_id
    if version >= 2:
        assert answer.cluster_id
    if version >= 7:
        assert {p.leader_epoch for p in found.partitions} == {0}
    if version >= 10:
        assert found.topic_id != uuid.UUID(int=0)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_all_topics_is_null_and_in_version_0_empty(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    assert topic in names(all_topics(connection, version))


@pytest.mark.parametrize("version", EVERY_VERSION[1:])
def test_an_empty_list_asks_for_the_brokers_only(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    answer = metadata(connection, version=version)
    assert answer.topics == [] and len(answer.brokers) == 1


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_a_topic_is_created_by_asking_where_that_is_allowed(
    connection: Connection, topic: str, version: int
) -> None:
    first = metadata(connection, topic, version=version, auto_create=True)
    assert first.topics[0].error_code in (
        ErrorCode.NONE,  # Apache does not wait for the creation
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
    )
    wait_until(
        lambda: metadata(connection, topic).topics[0].error_code == 0, what=f"{topic} is created"
    )


def test_a_topic_is_not_created_where_the_request_forbids_it(
    connection: Connection, topic: str
) -> None:
    for _ in range(2):
        answer = metadata(connection, topic, version=4, auto_create=False)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in names(all_topics(connection, 12))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_an_impossible_name_gets_error_17(connection: Connection, name: str) -> None:
    answer = metadata(connection, name, auto_create=True)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert name not in names(all_topics(connection, 12))


@pytest.mark.parametrize("version", [8, 9, 10])
def test_authorized_operations_that_were_not_asked_are_the_smallest_number(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    answer = metadata(connection, topic, version=version)
    assert answer.cluster_authorized_operations == NOT_ASKED
    assert answer.topics[0].topic_authorized_operations == NOT_ASKED


def test_a_topic_is_found_by_its_id(connection: Connection, topic: str) -> None:
    topic_id = create_topic(connection, topic).topic_id
    assert ask_by_id(connection, topic_id).topics[0].name == topic


def ask_by_id(connection: Connection, topic_id: uuid.UUID, version: int = 12) -> MetadataResponse:
    name = None if version >= 12 else ""
    wanted = MetadataRequestTopic(topic_id=topic_id, name=name)
    return connection.ask(version, MetadataRequest(topics=[wanted]), MetadataResponse)


def test_an_unknown_id_gets_error_100(connection: Connection) -> None:
    unknown = uuid.uuid4()
    (found,) = ask_by_id(connection, unknown).topics
    assert (found.error_code, found.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, unknown)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_versions_10_and_11_get_error_42(connection: Connection, version: int) -> None:
    (found,) = ask_by_id(connection, uuid.uuid4(), version).topics
    assert found.error_code == ErrorCode.INVALID_REQUEST


def test_internal_topics_are_marked(connection: Connection) -> None:
    create_topic(connection, "__transaction_state")
    (found,) = metadata(connection, "__transaction_state").topics
    assert found.is_internal


# CreateTopics


def wanted(name: str, **fields: object) -> CreatableTopic:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    for field, value in fields.items():
        setattr(topic, field, value)
    return topic


def assignment(partition: int, *brokers: int) -> CreatableReplicaAssignment:
    return CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))


def config(name: str, value: str) -> CreatableTopicConfig:
    return CreatableTopicConfig(name=name, value=value)


def broker_id(connection: Connection) -> int:
    return metadata(connection).brokers[0].node_id


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_in_every_version(
    connection: Connection, topic: str, version: int
) -> None:
    assert create(connection, wanted(topic, num_partitions=2), version=version).error_code == 0
    (found,) = metadata(connection, topic).topics
    assert (found.error_code, len(found.partitions)) == (0, 2)


def test_validate_only_creates_nothing(connection: Connection, topic: str) -> None:
    result = create(connection, wanted(topic), validate_only=True)
    assert result.error_code == 0
    assert metadata(connection, topic).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_validate_only_finds_faults(connection: Connection, topic: str) -> None:
    result = create(connection, wanted(topic, num_partitions=0), validate_only=True)
    assert result.error_code == ErrorCode.INVALID_PARTITIONS


def test_partitions_may_be_assigned_explicitly(connection: Connection, topic: str) -> None:
    broker = broker_id(connection)
    assignments = [assignment(0, broker), assignment(1, broker)]
    result = create(
        connection,
        wanted(topic, num_partitions=-1, replication_factor=-1, assignments=assignments),
    )
    assert result.error_code == 0, result
    (found,) = metadata(connection, topic).topics
    assert sorted((p.partition_index, *p.replica_nodes) for p in found.partitions) == [
        (0, broker),
        (1, broker),
    ]


def test_the_answer_tells_the_configuration(connection: Connection, topic: str) -> None:
    configs = [config("retention.ms", "123456"), config("cleanup.policy", "compact")]
    result = create(connection, wanted(topic, configs=configs))
    assert (result.num_partitions, result.replication_factor) == (1, 1)
    assert result.configs is not None
    told = {c.name: (c.value, c.config_source) for c in result.configs}
    assert told["retention.ms"] == ("123456", 1)  # 1: a topic's own configuration
    assert told["cleanup.policy"] == ("compact", 1)
    assert told["max.message.bytes"] == ("1048588", 5)  # 5: the default
    assert {"segment.bytes", "min.insync.replicas", "message.timestamp.type"} <= told.keys()


def test_counts_of_minus_1_are_the_defaults(connection: Connection, topic: str) -> None:
    result = create(connection, wanted(topic, num_partitions=-1, replication_factor=-1))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 1, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": [assignment(0, 0)]}, ErrorCode.INVALID_REQUEST),
        ({"configs": [config("no.such.option", "1")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [config("retention.ms", "soon")]}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_an_impossible_topic_gets_its_error(
    connection: Connection, topic: str, fields: dict[str, object], code: ErrorCode
) -> None:
    result = create(connection, wanted(topic, **fields))
    assert (result.error_code, bool(result.error_message)) == (code, True)
    assert metadata(connection, topic).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    "brokers",
    [  # Apache takes the first two, and then has a topic that nobody can lead
        pytest.param((), id="nobody", marks=pytest.mark.ours),
        pytest.param((4711,), id="unknown broker", marks=pytest.mark.ours),
        pytest.param((None, None), id="twice the same"),
    ],
)
def test_an_impossible_assignment_gets_error_39(
    connection: Connection, topic: str, brokers: tuple[int | None, ...]
) -> None:
    ours = broker_id(connection)
    replicas = [ours if broker is None else broker for broker in brokers]
    result = create(
        connection,
        wanted(
            topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=[assignment(0, *replicas)],
        ),
    )
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_second_topic_of_the_name_gets_error_36(connection: Connection, topic: str) -> None:
    create_topic(connection, topic)
    assert create(connection, wanted(topic)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_a_topic_of_an_impossible_name_gets_error_17(connection: Connection, name: str) -> None:
    assert create(connection, wanted(name)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_that_differs_in_dot_and_underscore_only_gets_error_17(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, f"{topic}.a")
    assert create(connection, wanted(f"{topic}_a")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_that_is_asked_for_twice_gets_error_42_once_or_twice_and_is_not_created(
    connection: Connection, topic: str
) -> None:
    request = CreateTopicsRequest(topics=[wanted(topic), wanted(topic)], timeout_ms=10_000)
    answer = connection.ask(7, request, CreateTopicsResponse)
    assert {t.error_code for t in answer.topics} == {ErrorCode.INVALID_REQUEST}
    assert metadata(connection, topic).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# DeleteTopics


def delete(
    connection: Connection, version: int, name: str, topic_id: uuid.UUID | None = None
) -> int:
    """The error code of deleting one topic, by id where one is given."""
    if version <= 5:
        request = DeleteTopicsRequest(topic_names=[name], timeout_ms=15_000)
    else:
        state = (
            DeleteTopicState(name=None, topic_id=topic_id)
            if topic_id
            else DeleteTopicState(name=name)
        )
        request = DeleteTopicsRequest(topics=[state], timeout_ms=15_000)
    (result,) = connection.ask(version, request, DeleteTopicsResponse).responses
    return result.error_code


@pytest.mark.parametrize("version", range(7))
def test_a_deleted_topic_is_gone(
    broker: Broker, connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, batch_of(b"doomed"))
    folder = partition_folder(broker.data, topic)
    assert delete(connection, version, topic) == 0
    assert metadata(connection, topic).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: not folder.exists(), what=f"{folder} is renamed or removed")


def test_a_deleted_topic_may_be_created_again(connection: Connection, topic: str) -> None:
    old_id = create_topic(connection, topic).topic_id
    produce(connection, topic, batch_of(b"doomed"))
    assert delete(connection, 6, topic) == 0
    wait_until(lambda: create(connection, wanted(topic)).error_code == 0, what="created again")
    assert metadata(connection, topic).topics[0].topic_id != old_id
    assert produce(connection, topic, batch_of(b"first")).base_offset == 0


def test_a_topic_may_be_deleted_by_its_id(connection: Connection, topic: str) -> None:
    topic_id = create_topic(connection, topic).topic_id
    assert delete(connection, 6, topic, topic_id) == 0
    assert metadata(connection, topic).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleting_what_is_not_there_gets_error_3_and_by_id_100(
    connection: Connection, topic: str
) -> None:
    assert delete(connection, 1, topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(connection, 6, topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(connection, 6, topic, uuid.uuid4()) == ErrorCode.UNKNOWN_TOPIC_ID
