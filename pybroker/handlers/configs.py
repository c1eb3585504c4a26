"""DescribeConfigs: returns the options of topics and brokers, and the levels of this broker's
loggers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from pybroker.applog import log_levels
from pybroker.config.layered_config import Source
from pybroker.coordinator.zookeeper.paths import topic_entity
from pybroker.errors import (
    BrokerError,
    CoordError,
    ErrorCode,
    MalformedNode,
    RequestTooLarge,
)
from pybroker.handlers.config_entries import (
    ConfigEntry,
    all_brokers_entries,
    broker_entries,
    topic_entries,
)
from pybroker.handlers.context import Request, Services
from pybroker.model import topic_name_fault
from pybroker.wire.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
"""TOPIC, BROKER, BROKER_LOGGER and CLIENT_METRICS are numbers of resource types in the protocol."""
_AT_A_TIME: Final = 100
"""The maximum number of resources of a request that are read from ZooKeeper at the same time."""
_OPTIONS_MAX: Final = 500_000
"""The maximum number of options in a response: all options of some 16,000 topics. Further resources
get an error. A request may name a resource any number of times, and the response must not fill the
memory."""


async def handle_describe_configs(
    services: Services, request: Request, message: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results: list[DescribeConfigsResult] = []
    options = 0
    for start in range(0, len(message.resources), _AT_A_TIME):
        some = message.resources[start : start + _AT_A_TIME]
        if options > _OPTIONS_MAX:
            results += map(_too_many, some)
            continue
        described = await asyncio.gather(*(_described(services, message, item) for item in some))
        options += sum(len(result.configs) for result in described)
        results += described
    return DescribeConfigsResponse(results=results)


def _too_many(resource: DescribeConfigsResource) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"the response has more than {_OPTIONS_MAX} options; ask for fewer resources",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


async def _described(
    services: Services, message: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        entries = await _entries(services, resource)
    except (BrokerError, CoordError, MalformedNode) as error:
        failure = as_broker_error(error)
        result.error_code, result.error_message = failure.code, failure.detail
        return result
    keys = frozenset(resource.configuration_keys or ())
    result.configs = [
        _result(
            entry,
            synonyms=message.include_synonyms,
            documentation=message.include_documentation,
        )
        for entry in entries
        if not keys or entry.name in keys
    ]
    return result


def this_broker(services: Services, name: str, *, or_all: bool = True) -> int | None:
    """Return this broker's id if `name` is this id. Return None (all brokers) if `name` is empty
    and `or_all` is True. Raise BrokerError INVALID_REQUEST for any other name."""
    if not name and or_all:
        return None
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
    own = services.broker_id
    try:
        broker_id = int(name) if name.isascii() else None
    except ValueError:
        broker_id = None
    if broker_id is None:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if broker_id != own:
        others = " or empty string," if or_all else ""
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {own}{others} but received {name}",
        )
    return own


def as_broker_error(error: BrokerError | CoordError | MalformedNode) -> BrokerError:
    """Return the BrokerError that the client gets for `error`, which a read or write of ZooKeeper
    has raised. A BrokerError is returned unchanged."""
    if isinstance(error, BrokerError):
        return error
    if isinstance(error, RequestTooLarge):
        return BrokerError(ErrorCode.INVALID_CONFIG, f"the configuration is too large: {error}")
    if isinstance(error, MalformedNode):
        return BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
    return BrokerError(
        ErrorCode.REQUEST_TIMED_OUT, "ZooKeeper did not answer in time: repeat the request"
    )


async def _entries(services: Services, resource: DescribeConfigsResource) -> Sequence[ConfigEntry]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == TOPIC:
        return await _topic(services, name)
    if kind == BROKER:
        broker_id = this_broker(services, name)
        layers = services.configs.layers
        return all_brokers_entries(layers) if broker_id is None else broker_entries(layers)
    if kind == BROKER_LOGGER:
        this_broker(services, name, or_all=False)
        levels = log_levels.levels().items()
        return [ConfigEntry(logger, level, Source.LOGGER) for logger, level in levels]
    if kind == CLIENT_METRICS:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "Config type client-metrics is only supported on KRaft clusters",
        )
    raise BrokerError(
        ErrorCode.INVALID_REQUEST, f"Unexpected resource type {kind} for resource {name}"
    )


async def _topic(services: Services, name: str) -> Sequence[ConfigEntry]:
    fault = topic_name_fault(name)
    if fault is not None:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")
    if services.metadata.topic(name) is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    overrides = await services.configs.read(topic_entity(name))
    return topic_entries(services.configs.layers, overrides)


def _result(
    entry: ConfigEntry, *, synonyms: bool, documentation: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=entry.source is Source.DEFAULT,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=item.name, value=item.value, source=item.source)
            for item in (entry.synonyms if synonyms else ())
        ],
        config_type=entry.type,
        documentation=entry.documentation if documentation else None,
    )
