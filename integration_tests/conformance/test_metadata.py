"""Tests of Metadata and DescribeCluster."""

from __future__ import annotations

import uuid
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.conftest import BrokerMaker
from integration_tests.wire_client import Connection, create_topic, internal_topic, metadata
from pybroker.errors import ErrorCode
from pybroker.wire.messages.cluster import DescribeClusterRequest, DescribeClusterResponse
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from unit_tests.patience import wait_until

NOT_ASKED: Final = -(2**31)
ALL_OF_A_TOPIC: Final = 3576
ALL_OF_A_CLUSTER: Final = 8096
"""The bits of all operations, which are allowed without an authorizer."""
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
    (node,) = answer.brokers
    assert (answer.topics, answer.controller_id) == ([], node.node_id)
    assert bool(answer.cluster_id) == (version >= 2)


@pytest.mark.parametrize("version", EVERY_VERSION)
def test_metadata_creates_a_topic_if_allowed(
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


@pytest.mark.ours
def test_the_answer_of_the_request_that_creates_a_topic_names_its_leader(
    connection: Connection, topic: str
) -> None:
    """Apache answers before the topic exists."""
    for version in EVERY_VERSION:
        name = f"{topic}-{version}"
        (made,) = metadata(connection, name, version=version, auto_create=True).topics
        (partition,) = made.partitions
        assert (made.error_code, partition.error_code) == (0, 0)
        assert partition.leader_id >= 0


@pytest.mark.parametrize("version", EVERY_VERSION[4:])
def test_a_topic_is_not_created_where_the_request_forbids_it(
    connection: Connection, topic: str, version: int
) -> None:
    for _ in range(2):
        answer = metadata(connection, topic, version=version, auto_create=False)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert topic not in names(all_topics(connection, 12))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_an_invalid_topic_name_gets_error_17(connection: Connection, name: str) -> None:
    for version in EVERY_VERSION:
        (found,) = metadata(connection, name, version=version, auto_create=True).topics
        assert (found.error_code, found.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)
    assert name not in names(all_topics(connection, 12))


def test_a_topic_with_a_colliding_name_is_not_created(connection: Connection, topic: str) -> None:
    create_topic(connection, f"{topic}.a")
    (found,) = metadata(connection, f"{topic}_a", auto_create=True).topics
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_error_of_one_topic_does_not_affect_other_topics(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    answer = metadata(connection, "bad!", topic, f"{topic}-missing")
    assert {found.name: found.error_code for found in answer.topics} == {
        "bad!": ErrorCode.INVALID_TOPIC_EXCEPTION,
        topic: 0,
        f"{topic}-missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("version", EVERY_VERSION[8:])
def test_authorized_operations_are_the_minimum_integer_without_a_request(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    answer = metadata(connection, topic, version=version)
    assert answer.cluster_authorized_operations == NOT_ASKED
    assert answer.topics[0].topic_authorized_operations == NOT_ASKED


@pytest.mark.parametrize("version", EVERY_VERSION[8:])
def test_authorized_operations_are_returned_on_request(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], include_topic_authorized_operations=True
    )
    request.include_cluster_authorized_operations = version <= 10
    answer = connection.ask(version, request, MetadataResponse)
    assert answer.topics[0].topic_authorized_operations == ALL_OF_A_TOPIC
    of_cluster = ALL_OF_A_CLUSTER if version <= 10 else NOT_ASKED
    assert answer.cluster_authorized_operations == of_cluster


def test_a_topic_is_found_by_its_id(connection: Connection, topic: str) -> None:
    topic_id = create_topic(connection, topic).topic_id
    (found,) = ask_by_id(connection, topic_id).topics
    assert (found.error_code, found.name, found.topic_id) == (0, topic, topic_id)


def ask_by_id(
    connection: Connection, topic_id: uuid.UUID, version: int = 12, name: str | None = None
) -> MetadataResponse:
    wanted = MetadataRequestTopic(topic_id=topic_id, name=name)
    return connection.ask(version, MetadataRequest(topics=[wanted]), MetadataResponse)


def test_an_unknown_id_gets_error_100(connection: Connection) -> None:
    unknown = uuid.uuid4()
    (found,) = ask_by_id(connection, unknown).topics
    assert (found.error_code, found.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, unknown)


@pytest.mark.parametrize("name", [None, "", "named"])
@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_versions_10_and_11_get_error_42(
    connection: Connection, version: int, name: str | None
) -> None:
    (found,) = ask_by_id(connection, uuid.uuid4(), version, name).topics
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert "named" not in names(all_topics(connection, 12))


def test_internal_topics_are_marked(connection: Connection) -> None:
    name = internal_topic(connection)
    for version in EVERY_VERSION[1:]:
        (found,) = metadata(connection, name, version=version).topics
        assert found.is_internal


@pytest.mark.ours
def test_metadata_never_creates_internal_topics(new_broker: BrokerMaker) -> None:
    """Apache creates them."""
    broker = new_broker()
    broker.start()
    with Connection(broker.bootstrap) as connection:
        for version in EVERY_VERSION:
            asked = metadata(connection, "__consumer_offsets", version=version, auto_create=True)
            (found,) = asked.topics
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert found.is_internal is (version >= 1)


# DescribeCluster


@pytest.mark.parametrize("version", [0, 1])
def test_describe_cluster_names_cluster_controller_and_brokers(
    connection: Connection, version: int
) -> None:
    answer = connection.ask(version, DescribeClusterRequest(), DescribeClusterResponse)
    known = metadata(connection)
    assert (answer.error_code, answer.endpoint_type) == (0, 1)
    assert (answer.cluster_id, answer.controller_id) == (known.cluster_id, known.controller_id)
    assert [(node.broker_id, node.host, node.port) for node in answer.brokers] == [
        (node.node_id, node.host, node.port) for node in known.brokers
    ]
    assert answer.cluster_authorized_operations == NOT_ASKED
    asking = DescribeClusterRequest(include_cluster_authorized_operations=True)
    told = connection.ask(version, asking, DescribeClusterResponse)
    assert told.cluster_authorized_operations == ALL_OF_A_CLUSTER


@pytest.mark.parametrize(
    ("endpoint_type", "code", "words"),
    [
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE, "endpoint of type BROKER, but we wanted"),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 3"),
    ],
)
def test_a_broker_describes_brokers_only(
    connection: Connection, endpoint_type: int, code: ErrorCode, words: str
) -> None:
    asking = DescribeClusterRequest(endpoint_type=endpoint_type)
    answer = connection.ask(1, asking, DescribeClusterResponse)
    assert (answer.error_code, answer.brokers) == (code, [])
    assert words in (answer.error_message or "")
