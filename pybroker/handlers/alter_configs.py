"""AlterConfigs and IncrementalAlterConfigs. If one resource fails, the other resources are still
changed. The changes are in force on this broker before the response is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from pybroker.applog import log_levels
from pybroker.config.layered_config import merged, option_of, usable_values
from pybroker.config.topic_config import TOPIC_OPTIONS, topic_config_faults
from pybroker.coordinator.zookeeper.paths import broker_entity, topic_entity
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.handlers.configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    TOPIC,
    as_broker_error,
    this_broker,
)
from pybroker.handlers.context import Request, Services
from pybroker.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

_SET: Final = 0
_DELETE: Final = 1
_OPERATION_NAMES: Final = {2: "APPEND", 3: "SUBTRACT"}

Operations = Sequence[tuple[int, str, str | None]]
"""Changes of options, each as (number of the operation in the protocol, option, value)."""


async def handle_alter_configs(
    services: Services, request: Request, message: AlterConfigsRequest
) -> AlterConfigsResponse:
    counts = Counter((item.resource_type, item.resource_name) for item in message.resources)
    responses = []
    for resource in message.resources:
        kind, name = resource.resource_type, resource.resource_name
        response = AlterConfigsResourceResponse(resource_type=kind, resource_name=name)
        try:
            _check_resource(counts[(kind, name)], resource.configs)
            values = {config.name: config.value or "" for config in resource.configs}
            if kind == BROKER_LOGGER:
                raise _unknown_type(kind)
            await _alter(
                services,
                kind,
                name,
                [(_SET, option, text) for option, text in values.items()],
                replaces=True,
                validate_only=message.validate_only,
            )
        except (BrokerError, CoordError, MalformedNode) as error:
            failure = as_broker_error(error)
            response.error_code, response.error_message = failure.code, failure.detail
        responses.append(response)
    return AlterConfigsResponse(responses=responses)


async def handle_incremental_alter_configs(
    services: Services, request: Request, message: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    counts = Counter((item.resource_type, item.resource_name) for item in message.resources)
    responses = []
    for resource in message.resources:
        kind, name = resource.resource_type, resource.resource_name
        response = IncrementalAlterConfigsResourceResponse(resource_type=kind, resource_name=name)
        try:
            _check_resource(counts[(kind, name)], resource.configs)
            await _alter(
                services,
                kind,
                name,
                [(item.config_operation, item.name, item.value) for item in resource.configs],
                replaces=False,
                validate_only=message.validate_only,
            )
        except (BrokerError, CoordError, MalformedNode) as error:
            failure = as_broker_error(error)
            response.error_code, response.error_message = failure.code, failure.detail
        responses.append(response)
    return IncrementalAlterConfigsResponse(responses=responses)


def _check_resource(
    count: int, configs: Sequence[AlterableConfig] | Sequence[IncrementalAlterableConfig]
) -> None:
    """Raise BrokerError if the resource is invalid. `count`: how often the request names the
    resource."""
    if count > 1:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if len({config.name for config in configs}) < len(configs):
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        config.name
        for config in configs
        if config.value is None and getattr(config, "config_operation", _SET) != _DELETE
    ]
    if nulls:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )


async def _alter(
    services: Services,
    kind: int,
    name: str,
    operations: Operations,
    *,
    replaces: bool,
    validate_only: bool,
) -> None:
    """Change the options of a resource. If `replaces` is True, also remove all its values that the
    request does not set. Raise BrokerError, CoordError or MalformedNode."""
    if kind == TOPIC:
        await _alter_topic(
            services, name, operations, replaces=replaces, validate_only=validate_only
        )
    elif kind == BROKER:
        await _alter_broker(
            services, name, operations, replaces=replaces, validate_only=validate_only
        )
    elif kind == BROKER_LOGGER:
        this_broker(services, name, or_all=False)
        _alter_loggers(operations, validate_only=validate_only)
    elif kind == CLIENT_METRICS:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            "AlterConfigs is only supported for topics and brokers, but resource type is "
            "CLIENT_METRICS",
        )
    else:
        raise _unknown_type(kind)


async def _alter_topic(
    services: Services, name: str, operations: Operations, *, replaces: bool, validate_only: bool
) -> None:
    if not name:
        raise BrokerError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    missing = BrokerError(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
    )
    if services.metadata.topic(name) is None:
        raise missing
    change = partial(_changed_topic, services, name, operations=operations, replaces=replaces)
    if validate_only:
        change({} if replaces else await services.configs.read(topic_entity(name)))
    elif not await services.configs.change_topic(name, change, replaces=replaces):
        raise missing


def _changed_topic(
    services: Services,
    name: str,
    current: Mapping[str, str],
    *,
    operations: Operations,
    replaces: bool,
) -> dict[str, str]:
    values = merged({} if replaces else current, operations, TOPIC_OPTIONS.get)
    faults = topic_config_faults(services.configs.layers.current, values)
    if faults:
        known = values.keys() <= TOPIC_OPTIONS.keys()
        start = (
            f"Invalid config value for resource ConfigResource(type=TOPIC, name='{name}'): "
            if known
            else ""
        )
        raise BrokerError(ErrorCode.INVALID_CONFIG, start + "; ".join(faults))
    return values


async def _alter_broker(
    services: Services, name: str, operations: Operations, *, replaces: bool, validate_only: bool
) -> None:
    broker_id = this_broker(services, name)
    change = partial(
        _changed_broker,
        services,
        operations=operations,
        replaces=replaces,
        per_broker=broker_id is not None,
    )
    if validate_only:
        change({} if replaces else await services.configs.read(broker_entity(broker_id)))
    else:
        await services.configs.change_broker(broker_id, change, replaces=replaces)


def _changed_broker(
    services: Services,
    current: Mapping[str, str],
    *,
    operations: Operations,
    replaces: bool,
    per_broker: bool,
) -> dict[str, str]:
    """Apply `operations` to the options `current`, or to no options if `replaces`, and return the
    result. As in Kafka, invalid values in `current` are dropped. Raise BrokerError if a new value
    is invalid."""
    usable, _ = usable_values({} if replaces else current, per_broker=per_broker)
    values = merged(usable, operations, option_of)
    services.configs.layers.checked(values, per_broker=per_broker)
    return values


def _alter_loggers(operations: Operations, *, validate_only: bool) -> None:
    """Set the levels of the named loggers. If one operation is invalid, set none and raise
    BrokerError."""
    known = log_levels.levels()
    for operation, name, text in operations:
        if operation not in (_SET, _DELETE):
            word = _OPERATION_NAMES.get(operation)
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown operations type {operation}"
                if word is None
                else f"{word} operation is not allowed for the BROKER_LOGGER resource",
            )
        if name not in known:
            raise BrokerError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
        if operation == _DELETE and name == log_levels.ROOT:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                "Removing the log level of the root logger is not allowed",
            )
        if operation == _SET and text not in log_levels.LEVELS:
            raise BrokerError(
                ErrorCode.INVALID_CONFIG,
                f"Cannot set the log level of {name} to {text} as it is not a supported log "
                f"level. Valid log levels are {', '.join(sorted(log_levels.LEVELS))}",
            )
    for operation, name, text in () if validate_only else operations:
        log_levels.set_level(name, text if operation == _SET else None)


def _unknown_type(kind: int) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
