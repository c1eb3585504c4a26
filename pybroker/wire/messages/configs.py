"""Configuration: DescribeConfigs (32) 0-4, AlterConfigs (33) 0-2, IncrementalAlterConfigs (44) 0-1.

Kinds of resources: 2 topic, 4 broker, 8 loggers of a broker.
DescribeConfigs: 1 synonyms and sources. 2 the client throttles itself. 3 types and documentation.
4 flexible. AlterConfigs: 1 the client throttles itself. 2 flexible. IncrementalAlterConfigs:
1 flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    string,
    string_array,
)


@message
class DescribeConfigsResource(Message):
    """One element of `DescribeConfigsRequest.resources`."""

    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    configuration_keys: list[str] | None = string_array(
        "The options to describe; null all.", nullable_since=0, default=None
    )


@message
class DescribeConfigsRequest(Message):
    """Asks for the configuration of topics and brokers."""

    resources: list[DescribeConfigsResource] = array(
        DescribeConfigsResource, "The resources to describe."
    )
    include_synonyms: bool = boolean(
        "Whether to list where else the value could come from.", since=1
    )
    include_documentation: bool = boolean("Whether to explain each option.", since=3)


@message
class DescribeConfigsSynonym(Message):
    """One element of `DescribeConfigsResourceResult.synonyms`."""

    name: str = string("The option's name there.")
    value: str | None = string("The value there.", nullable_since=0, default=None)
    source: int = int8("Where: the numbers of config_source.")


@message
class DescribeConfigsResourceResult(Message):
    """One element of `DescribeConfigsResult.configs`."""

    name: str = string("The option's name.")
    value: str | None = string(
        "Its value; null if sensitive or unset.", nullable_since=0, default=None
    )
    read_only: bool = boolean("Whether it cannot be changed.")
    is_default: bool = boolean("Whether it is set nowhere.", until=0, ignorable=True)
    config_source: int = int8(
        "Where the value comes from: 1 topic, 2 broker, 3 all brokers, 4 file, 5 default.",
        since=1,
        ignorable=True,
        default=-1,
    )
    is_sensitive: bool = boolean("Whether the value is a secret.")
    synonyms: list[DescribeConfigsSynonym] = array(
        DescribeConfigsSynonym,
        "All places that give a value, the strongest first.",
        since=1,
        ignorable=True,
    )
    config_type: int = int8(
        "The type of the value (KIP-569), 0 if unknown.", since=3, ignorable=True
    )
    documentation: str | None = string(
        "The meaning of the option, or null.",
        since=3,
        nullable_since=3,
        ignorable=True,
        default=None,
    )


@message
class DescribeConfigsResult(Message):
    """One element of `DescribeConfigsResponse.results`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    configs: list[DescribeConfigsResourceResult] = array(
        DescribeConfigsResourceResult, "The options."
    )


@message
class DescribeConfigsResponse(Message):
    """The configuration of each resource."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[DescribeConfigsResult] = array(
        DescribeConfigsResult, "One result for each resource."
    )


@message
class AlterableConfig(Message):
    """One element of `AlterConfigsResource.configs`."""

    name: str = string("The option's name.")
    value: str | None = string(
        "The option's value; null for the default.", nullable_since=0, default=None
    )


@message
class AlterConfigsResource(Message):
    """One element of `AlterConfigsRequest.resources`."""

    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    configs: list[AlterableConfig] = array(AlterableConfig, "The whole new configuration.")


@message
class AlterConfigsRequest(Message):
    """Replaces the configuration of topics and brokers."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "The resources to change.")
    validate_only: bool = boolean("Whether only to check what would happen.")


@message
class AlterConfigsResourceResponse(Message):
    """One element of `AlterConfigsResponse.responses`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")


@message
class AlterConfigsResponse(Message):
    """Whether each resource was changed."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    responses: list[AlterConfigsResourceResponse] = array(
        AlterConfigsResourceResponse, "One result for each resource."
    )


@message
class IncrementalAlterableConfig(Message):
    """One element of `IncrementalAlterConfigsResource.configs`."""

    name: str = string("The option's name.")
    config_operation: int = int8("0 set, 1 delete, 2 append, 3 subtract.")
    value: str | None = string(
        "The value, or the list items to add or remove.", nullable_since=0, default=None
    )


@message
class IncrementalAlterConfigsResource(Message):
    """One element of `IncrementalAlterConfigsRequest.resources`."""

    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    configs: list[IncrementalAlterableConfig] = array(IncrementalAlterableConfig, "The changes.")


@message
class IncrementalAlterConfigsRequest(Message):
    """Changes single options of topics and brokers (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = array(
        IncrementalAlterConfigsResource, "The resources to change."
    )
    validate_only: bool = boolean("Whether only to check what would happen.")


@message
class IncrementalAlterConfigsResourceResponse(Message):
    """One element of `IncrementalAlterConfigsResponse.responses`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")


@message
class IncrementalAlterConfigsResponse(Message):
    """Whether each resource was changed."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    responses: list[IncrementalAlterConfigsResourceResponse] = array(
        IncrementalAlterConfigsResourceResponse, "One result for each resource."
    )
