"""CreatePartitions: the controller writes a topic's larger assignment to ZooKeeper, and waits for
the new leaders."""

from __future__ import annotations

from collections import Counter

from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.handlers.context import Request, Services
from pybroker.handlers.metadata import has_leaders
from pybroker.handlers.topics import as_broker_error, require_controller
from pybroker.model import INTERNAL_TOPICS
from pybroker.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle_create_partitions(
    services: Services, request: Request, message: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    deadline = services.clock.monotonic() + max(message.timeout_ms, 0) / 1000
    counts = Counter(topic.name for topic in message.topics)
    results = []
    expanded: list[tuple[CreatePartitionsTopicResult, int]] = []
    for topic in message.topics:
        result = CreatePartitionsTopicResult(name=topic.name)
        results.append(result)
        try:
            require_controller(services)
            if counts[topic.name] > 1:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
            await _expand(services, topic, validate_only=message.validate_only)
            expanded.append((result, topic.count))
        except (BrokerError, CoordError, MalformedNode) as error:
            failure = as_broker_error(error)
            result.error_code, result.error_message = failure.code, failure.detail
    if not message.validate_only:
        await _wait_for_leaders(services, expanded, deadline)
    return CreatePartitionsResponse(results=results)


async def _expand(services: Services, topic: CreatePartitionsTopic, *, validate_only: bool) -> None:
    if topic.name in INTERNAL_TOPICS:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f"the number of partitions of {topic.name} cannot be changed: a group id or"
            " transactional id could then map to a partition without the id's records",
        )
    chosen = None
    if topic.assignments is not None:
        chosen = [each.broker_ids for each in topic.assignments]
    await services.topics.expand(topic.name, topic.count, chosen, validate_only=validate_only)


async def _wait_for_leaders(
    services: Services, expanded: list[tuple[CreatePartitionsTopicResult, int]], deadline: float
) -> None:
    """Wait until all partitions of each topic have leaders. A topic that misses `deadline`
    (monotonic s) gets REQUEST_TIMED_OUT."""
    view = services.metadata

    def is_open(name: str, count: int) -> bool:
        topic = view.topic(name)
        return topic is not None and len(topic.partitions) >= count and has_leaders(topic)

    await view.wait_until(
        lambda: all(is_open(result.name, count) for result, count in expanded),
        deadline - services.clock.monotonic(),
    )
    for result, count in expanded:
        if not is_open(result.name, count):
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = "the partitions are being created, but have no leaders yet"
