"""Tests of the admin client: it returns a result for each item, and repeats only some requests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.configs import ConfigChange, ConfigOperation, ConfigResource
from pybroker.client.admin.elections import ElectionType
from pybroker.client.admin.partitions import HIGH_WATERMARK
from pybroker.client.admin.topics import NewPartitions, NewTopic
from pybroker.client.errors import ClientError, Closed, ConnectionLost, NotConnected, ResponseError
from pybroker.clock import ManualClock
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from pybroker.wire.messages.reassignment import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)
from pybroker.wire.messages.topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import LOSE_ANSWER, FakeBroker, versions


def admin(broker: FakeBroker, clock: Clock | None = None) -> Admin:
    return Admin(broker.address, clock=clock, retry_backoff_ms=1, retry_backoff_max_ms=5)


def created(request: Message) -> Message:
    """Create every topic but `taken`."""
    assert isinstance(request, CreateTopicsRequest)
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(name=topic.name, error_code=36, error_message="is there")
            if topic.name == "taken"
            else CreatableTopicResult(
                name=topic.name,
                num_partitions=topic.num_partitions,
                replication_factor=1,
                configs=[CreatableTopicConfigs(name="a", value="1")],
            )
            for topic in request.topics
        ]
    )


async def test_each_topic_has_its_own_result() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.CREATE_TOPICS] = created
        good, bad = await target.create_topics(
            [NewTopic("new", 3, configs={"x": "y"}), NewTopic("taken")], validate_only=True
        )
        assert good.check().partitions == 3
        assert good.configs == {"a": "1"}
        with pytest.raises(ResponseError, match="is there"):
            bad.check()
        request = broker.requests(CreateTopicsRequest)[0]
        assert isinstance(request, CreateTopicsRequest)
        assert request.validate_only
        assert [(row.name, row.value) for row in request.topics[0].configs] == [("x", "y")]


async def test_an_explicit_assignment_leaves_the_numbers_open() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.CREATE_TOPICS] = created
        await target.create_topics([NewTopic("new", assignments={0: [1, 2], 1: [2, 1]})])
        (request,) = broker.requests(CreateTopicsRequest)
        assert isinstance(request, CreateTopicsRequest)
        topic = request.topics[0]
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
        assert [row.broker_ids for row in topic.assignments] == [[1, 2], [2, 1]]


async def test_the_controller_is_looked_for_again_when_it_moved() -> None:
    answers = [ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]

    def deleted(request: Message) -> Message:
        return DeleteTopicsResponse(
            responses=[DeletableTopicResult(name="t", error_code=answers.pop(0))]
        )

    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.DELETE_TOPICS] = deleted
        (result,) = await target.delete_topics(["t"])
        assert result.error is None
        assert len(broker.requests(DeleteTopicsRequest)) == 2


async def test_a_creation_that_may_have_happened_is_not_repeated() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.CREATE_TOPICS] = created
        broker.will(ApiKey.CREATE_TOPICS, LOSE_ANSWER)
        with pytest.raises(ConnectionLost) as caught:
            await target.create_topics([NewTopic("new")])
        assert not caught.value.definite
        assert len(broker.requests(CreateTopicsRequest)) == 1


async def test_questions_are_asked_again() -> None:
    async with FakeBroker({"b": 1, "a": 2}) as broker, admin(broker) as target:
        broker.will(ApiKey.METADATA, LOSE_ANSWER)
        assert [topic.name for topic in await target.list_topics()] == ["a", "b"]


async def test_topics_and_the_cluster_are_described() -> None:
    async with FakeBroker({"a": 2}) as broker, admin(broker) as target:
        found = await target.describe_topics(["a", "nosuch"])
        assert list(found["a"].partitions) == [0, 1]
        assert found["nosuch"].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        cluster = await target.describe_cluster()
        assert cluster.cluster_id == "fake"
        assert cluster.controller == cluster.nodes[0]
        assert await target.describe_topics([]) == {}


async def test_an_older_cluster_is_described_by_its_metadata() -> None:
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: versions({ApiKey.DESCRIBE_CLUSTER})
        async with admin(broker) as target:
            cluster = await target.describe_cluster()
            assert (cluster.cluster_id, cluster.controller) == ("fake", cluster.nodes[0])


async def test_set_options_are_distinguished_from_defaults() -> None:
    rows = [
        DescribeConfigsResourceResult(name="a", value="1", config_source=1),
        DescribeConfigsResourceResult(name="b", value="2", config_source=5),
    ]
    answer = DescribeConfigsResponse(
        results=[DescribeConfigsResult(resource_type=2, resource_name="t", configs=rows)]
    )
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.DESCRIBE_CONFIGS] = lambda _: answer
        topic = ConfigResource.topic("t")
        entries = (await target.describe_configs([topic]))[topic].check().entries
        assert [(entry.name, entry.is_default) for entry in entries] == [("a", False), ("b", True)]
        assert await target.describe_configs([]) == {}


async def test_offsets_have_their_errors_one_by_one() -> None:
    async with FakeBroker({"a": 1}) as broker, admin(broker) as target:
        there, missing = TopicPartition("a", 0), TopicPartition("a", 7)
        found = await target.list_offsets({there: -1, missing: -1}, timeout_ms=300)
        assert (found[there].offset, found[there].error) == (0, None)
        assert isinstance(found[missing].error, ResponseError)


async def test_calls_of_a_closed_client_raise_closed() -> None:
    async with FakeBroker() as broker:
        async with admin(broker) as target:
            pass
        with pytest.raises(Closed):
            await target.list_topics()


async def test_topics_grow() -> None:
    def grown(request: Message) -> Message:
        assert isinstance(request, CreatePartitionsRequest)
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=37 if topic.assignments is None else 0
                )
                for topic in request.topics
            ]
        )

    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.CREATE_PARTITIONS] = grown
        wanted = [NewPartitions("a", 2, [[1]]), NewPartitions("b", 1)]
        good, bad = await target.create_partitions(wanted, validate_only=True)
        assert good.check().name == "a"
        assert bad.error is not None
        assert bad.error.code == ErrorCode.INVALID_PARTITIONS
        (request,) = broker.requests(CreatePartitionsRequest)
        assert isinstance(request, CreatePartitionsRequest)
        assert request.validate_only
        assert request.topics[0].assignments is not None
        assert [row.broker_ids for row in request.topics[0].assignments] == [[1]]


async def test_records_are_deleted_by_the_leaders_until_they_answer() -> None:
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]

    def deleted(request: Message) -> Message:
        assert isinstance(request, DeleteRecordsRequest)
        code = codes.pop(0)
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        DeleteRecordsPartitionResult(
                            partition_index=row.partition_index,
                            low_watermark=row.offset,
                            error_code=1 if row.offset > 5 else code,
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async with FakeBroker({"a": 2}) as broker, admin(broker) as target:
        broker.handlers[ApiKey.DELETE_RECORDS] = deleted
        first, second, missing = (TopicPartition("a", number) for number in range(3))
        results = await target.delete_records({first: 3, second: 9, missing: 1}, timeout_ms=500)
        assert results[first].check().low_watermark == 3
        with pytest.raises(ResponseError, match="OFFSET_OUT_OF_RANGE"):
            results[second].check()
        assert isinstance(results[missing].error, ResponseError)


@pytest.mark.parametrize(("offset", "times"), [(3, 2), (HIGH_WATERMARK, 1)])
async def test_all_that_is_committed_is_not_deleted_twice(offset: int, times: int) -> None:
    """An offset means the same the second time; the high watermark does not."""
    answer = DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name="a", partitions=[DeleteRecordsPartitionResult(low_watermark=3)]
            )
        ]
    )
    async with FakeBroker({"a": 1}) as broker, admin(broker) as target:
        broker.handlers[ApiKey.DELETE_RECORDS] = lambda _: answer
        broker.will(ApiKey.DELETE_RECORDS, LOSE_ANSWER)
        key = TopicPartition("a", 0)
        result = (await target.delete_records({key: offset}))[key]
        assert len(broker.requests(DeleteRecordsRequest)) == times
        assert (result.error is None) == (times == 2)


async def test_a_broker_is_asked_for_its_own_options() -> None:
    """Requests for a missing broker fail alone."""

    def altered(request: Message) -> Message:
        assert isinstance(request, IncrementalAlterConfigsRequest)
        return IncrementalAlterConfigsResponse(
            responses=[
                IncrementalAlterConfigsResourceResponse(
                    resource_type=row.resource_type, resource_name=row.resource_name
                )
                for row in request.resources
            ]
        )

    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.INCREMENTAL_ALTER_CONFIGS] = altered
        here, gone = ConfigResource.broker(1), ConfigResource.broker(7)
        topic = ConfigResource.topic("t")
        change = [ConfigChange("a", "1"), ConfigChange("b", operation=ConfigOperation.DELETE)]
        results = await target.alter_configs(
            {topic: change, here: change, gone: change}, timeout_ms=500
        )
        assert list(results) == [topic, here, gone]
        assert (results[topic].error, results[here].error) == (None, None)
        assert isinstance(results[gone].error, NotConnected)
        assert len(broker.requests(IncrementalAlterConfigsRequest)) == 2


async def test_each_broker_tells_its_versions() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        found = await target.api_versions([1, 7], timeout_ms=500)
        assert found[1].check().versions[ApiKey.METADATA] == (0, 12)
        assert isinstance(found[7].error, NotConnected)


def elected(request: Message) -> Message:
    """Partition 0 gets its leader, 1 has it already, others fail."""
    assert isinstance(request, ElectLeadersRequest)
    codes = {0: ErrorCode.NONE, 1: ErrorCode.ELECTION_NOT_NEEDED}
    bad = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=number, error_code=codes.get(number, bad))
                    for number in topic.partitions
                ],
            )
            for topic in request.topic_partitions or [TopicPartitions(topic="all", partitions=[0])]
        ]
    )


async def test_a_missing_controller_is_reported_with_the_brokers_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reason = "this broker does not hear from ZooKeeper"
    clock = ManualClock()

    def refused(request: Message) -> Message:
        if len(broker.requests(CreateTopicsRequest)) == 8:
            clock.advance(60.0)
        row = CreatableTopicResult(
            name="t", error_code=ErrorCode.NOT_CONTROLLER, error_message=reason
        )
        return CreateTopicsResponse(topics=[row])

    async with FakeBroker() as broker, admin(broker, clock) as target:
        broker.handlers[ApiKey.CREATE_TOPICS] = refused
        with pytest.raises(ResponseError) as caught:
            await target.create_topics([NewTopic("t")])
    assert str(caught.value) == (
        "NOT_CONTROLLER: no broker answered as the controller within 60 s. The last answer: this"
        " broker does not hear from ZooKeeper. Check that the brokers reach ZooKeeper"
    )
    assert caught.value.retriable and caught.value.definite
    [warning] = [line for line in caplog.messages if "controller" in line]
    assert warning.startswith(
        "no broker answers as the controller, the client tries again"
        f" reason=NOT_CONTROLLER: {reason}"
    )
    assert warning.endswith("remaining_s=60")


async def test_each_election_has_its_result() -> None:
    moved = PartitionResult(partition_id=0, error_code=ErrorCode.NOT_CONTROLLER)
    answers: list[Callable[[Message], Message]] = [
        lambda _: ElectLeadersResponse(
            replica_election_results=[ReplicaElectionResult(topic="a", partition_result=[moved])]
        ),
        elected,
        elected,
        lambda _: ElectLeadersResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ]
    asked = [TopicPartition("a", 0), TopicPartition("b", 2), TopicPartition("a", 1)]
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.ELECT_LEADERS] = lambda each: answers.pop(0)(each)  # noqa: PLW0108
        results = await target.elect_leaders(ElectionType.UNCLEAN, asked)
        assert {key: _code(error) for key, error in results.items()} == {
            asked[0]: None,
            asked[1]: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            asked[2]: ErrorCode.ELECTION_NOT_NEEDED,
        }
        assert await target.elect_leaders() == {TopicPartition("all", 0): None}
        with pytest.raises(ResponseError) as refused:
            await target.elect_leaders()
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        requests = [
            (request.election_type, request.topic_partitions)
            for request in broker.requests(ElectLeadersRequest)
            if isinstance(request, ElectLeadersRequest)
        ]
    named = [
        TopicPartitions(topic="a", partitions=[0, 1]),
        TopicPartitions(topic="b", partitions=[2]),
    ]
    assert requests == [(1, named), (1, named), (0, None), (0, None)]


def _code(error: ClientError | None) -> ErrorCode | None:
    assert error is None or isinstance(error, ResponseError)
    return None if error is None else error.code
