"""Answers Metadata and DescribeCluster requests. The brokers' addresses are those of the listener
that received the request. If a request creates a topic, the response waits a short time for the
leaders of the topic."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Iterable
from typing import Final

from pybroker.errors import BrokerError, CoordError, ErrorCode
from pybroker.handlers.context import AUTO_CREATE_WAIT_S, Request, Services
from pybroker.handlers.metadata_view import TopicView
from pybroker.model import INTERNAL_TOPICS, NO_LEADER, NO_TOPIC_ID, PartitionFacts, topic_name_fault
from pybroker.wire.messages.cluster import (
    ENDPOINT_BROKERS,
    ENDPOINT_CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

log = logging.getLogger(__name__)

_FIRST_VERSION_WITH_NULL_FOR_ALL: Final = 1
_FIRST_VERSION_WITH_DEAD_REPLICAS: Final = 1
_FIRST_VERSION_WITH_AUTO_CREATION_FLAG: Final = 4
_FIRST_VERSION_WITH_LISTENER_ERROR: Final = 6
_FIRST_VERSION_WITH_LOOK_UP_BY_ID: Final = 12
TOPICS_MAX: Final = 100_000
"""The maximum number of topics in one request. If a request names more, every topic in it gets
INVALID_REQUEST."""
CREATIONS_MAX: Final = 100
"""The maximum number of topics that one request creates. Further missing topics get
LEADER_NOT_AVAILABLE, so that the client retries. Without this limit, a request with many names
would keep ZooKeeper busy for minutes."""
ALL_TOPIC_OPERATIONS: Final = 0b0000_1101_1111_1000
"""The operations READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS
on a topic: each one sets the bit of its AclOperation number. Without an authorizer every client may
do all of them."""
ALL_CLUSTER_OPERATIONS: Final = 0b0001_1111_1010_0000
"""The operations CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS and
IDEMPOTENT_WRITE on the cluster: each one sets the bit of its AclOperation number. Without an
authorizer every client may do all of them."""
NOT_REQUESTED: Final = -(2**31)


def handle_metadata(
    services: Services, request: Request, message: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    missing = _to_create(services, request, message)
    if missing:
        return _create_and_answer(services, request, message, missing)
    return _answer(services, request, message)


async def handle_describe_cluster(
    services: Services, request: Request, message: DescribeClusterRequest
) -> DescribeClusterResponse:
    if message.endpoint_type != ENDPOINT_BROKERS:
        return _wrong_endpoint(message.endpoint_type)
    brokers = []
    for broker in services.metadata.brokers.values():
        endpoint = broker.endpoint(request.listener)
        if endpoint is not None:
            brokers.append(
                DescribeClusterBroker(
                    broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    wants_operations = message.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=services.cluster_id,
        controller_id=services.controller_id,
        brokers=brokers,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS if wants_operations else NOT_REQUESTED,
    )


def _wrong_endpoint(endpoint_type: int) -> DescribeClusterResponse:
    """Return the error response to a DescribeCluster request (KIP-919) whose endpoint type is not
    that of brokers. Only KRaft has endpoints of controllers."""
    if endpoint_type == ENDPOINT_CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an"
            " endpoint of type CONTROLLER",
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        error_message=f"Unsupported endpoint type {endpoint_type}",
    )


def _wants_all(request: Request, message: MetadataRequest) -> bool:
    """Whether the request is for all topics: the list is empty in version 0, null in later
    versions."""
    if request.version < _FIRST_VERSION_WITH_NULL_FOR_ALL:
        return not message.topics
    return message.topics is None


def _to_create(services: Services, request: Request, message: MetadataRequest) -> list[str]:
    """Return the requested topics that do not exist and that the request may create."""
    if not message.topics or not services.config.auto_create_topics_enable:
        return []
    if (
        request.version >= _FIRST_VERSION_WITH_AUTO_CREATION_FLAG
        and not message.allow_auto_topic_creation
    ):
        return []
    names = [
        topic.name
        for topic in message.topics
        if topic.name is not None and topic.topic_id == NO_TOPIC_ID
    ]
    if len(names) > TOPICS_MAX:
        return []
    return [
        name
        for name in dict.fromkeys(names)
        if services.metadata.topic(name) is None
        and topic_name_fault(name) is None
        and name not in INTERNAL_TOPICS
    ]


async def _create_and_answer(
    services: Services, request: Request, message: MetadataRequest, names: list[str]
) -> MetadataResponse:
    failures: dict[str, ErrorCode] = {}
    for name in names[:CREATIONS_MAX]:
        try:
            await services.topics.create(
                name,
                partitions=-1,
                replication_factor=-1,
                assignment=None,
                configs={},
                validate_only=False,
            )
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                _log_failure(services, name, error)
                failures[name] = error.code
        except CoordError as error:
            _log_failure(services, name, error)
            failures[name] = ErrorCode.LEADER_NOT_AVAILABLE
    awaited = [name for name in names[:CREATIONS_MAX] if name not in failures]
    await services.metadata.wait_until(
        lambda: all(has_leaders(services.metadata.topic(name)) for name in awaited),
        AUTO_CREATE_WAIT_S,
    )
    response = _answer(services, request, message)
    asked_for = set(names)
    for topic in response.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and topic.name in asked_for:
            topic.error_code = failures.get(topic.name, ErrorCode.LEADER_NOT_AVAILABLE)
    return response


def _log_failure(services: Services, topic: str, error: BrokerError | CoordError) -> None:
    left_out = services.log_limit.allow("topic not created")
    if left_out is not None:
        text = "topic not created topic=%s error=%r lines_left_out=%d"
        log.warning(text, topic, error, left_out)


def has_leaders(topic: TopicView | None) -> bool:
    """Whether the topic is not None and each of its partitions has a leader."""
    return topic is not None and all(
        facts.state.leader != NO_LEADER for facts in topic.partitions.values()
    )


def _answer(services: Services, request: Request, message: MetadataRequest) -> MetadataResponse:
    view = services.metadata
    if _wants_all(request, message):
        topics = [_topic(services, request, message, topic) for topic in view.topics.values()]
    else:
        wanted = _each_once(message.topics or [])
        too_many = len(wanted) > TOPICS_MAX
        topics = [
            _unknown(item.name or "", item.topic_id, ErrorCode.INVALID_REQUEST)
            if too_many
            else _look_up(services, request, message, item)
            for item in wanted
        ]
    brokers = []
    for broker in view.brokers.values():
        endpoint = broker.endpoint(request.listener)
        if endpoint is not None:
            brokers.append(
                MetadataResponseBroker(
                    node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    return MetadataResponse(
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=services.controller_id,
        topics=topics,
        cluster_authorized_operations=ALL_CLUSTER_OPERATIONS
        if message.include_cluster_authorized_operations
        else NOT_REQUESTED,
    )


def _each_once(wanted: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """Return each topic once. Repeated topics could cause a very large response."""
    return list({(item.name, item.topic_id): item for item in wanted}.values())


def _look_up(
    services: Services, request: Request, message: MetadataRequest, item: MetadataRequestTopic
) -> MetadataResponseTopic:
    view = services.metadata
    if item.topic_id != NO_TOPIC_ID or item.name is None:
        if request.version < _FIRST_VERSION_WITH_LOOK_UP_BY_ID:
            # Before version 12 an answer must have a topic name.
            return _unknown(item.name or "", item.topic_id, ErrorCode.INVALID_REQUEST)
        name = view.name_of(item.topic_id)
        if name is None:
            return _unknown(None, item.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        name = item.name
    topic = view.topic(name)
    if topic is not None:
        return _topic(services, request, message, topic)
    if topic_name_fault(name) is not None:
        return _unknown(name, NO_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)
    return _unknown(name, NO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _unknown(name: str | None, topic_id: uuid.UUID, code: ErrorCode) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=NOT_REQUESTED,
    )


def _topic(
    services: Services, request: Request, message: MetadataRequest, topic: TopicView
) -> MetadataResponseTopic:
    partitions: Iterable[PartitionFacts] = topic.partitions.values()
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[_partition(services, request, facts) for facts in partitions],
        topic_authorized_operations=ALL_TOPIC_OPERATIONS
        if message.include_topic_authorized_operations
        else NOT_REQUESTED,
    )


def _partition(
    services: Services, request: Request, facts: PartitionFacts
) -> MetadataResponsePartition:
    brokers = services.metadata.brokers
    state = facts.state
    leader = brokers.get(state.leader)
    error = ErrorCode.NONE
    if leader is None:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    elif leader.endpoint(request.listener) is None:
        later = request.version >= _FIRST_VERSION_WITH_LISTENER_ERROR
        error = ErrorCode.LISTENER_NOT_FOUND if later else ErrorCode.LEADER_NOT_AVAILABLE
    replicas, isr = list(facts.replicas), list(state.isr)
    offline = [id for id in replicas if id not in brokers or id in facts.offline_replicas]
    if request.version < _FIRST_VERSION_WITH_DEAD_REPLICAS and offline:
        # Clients of version 0 expect every replica to be among the brokers of the answer.
        replicas = [id for id in replicas if id in brokers]
        isr = [id for id in isr if id in brokers]
        if error is ErrorCode.NONE:
            error = ErrorCode.REPLICA_NOT_AVAILABLE
    has_leader = error in (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE)
    return MetadataResponsePartition(
        error_code=error,
        partition_index=facts.topic_partition.partition,
        leader_id=state.leader if has_leader else NO_LEADER,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=offline,
    )
