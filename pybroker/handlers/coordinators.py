"""FindCoordinator: returns the coordinator of a group or a transactional id. A missing internal
topic is created, and the response waits a short time for leaders."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import AUTO_CREATE_WAIT_S, InternalTopic, Request, Services
from pybroker.wire.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

_GROUP: Final = 0
_TRANSACTION: Final = 1
_FIRST_VERSION_WITH_MANY_KEYS: Final = 4
_NO_ERROR: Final = "NONE"
"""The error message of a response without an error, up to version 3, as in Kafka."""


def handle_find_coordinator(
    services: Services, request: Request, message: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    topic = _topic_of(services, message.key_type)
    if topic is not None and not topic.is_known:
        return _settle_and_answer(services, request, message, topic)
    return _answer(services, request, message)


def _topic_of(services: Services, key_type: int) -> InternalTopic | None:
    topics = {_GROUP: services.group_topic, _TRANSACTION: services.transaction_topic}
    return topics.get(key_type)


async def _settle_and_answer(
    services: Services, request: Request, message: FindCoordinatorRequest, topic: InternalTopic
) -> FindCoordinatorResponse:
    try:
        await topic.settle(AUTO_CREATE_WAIT_S)
    except BrokerError:
        pass  # each key gets the error below
    return _answer(services, request, message)


def _answer(
    services: Services, request: Request, message: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    many = request.version >= _FIRST_VERSION_WITH_MANY_KEYS
    keys: Sequence[str] = message.coordinator_keys if many else [message.key]
    found = [_find(services, request, message.key_type, key) for key in keys]
    if many:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        error_message=only.error_message or _NO_ERROR,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


def _find(services: Services, request: Request, key_type: int, key: str) -> Coordinator:
    try:
        topic = _topic_of(services, key_type)
        if topic is None:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"the FindCoordinator request has key type {key_type}, expected 0 (group) "
                "or 1 (transaction)",
            )
        broker_id = _coordinator_of(services, topic, key_type, key)
        broker = services.metadata.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(request.listener)
        if endpoint is None:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the coordinator, broker {broker_id}, has no live endpoint on listener"
                f" {request.listener}",
            )
        return Coordinator(
            key=key, node_id=broker_id, host=endpoint.host, port=endpoint.port, error_message=""
        )
    except BrokerError as error:
        return Coordinator(
            key=key, node_id=-1, port=-1, error_code=error.code, error_message=error.detail
        )


def _coordinator_of(services: Services, topic: InternalTopic, key_type: int, key: str) -> int:
    """Return the broker id of the coordinator of `key`. Raises BrokerError
    COORDINATOR_NOT_AVAILABLE if the coordinator is unknown."""
    partition = topic.partition_of(key)
    broker_id = topic.leader_of(partition)
    service = services.groups if key_type == _GROUP else services.transactions
    if broker_id == services.broker_id and service.may_be_elsewhere(partition):
        raise BrokerError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"this broker, {broker_id}, may no longer be the coordinator",
        )
    return broker_id
