"""The options of topics and brokers: reading them, with the source of each value, and changing
them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from pybroker.client.admin.calls import Calls
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, ResponseError
from pybroker.client.leader_calls import response_error
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)

T = TypeVar("T")


class ResourceKind(enum.IntEnum):
    """The kinds of resources that have options."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigResource(NamedTuple):
    """A topic, a broker (its id as text; "" for all brokers), or the loggers of a broker."""

    kind: ResourceKind
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(ResourceKind.TOPIC, name)

    @classmethod
    def broker(cls, number: int) -> ConfigResource:
        return cls(ResourceKind.BROKER, str(number))

    @classmethod
    def loggers(cls, number: int) -> ConfigResource:
        return cls(ResourceKind.BROKER_LOGGER, str(number))


ALL_BROKERS: Final = ConfigResource(ResourceKind.BROKER, "")


class ConfigSource(enum.IntEnum):
    """The source of an option's value, such as a topic's own setting or the broker's default."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class ConfigType(enum.IntEnum):
    """The type of an option's value (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigOperation(enum.IntEnum):
    """The type of a change of an option: set or delete its value, or append to or subtract from a
    list (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One change of an option; DELETE needs no value."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """The value of an option at one source, such as the topic or the default of the broker."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """An option of a resource. `value` is None if the option is not set, or is sensitive.
    `synonyms` and `documentation` are present only if requested."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN
    read_only: bool = False
    sensitive: bool = False
    type: ConfigType = ConfigType.UNKNOWN
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether the value is Kafka's own default: neither the resource nor a broker sets the
        option."""
        return self.source is ConfigSource.DEFAULT_CONFIG


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """The options of a resource, in the order of the broker's response. If the request failed, only
    `error` is set."""

    resource: ConfigResource
    entries: tuple[ConfigEntry, ...] = ()
    error: ClientError | None = None

    def check(self) -> ConfigDescription:
        """Return the description itself, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


@dataclass(frozen=True, slots=True)
class ConfigResult:
    """The result of changes to a resource. `error` is None if the changes were applied."""

    resource: ConfigResource
    error: ClientError | None = None

    def check(self) -> ConfigResult:
        """Return the result itself, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


async def describe_configs(
    calls: Calls,
    resources: Iterable[ConfigResource],
    *,
    names: Sequence[str] | None,
    synonyms: bool,
    documentation: bool,
    timeout_ms: int | None,
) -> dict[ConfigResource, ConfigDescription]:
    """Return one description for each resource. `names` None: all options."""

    async def describe(
        chosen: Sequence[ConfigResource], connection: Connection, timeout_s: float
    ) -> Mapping[ConfigResource, ConfigDescription]:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configuration_keys=None if names is None else list(names),
                )
                for resource in chosen
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        if connection.version_of(ApiKey.DESCRIBE_CONFIGS) < 1:
            request.include_synonyms = False
        if connection.version_of(ApiKey.DESCRIBE_CONFIGS) < 3:
            request.include_documentation = False
        answer = await connection.send(
            ApiKey.DESCRIBE_CONFIGS, request, DescribeConfigsResponse, timeout_s=timeout_s
        )
        found = {}
        for row in answer.results:
            resource = ConfigResource(ResourceKind(row.resource_type), row.resource_name)
            entries = tuple(_entry(resource.kind, entry) for entry in row.configs)
            error = response_error(row.error_code, row.error_message)
            found[resource] = ConfigDescription(resource, entries, error)
        return found

    answers = await _ask_each(calls, resources, describe, timeout_ms)
    return {
        resource: ConfigDescription(resource, error=answer)
        if isinstance(answer, ClientError)
        else answer
        for resource, answer in answers.items()
    }


async def alter_configs(
    calls: Calls,
    changes: Mapping[ConfigResource, Iterable[ConfigChange]],
    *,
    validate_only: bool,
    timeout_ms: int | None,
) -> dict[ConfigResource, ConfigResult]:
    """Change the given options of each resource and keep all others (IncrementalAlterConfigs).
    Return one result for each resource."""
    rows = {
        resource: [
            IncrementalAlterableConfig(
                name=change.name, config_operation=change.operation, value=change.value
            )
            for change in wanted
        ]
        for resource, wanted in changes.items()
    }

    async def alter(
        chosen: Sequence[ConfigResource], connection: Connection, timeout_s: float
    ) -> Mapping[ConfigResource, ConfigResult]:
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=rows[resource],
                )
                for resource in chosen
            ],
            validate_only=validate_only,
        )
        answer = await connection.send(
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            request,
            IncrementalAlterConfigsResponse,
            timeout_s=timeout_s,
        )
        return _results(
            (row.resource_type, row.resource_name, row.error_code, row.error_message)
            for row in answer.responses
        )

    return _outcomes(await _ask_each(calls, rows, alter, timeout_ms))


async def replace_configs(
    calls: Calls,
    configs: Mapping[ConfigResource, Mapping[str, str | None]],
    *,
    validate_only: bool,
    timeout_ms: int | None,
) -> dict[ConfigResource, ConfigResult]:
    """Set the given options of each resource and unset all others (AlterConfigs). Return one result
    for each resource."""

    async def replace(
        chosen: Sequence[ConfigResource], connection: Connection, timeout_s: float
    ) -> Mapping[ConfigResource, ConfigResult]:
        request = AlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=resource.kind,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(name=name, value=value)
                        for name, value in configs[resource].items()
                    ],
                )
                for resource in chosen
            ],
            validate_only=validate_only,
        )
        answer = await connection.send(
            ApiKey.ALTER_CONFIGS, request, AlterConfigsResponse, timeout_s=timeout_s
        )
        return _results(
            (row.resource_type, row.resource_name, row.error_code, row.error_message)
            for row in answer.responses
        )

    return _outcomes(await _ask_each(calls, configs, replace, timeout_ms))


_AskAbout = Callable[
    [Sequence[ConfigResource], Connection, float], Awaitable[Mapping[ConfigResource, T]]
]


async def _ask_each(
    calls: Calls,
    resources: Iterable[ConfigResource],
    ask: _AskAbout[T],
    timeout_ms: int | None,
) -> dict[ConfigResource, T | ClientError]:
    """Return for each resource the result or the error. A broker's own options and loggers are
    requested from that broker."""
    wanted = list(dict.fromkeys(resources))
    groups: dict[int | None, list[ConfigResource]] = {}
    for resource in wanted:
        groups.setdefault(_owner(resource), []).append(resource)

    async def group(node: int | None) -> Mapping[ConfigResource, T | ClientError]:
        async def ask_about(connection: Connection, timeout_s: float) -> Mapping[ConfigResource, T]:
            return await ask(groups[node], connection, timeout_s)

        try:
            if node is None:
                return await calls.any_broker(ask_about, timeout_ms)
            return await calls.broker(node, ask_about, timeout_ms)
        except ClientError as error:
            return dict.fromkeys(groups[node], error)

    calls.check_opened()
    answers: dict[ConfigResource, T | ClientError] = {}
    for found in await asyncio.gather(*map(group, groups)):
        answers.update(found)
    return {resource: answers.get(resource, _NOT_ANSWERED) for resource in wanted}


def _owner(resource: ConfigResource) -> int | None:
    if resource.kind is ResourceKind.TOPIC or not resource.name.isdecimal():
        return None
    return int(resource.name)


def _results(
    rows: Iterable[tuple[int, str, int, str | None]],
) -> dict[ConfigResource, ConfigResult]:
    found = {}
    for kind, name, code, message in rows:
        resource = ConfigResource(ResourceKind(kind), name)
        found[resource] = ConfigResult(resource, response_error(code, message))
    return found


def _outcomes(
    answers: Mapping[ConfigResource, ConfigResult | ClientError],
) -> dict[ConfigResource, ConfigResult]:
    return {
        resource: ConfigResult(resource, answer) if isinstance(answer, ClientError) else answer
        for resource, answer in answers.items()
    }


def _entry(kind: ResourceKind, row: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=row.name,
        value=row.value,
        source=_source(kind, row),
        read_only=row.read_only,
        sensitive=row.is_sensitive,
        type=_TYPES.get(row.config_type, ConfigType.UNKNOWN),
        synonyms=tuple(
            ConfigSynonym(
                synonym.name,
                synonym.value,
                _SOURCES.get(synonym.source, ConfigSource.UNKNOWN),
            )
            for synonym in row.synonyms
        ),
        documentation=row.documentation,
    )


def _source(kind: ResourceKind, row: DescribeConfigsResourceResult) -> ConfigSource:
    """Return the source of the value. A DescribeConfigs response of version 0 reports only whether
    the value is the default."""
    if row.config_source >= 0:
        return _SOURCES.get(row.config_source, ConfigSource.UNKNOWN)
    if row.is_default:
        return ConfigSource.DEFAULT_CONFIG
    if kind is ResourceKind.TOPIC:
        return ConfigSource.DYNAMIC_TOPIC_CONFIG
    return ConfigSource.STATIC_BROKER_CONFIG


_TYPES: Final = {int(kind): kind for kind in ConfigType}
_SOURCES: Final = {int(source): source for source in ConfigSource}
_NOT_ANSWERED: Final = ResponseError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's response has no result for the resource"
)
