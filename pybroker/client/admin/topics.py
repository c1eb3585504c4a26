"""Creating and deleting topics, and adding partitions, by requests to the controller."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.admin.calls import Calls, controller_moved
from pybroker.client.connection import Connection
from pybroker.client.errors import ResponseError
from pybroker.client.leader_calls import response_error
from pybroker.model import NO_TOPIC_ID
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

LEFT_TO_BROKER: Final = -1
DELETE_BY_STATE_VERSION: Final = 6


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `partitions` and `replication_factor`: -1 means the broker's default, and
    is required with `assignments`. `assignments` maps each partition to its broker ids, preferred
    leader first."""

    name: str
    partitions: int = LEFT_TO_BROKER
    replication_factor: int = LEFT_TO_BROKER
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic and its new partition count. `assignments`: the broker ids of each new partition,
    preferred leader first; None: the controller chooses."""

    topic: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The controller's result for one topic. `error` is None on success. The other fields are set
    if the controller reports them."""

    name: str
    error: ResponseError | None
    topic_id: uuid.UUID = NO_TOPIC_ID
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)

    def check(self) -> TopicResult:
        """Return the result itself, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


async def create_topics(
    calls: Calls, topics: Iterable[NewTopic], *, validate_only: bool, timeout_ms: int | None
) -> list[TopicResult]:
    """Create the topics; `validate_only` only checks the request. Return one result for each topic.
    Raises ClientError if the controller does not answer."""
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in topics],
        timeout_ms=calls.wait_ms(timeout_ms),
        validate_only=validate_only,
    )

    async def ask(connection: Connection, timeout_s: float) -> CreateTopicsResponse:
        answer = await connection.send(
            ApiKey.CREATE_TOPICS, request, CreateTopicsResponse, timeout_s=timeout_s
        )
        controller_moved((row.error_code, row.error_message) for row in answer.topics)
        return answer

    response = await calls.controller(ask, timeout_ms)
    return [_created(row) for row in response.topics]


async def delete_topics(
    calls: Calls, names: Iterable[str], *, timeout_ms: int | None
) -> list[TopicResult]:
    """Delete the topics. Return one result for each topic. Raises ClientError if the controller
    does not answer."""
    topics = list(names)

    async def ask(connection: Connection, timeout_s: float) -> DeleteTopicsResponse:
        by_state = connection.version_of(ApiKey.DELETE_TOPICS) >= DELETE_BY_STATE_VERSION
        request = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in topics] if by_state else [],
            topic_names=[] if by_state else topics,
            timeout_ms=calls.wait_ms(timeout_ms),
        )
        answer = await connection.send(
            ApiKey.DELETE_TOPICS, request, DeleteTopicsResponse, timeout_s=timeout_s
        )
        controller_moved((row.error_code, row.error_message) for row in answer.responses)
        return answer

    response = await calls.controller(ask, timeout_ms)
    return [
        TopicResult(row.name or "", response_error(row.error_code, row.error_message), row.topic_id)
        for row in response.responses
    ]


async def create_partitions(
    calls: Calls, topics: Iterable[NewPartitions], *, validate_only: bool, timeout_ms: int | None
) -> list[TopicResult]:
    """Add partitions to the topics; `validate_only` only checks the request. Return one
    result for each topic. Raises ClientError if the controller does not answer."""
    request = CreatePartitionsRequest(
        topics=[_growing(topic) for topic in topics],
        timeout_ms=calls.wait_ms(timeout_ms),
        validate_only=validate_only,
    )

    async def ask(connection: Connection, timeout_s: float) -> CreatePartitionsResponse:
        answer = await connection.send(
            ApiKey.CREATE_PARTITIONS, request, CreatePartitionsResponse, timeout_s=timeout_s
        )
        controller_moved((row.error_code, row.error_message) for row in answer.results)
        return answer

    response = await calls.controller(ask, timeout_ms)
    return [
        TopicResult(row.name, response_error(row.error_code, row.error_message))
        for row in response.results
    ]


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=list(brokers))
            for number, brokers in topic.assignments.items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()
        ],
    )


def _created(row: CreatableTopicResult) -> TopicResult:
    return TopicResult(
        row.name,
        response_error(row.error_code, row.error_message),
        row.topic_id,
        row.num_partitions,
        row.replication_factor,
        {config.name: config.value for config in row.configs or ()},
    )


def _growing(topic: NewPartitions) -> CreatePartitionsTopic:
    assignments = topic.assignments
    return CreatePartitionsTopic(
        name=topic.topic,
        count=topic.count,
        assignments=None
        if assignments is None
        else [CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments],
    )
