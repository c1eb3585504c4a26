"""CreateTopics and DeleteTopics: the controller writes the change to ZooKeeper and waits for the
result."""

from __future__ import annotations

from collections import Counter
from typing import Final

from pybroker.coordinator.controller.topics import already_exists
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.handlers.context import Request, Services
from pybroker.handlers.metadata import has_leaders
from pybroker.model import NO_TOPIC_ID
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

_FIRST_VERSION_WITH_TOPIC_STATES: Final = 6
_FIRST_VERSION_WITH_DELETION_DISABLED: Final = 3


async def handle_create_topics(
    services: Services, request: Request, message: CreateTopicsRequest
) -> CreateTopicsResponse:
    deadline = services.clock.monotonic() + max(message.timeout_ms, 0) / 1000
    counts = Counter(topic.name for topic in message.topics)
    results = []
    for topic in message.topics:
        result = CreatableTopicResult(name=topic.name, topic_id=NO_TOPIC_ID)
        try:
            if counts[topic.name] > 1:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST,
                    f"the request names topic {topic.name} more than once",
                )
            require_controller(services)
            await _create(services, topic, result, validate_only=message.validate_only)
        except (BrokerError, CoordError, MalformedNode) as error:
            failure = as_broker_error(error)
            result.error_code, result.error_message = failure.code, failure.detail
            result.configs = []
        results.append(result)
    if not message.validate_only:
        await _wait_for_leaders(services, results, deadline)
    return CreateTopicsResponse(topics=results)


async def _create(
    services: Services, topic: CreatableTopic, result: CreatableTopicResult, *, validate_only: bool
) -> None:
    if services.metadata.topic(topic.name) is not None:
        # As in Kafka, this check comes first. A client that only ensures that its topic exists can
        # continue after this error, even while there are too few brokers to create the topic.
        raise already_exists(topic.name)
    assignment: dict[int, list[int]] | None = None
    if topic.assignments:
        if topic.num_partitions != -1 or topic.replication_factor != -1:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"the number of partitions is {topic.num_partitions} and the replication factor is"
                f" {topic.replication_factor}, expected both to be -1 in a request with a replica"
                " assignment",
            )
        assignment = {item.partition_index: item.broker_ids for item in topic.assignments}
        if len(assignment) != len(topic.assignments):
            raise BrokerError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the replica assignment of topic {topic.name} lists a partition more than once",
            )
    configs = {}
    for config in topic.configs:
        if config.value is None:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG, f"the value of {config.name} must not be null"
            )
        configs[config.name] = config.value
    created = await services.topics.create(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignment=assignment,
        configs=configs,
        validate_only=validate_only,
    )
    result.topic_id = NO_TOPIC_ID if validate_only else created.topic_id
    result.num_partitions = len(created.assignment)
    result.replication_factor = len(created.assignment[0])
    result.configs = [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in created.configs
    ]


async def _wait_for_leaders(
    services: Services, results: list[CreatableTopicResult], deadline: float
) -> None:
    """Wait until all partitions of each created topic have leaders. A topic that misses `deadline`
    (monotonic s) gets REQUEST_TIMED_OUT."""
    made = [result for result in results if result.error_code == ErrorCode.NONE]
    view = services.metadata
    await view.wait_until(
        lambda: all(has_leaders(view.topic(result.name)) for result in made),
        deadline - services.clock.monotonic(),
    )
    for result in made:
        if not has_leaders(view.topic(result.name)):
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "the topic is being created, but has no leaders yet"


async def handle_delete_topics(
    services: Services, request: Request, message: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    deadline = services.clock.monotonic() + max(message.timeout_ms, 0) / 1000
    if request.version >= _FIRST_VERSION_WITH_TOPIC_STATES:
        wanted = message.topics
    else:
        wanted = [DeleteTopicState(name=name) for name in message.topic_names]
    counts = Counter((topic.name, topic.topic_id) for topic in wanted)
    results = []
    for topic in wanted:
        result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
        try:
            if counts[(topic.name, topic.topic_id)] > 1:
                raise BrokerError(
                    ErrorCode.INVALID_REQUEST, "the request names the topic more than once"
                )
            require_controller(services)
            await _delete(services, request, topic, result)
        except (BrokerError, CoordError, MalformedNode) as error:
            failure = as_broker_error(error)
            result.error_code, result.error_message = failure.code, failure.detail
        results.append(result)
    view = services.metadata
    accepted = [result for result in results if result.error_code == ErrorCode.NONE]
    await view.wait_until(
        lambda: all(view.topic(str(result.name)) is None for result in accepted),
        deadline - services.clock.monotonic(),
    )
    for result in accepted:
        # Brokers remove a topic from their metadata a moment before its node is removed. An answer
        # in between would let a client recreate the topic and get TOPIC_ALREADY_EXISTS.
        if not await _is_gone(services, str(result.name), deadline):
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = (
                "the deletion has begun, but did not finish within the time limit"
            )
    return DeleteTopicsResponse(responses=results)


async def _is_gone(services: Services, name: str, deadline: float) -> bool:
    if services.metadata.topic(name) is not None:
        return False
    remaining_s = max(deadline - services.clock.monotonic(), 0)
    try:
        return await services.topics.wait_until_gone(name, remaining_s)
    except CoordError:
        return False


async def _delete(
    services: Services, request: Request, topic: DeleteTopicState, result: DeletableTopicResult
) -> None:
    if not services.config.delete_topic_enable:
        named = request.version >= _FIRST_VERSION_WITH_DELETION_DISABLED
        raise BrokerError(
            ErrorCode.TOPIC_DELETION_DISABLED if named else ErrorCode.INVALID_REQUEST,
            ErrorCode.TOPIC_DELETION_DISABLED.text,
        )
    name, topic_id = topic.name, None
    if topic.topic_id != NO_TOPIC_ID:
        if name is not None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                "the request has both the name and the id of a topic, expected one of them",
            )
        topic_id = topic.topic_id
        name = services.metadata.name_of(topic_id)
        if name is None:
            raise BrokerError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic.topic_id}"
            )
    if name is None:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "the request has neither the name nor the id of the topic, expected one of them",
        )
    result.name = name
    known = services.metadata.topic(name)
    if known is not None:
        result.topic_id = known.topic_id
    await services.topics.delete(name, topic_id)


def require_controller(services: Services) -> None:
    """Raise BrokerError NOT_CONTROLLER unless this broker is the controller."""
    if not services.lease.is_valid:
        raise BrokerError(
            ErrorCode.NOT_CONTROLLER,
            "this broker cannot act as the controller now, because ZooKeeper does not answer it",
        )
    if not services.controller.is_active:
        controller = services.controller_id
        known = f"broker {controller}" if controller >= 0 else "unknown"
        raise BrokerError(
            ErrorCode.NOT_CONTROLLER,
            f"this broker is not the controller; the controller is {known}",
        )


def as_broker_error(error: BrokerError | CoordError | MalformedNode) -> BrokerError:
    """Return the BrokerError that the client gets for `error`. A CoordError becomes
    REQUEST_TIMED_OUT, after which clients retry."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, MalformedNode):
        return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    return BrokerError(
        ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not answer in time: repeat the request"
    )
