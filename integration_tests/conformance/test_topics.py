"""Tests of CreateTopics and DeleteTopics."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import pytest

from integration_tests.broker import Broker
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
from unit_tests.patience import PATIENCE_MS, wait_until

CREATE_VERSIONS: Final = range(8)
DELETE_VERSIONS: Final = range(7)
NO_ID: Final = uuid.UUID(int=0)
OURS: Final = -1
"""A placeholder for the id of the broker."""


def wanted(name: str, **fields: Any) -> CreatableTopic:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    for field, value in fields.items():
        setattr(topic, field, value)
    return topic


def assignment(partition: int, *brokers: int) -> CreatableReplicaAssignment:
    return CreatableReplicaAssignment(partition_index=partition, broker_ids=list(brokers))


def config(name: str, value: str | None) -> CreatableTopicConfig:
    return CreatableTopicConfig(name=name, value=value)


def is_there(connection: Connection, topic: str) -> bool:
    (found,) = metadata(connection, topic).topics
    assert found.error_code in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return found.error_code == 0


def broker_id(connection: Connection) -> int:
    return metadata(connection).brokers[0].node_id


@pytest.mark.parametrize("version", CREATE_VERSIONS)
def test_a_created_topic_can_be_used_after_the_answer(
    connection: Connection, topic: str, version: int
) -> None:
    result = create(connection, wanted(topic, num_partitions=2), version=version)
    assert result.error_code == 0
    for partition in (0, 1):
        assert produce(connection, topic, batch_of(b"x"), partition=partition).error_code == 0
    (found,) = metadata(connection, topic).topics
    assert (found.error_code, len(found.partitions)) == (0, 2)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
    assert result.topic_id == (found.topic_id if version >= 7 else NO_ID)


@pytest.mark.parametrize("version", CREATE_VERSIONS[1:])
def test_validate_only_finds_faults_and_creates_nothing(
    connection: Connection, topic: str, version: int
) -> None:
    good = create(connection, wanted(topic), validate_only=True, version=version)
    bad = create(connection, wanted(topic, num_partitions=0), validate_only=True, version=version)
    assert (good.error_code, bad.error_code) == (0, ErrorCode.INVALID_PARTITIONS)
    assert not is_there(connection, topic)


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


@pytest.mark.parametrize("version", CREATE_VERSIONS[5:])
def test_the_answer_has_the_configuration(connection: Connection, topic: str, version: int) -> None:
    configs = [config("retention.ms", "123456"), config("cleanup.policy", "compact")]
    result = create(connection, wanted(topic, configs=configs), version=version)
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


UNASSIGNED: Final = {"num_partitions": -1, "replication_factor": -1}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        # Apache tries to create them
        pytest.param(
            {"num_partitions": 2**31 - 1}, ErrorCode.INVALID_PARTITIONS, marks=pytest.mark.ours
        ),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"assignments": [assignment(0, 0)]}, ErrorCode.INVALID_REQUEST),
        (
            {"assignments": [assignment(1, OURS)], **UNASSIGNED},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            {"assignments": [assignment(0, OURS), assignment(1, OURS, 99)], **UNASSIGNED},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        pytest.param(  # Apache keeps one of the two
            {"assignments": [assignment(0, OURS), assignment(0, OURS)], **UNASSIGNED},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            marks=pytest.mark.ours,
        ),
        (
            {"assignments": [assignment(0, OURS, OURS)], **UNASSIGNED},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        # Apache accepts these two, and then has a topic without a possible leader
        pytest.param(
            {"assignments": [assignment(0)], **UNASSIGNED},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            marks=pytest.mark.ours,
        ),
        pytest.param(
            {"assignments": [assignment(0, 4711)], **UNASSIGNED},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            marks=pytest.mark.ours,
        ),
        ({"configs": [config("no.such.option", "1")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [config("retention.ms", "soon")]}, ErrorCode.INVALID_CONFIG),
        ({"configs": [config("retention.ms", None)]}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_an_invalid_topic_gets_its_error_and_other_topics_are_created(
    connection: Connection, topic: str, fields: dict[str, Any], code: ErrorCode
) -> None:
    impossible = wanted(topic, **fields)
    for each in impossible.assignments:
        each.broker_ids = [
            broker_id(connection) if number == OURS else number for number in each.broker_ids
        ]
    for version in CREATE_VERSIONS:
        request = CreateTopicsRequest(
            topics=[impossible, wanted(f"{topic}-{version}")], timeout_ms=PATIENCE_MS
        )
        results = connection.ask(version, request, CreateTopicsResponse).topics
        told = {result.name: (result.error_code, bool(result.error_message)) for result in results}
        assert told == {topic: (code, version >= 1), f"{topic}-{version}": (0, False)}
    assert not is_there(connection, topic)


def test_a_second_topic_of_the_name_gets_error_36_whatever_else_is_wrong(
    connection: Connection, topic: str
) -> None:
    """A client that ensures that its topic exists continues only after error 36, not after 38.
    With fewer brokers than replicas, 38 would stop it although the topic exists."""
    create_topic(connection, topic)
    for again in (
        wanted(topic),
        wanted(topic, replication_factor=3),
        wanted(topic, num_partitions=0),
        wanted(topic, configs=[config("no.such.option", "1")]),
        wanted(topic, configs=[config("retention.ms", None)]),
        wanted(topic, assignments=[assignment(0, 99)], **UNASSIGNED),
        wanted(topic, assignments=[assignment(0, broker_id(connection))]),
    ):
        for validate_only in (False, True):
            result = create(connection, again, validate_only=validate_only)
            assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250])
def test_a_topic_with_an_invalid_name_gets_error_17(connection: Connection, name: str) -> None:
    for version in CREATE_VERSIONS:
        result = create(connection, wanted(name), version=version)
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_that_differs_only_in_dot_and_underscore_gets_error_17(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, f"{topic}.a")
    assert create(connection, wanted(f"{topic}_a")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("version", CREATE_VERSIONS)
def test_a_topic_that_is_requested_twice_gets_error_42_and_is_not_created(
    connection: Connection, topic: str, version: int
) -> None:
    once = f"{topic}-once"
    request = CreateTopicsRequest(
        topics=[wanted(topic), wanted(once), wanted(topic)], timeout_ms=PATIENCE_MS
    )
    answer = connection.ask(version, request, CreateTopicsResponse)
    assert {t.error_code for t in answer.topics if t.name == topic} == {ErrorCode.INVALID_REQUEST}
    assert [t.error_code for t in answer.topics if t.name == once] == [0]
    assert not is_there(connection, topic)


def test_with_timeout_0_the_topic_is_created_and_the_answer_is_error_7(
    connection: Connection, topic: str
) -> None:
    request = CreateTopicsRequest(topics=[wanted(topic)], timeout_ms=0)
    (result,) = connection.ask(7, request, CreateTopicsResponse).topics
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    wait_until(lambda: is_there(connection, topic), what=f"{topic} is made")


# DeleteTopics


def delete_request(
    version: int, *names: str, ids: Sequence[uuid.UUID] = (), timeout_ms: int = PATIENCE_MS
) -> DeleteTopicsRequest:
    if version <= 5:
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)
    states = [DeleteTopicState(name=name) for name in names]
    states += [DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids]
    return DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)


def delete(connection: Connection, version: int, request: DeleteTopicsRequest) -> list[int]:
    """Delete topics by name. Return their error codes."""
    answer = connection.ask(version, request, DeleteTopicsResponse)
    return [result.error_code for result in answer.responses]


@pytest.mark.parametrize("version", DELETE_VERSIONS)
def test_a_deleted_topic_does_not_exist(
    broker: Broker, connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    produce(connection, topic, batch_of(b"doomed"))
    folder = partition_folder(broker.data, topic)
    answer = connection.ask(version, delete_request(version, topic), DeleteTopicsResponse)
    (result,) = answer.responses
    assert (result.error_code, result.name) == (0, topic)
    assert not is_there(connection, topic)
    unknown = produce(connection, topic, batch_of(b"late"))
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: not folder.exists(), what=f"{folder} is renamed or removed")


@pytest.mark.ours
def test_the_answer_to_a_deletion_by_name_has_the_topic_id(
    connection: Connection, topic: str
) -> None:
    """Apache returns ids only to clients that sent ids."""
    topic_id = create_topic(connection, topic).topic_id
    (result,) = connection.ask(6, delete_request(6, topic), DeleteTopicsResponse).responses
    assert result.topic_id == topic_id


def test_a_deleted_topic_may_be_created_again(connection: Connection, topic: str) -> None:
    old_id = create_topic(connection, topic).topic_id
    produce(connection, topic, batch_of(b"doomed", producer=(7, 0), sequence=5))
    assert delete(connection, 6, delete_request(6, topic)) == [0]
    wait_until(lambda: create(connection, wanted(topic)).error_code == 0, what="created again")
    assert metadata(connection, topic).topics[0].topic_id != old_id
    first = produce(connection, topic, batch_of(b"first", producer=(7, 0), sequence=0))
    assert (first.error_code, first.base_offset) == (0, 0)


def test_topics_may_be_deleted_by_their_ids(connection: Connection, topic: str) -> None:
    topic_id = create_topic(connection, topic).topic_id
    unknown = uuid.uuid4()
    request = delete_request(6, ids=[unknown, topic_id])
    answer = connection.ask(6, request, DeleteTopicsResponse)
    assert {each.topic_id: (each.error_code, each.name) for each in answer.responses} == {
        unknown: (ErrorCode.UNKNOWN_TOPIC_ID, None),
        topic_id: (0, topic),
    }
    assert not is_there(connection, topic)


@pytest.mark.parametrize("version", DELETE_VERSIONS)
def test_unknown_topics_do_not_prevent_the_deletion_of_other_topics(
    connection: Connection, topic: str, version: int
) -> None:
    create_topic(connection, topic)
    request = delete_request(version, f"{topic}-missing", topic, "bad/name")
    answer = connection.ask(version, request, DeleteTopicsResponse)
    assert {each.name: each.error_code for each in answer.responses} == {
        f"{topic}-missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        topic: 0,
        "bad/name": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.ours
@pytest.mark.parametrize("version", DELETE_VERSIONS)
def test_a_deletion_that_names_a_topic_twice_gets_error_42(
    connection: Connection, topic: str, version: int
) -> None:
    """Apache deletes the topic."""
    create_topic(connection, topic)
    codes = delete(connection, version, delete_request(version, topic, topic))
    assert set(codes) == {ErrorCode.INVALID_REQUEST}
    assert is_there(connection, topic)


@pytest.mark.ours
def test_a_deletion_with_both_or_neither_of_name_and_id_gets_error_42(
    connection: Connection, topic: str
) -> None:
    """Without a name and an id, Apache answers 29 (TOPIC_AUTHORIZATION_FAILED)."""
    topic_id = create_topic(connection, topic).topic_id
    for state in (DeleteTopicState(name=topic, topic_id=topic_id), DeleteTopicState(name=None)):
        request = DeleteTopicsRequest(topics=[state], timeout_ms=PATIENCE_MS)
        assert delete(connection, 6, request) == [ErrorCode.INVALID_REQUEST]
    assert is_there(connection, topic)


def test_with_timeout_0_the_deletion_begins_and_the_answer_is_error_7(
    connection: Connection, topic: str
) -> None:
    create_topic(connection, topic)
    request = delete_request(6, topic, timeout_ms=0)
    assert delete(connection, 6, request) == [ErrorCode.REQUEST_TIMED_OUT]
    wait_until(lambda: not is_there(connection, topic), what=f"{topic} is gone")
