"""The admin client: results item by item, and who is asked again."""

from __future__ import annotations

import pytest

from pybroker.client.admin import Admin
from pybroker.client.admin_configs import ConfigResource
from pybroker.client.admin_topics import NewTopic
from pybroker.client.errors import Closed, ConnectionLost, ResponseError
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from pybroker.wire.messages.topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import LOSE_ANSWER, FakeBroker, versions


def admin(broker: FakeBroker) -> Admin:
    return Admin(broker.address, retry_backoff_ms=1, retry_backoff_max_ms=5)


def created(request: Message) -> Message:
    """Every topic but `taken` is created."""
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


async def test_what_may_have_been_done_is_not_done_again() -> None:
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


async def test_options_that_somebody_set_are_told_apart_from_defaults() -> None:
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
        found = await target.list_offsets({there: -1, missing: -1}, timeout_ms=30)
        assert (found[there].offset, found[there].error) == (0, None)
        assert isinstance(found[missing].error, ResponseError)


async def test_a_closed_client_says_so() -> None:
    async with FakeBroker() as broker:
        async with admin(broker) as target:
            pass
        with pytest.raises(Closed):
            await target.list_topics()
