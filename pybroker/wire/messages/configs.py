"""Configuration: DescribeConfigs (32), versions 0-4, AlterConfigs (33), versions 0-2, and
IncrementalAlterConfigs (44), versions 0-1.

Resource types are 2 for a topic, 4 for a broker, 8 for the loggers of a broker.

Throttling by the client (KIP-219) begins with DescribeConfigs 2 and AlterConfigs 1.
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
    """A resource to describe, and the names of the options to return: an element of
    `DescribeConfigsRequest.resources`."""

    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    configuration_keys: list[str] | None = string_array(
        "The names of the options to describe; null for all options.",
        nullable_since=0,
        default=None,
    )


@message
class DescribeConfigsRequest(Message):
    """Requests the configuration of topics and brokers."""

    resources: list[DescribeConfigsResource] = array(
        DescribeConfigsResource, "The resources to describe."
    )
    include_synonyms: bool = boolean(
        "Whether the response lists the synonyms of each option.", since=1
    )
    include_documentation: bool = boolean(
        "Whether the response includes the documentation of each option.", since=3
    )


@message
class DescribeConfigsSynonym(Message):
    """The value of an option at one of the sources that set it: an element of
    `DescribeConfigsResourceResult.synonyms`."""

    name: str = string("The name of the option at this source.")
    value: str | None = string("The value at this source.", nullable_since=0, default=None)
    source: int = int8("The source; its numbers are those of config_source.")


@message
class DescribeConfigsResourceResult(Message):
    """One option of a resource, with its value: an element of `DescribeConfigsResult.configs`."""

    name: str = string("The name of the option.")
    value: str | None = string(
        "The value; null if the option is sensitive or not set.", nullable_since=0, default=None
    )
    read_only: bool = boolean("Whether the option is read-only.")
    is_default: bool = boolean("Whether the option has its default value.", until=0, ignorable=True)
    config_source: int = int8(
        "The source: 1 topic, 2 one broker, 3 all brokers, 4 properties file, 5 default.",
        since=1,
        ignorable=True,
        default=-1,
    )
    is_sensitive: bool = boolean("Whether the option is sensitive, such as a password.")
    synonyms: list[DescribeConfigsSynonym] = array(
        DescribeConfigsSynonym,
        "All sources that set the option, the source with the highest precedence first.",
        since=1,
        ignorable=True,
    )
    config_type: int = int8(
        "The data type of the option (KIP-569); 0 for unknown.", since=3, ignorable=True
    )
    documentation: str | None = string(
        "The documentation of the option, or null.",
        since=3,
        nullable_since=3,
        ignorable=True,
        default=None,
    )


@message
class DescribeConfigsResult(Message):
    """The options of one resource: an element of `DescribeConfigsResponse.results`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    configs: list[DescribeConfigsResourceResult] = array(
        DescribeConfigsResourceResult, "The configuration of the resource."
    )


@message
class DescribeConfigsResponse(Message):
    """The configuration of each resource."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[DescribeConfigsResult] = array(
        DescribeConfigsResult, "One result for each resource of the request."
    )


@message
class AlterableConfig(Message):
    """An option and its new value: an element of `AlterConfigsResource.configs`."""

    name: str = string("The name of the option.")
    value: str | None = string("The value; null for the default.", nullable_since=0, default=None)


@message
class AlterConfigsResource(Message):
    """A resource and its complete new configuration: an element of
    `AlterConfigsRequest.resources`."""

    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    configs: list[AlterableConfig] = array(
        AlterableConfig, "The new configuration, which replaces all options of the resource."
    )


@message
class AlterConfigsRequest(Message):
    """Replaces the configuration of topics and brokers."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "The resources to change.")
    validate_only: bool = boolean(
        "Whether the broker only validates the request and changes nothing."
    )


@message
class AlterConfigsResourceResponse(Message):
    """The result for one resource: an element of `AlterConfigsResponse.responses`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")


@message
class AlterConfigsResponse(Message):
    """The result for each resource whose configuration the request replaces."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    responses: list[AlterConfigsResourceResponse] = array(
        AlterConfigsResourceResponse, "One result for each resource of the request."
    )


@message
class IncrementalAlterableConfig(Message):
    """A change of one option: an element of `IncrementalAlterConfigsResource.configs`."""

    name: str = string("The name of the option.")
    config_operation: int = int8("The operation: 0 set, 1 delete, 2 append, 3 subtract.")
    value: str | None = string(
        "The value to set, or the list items to append or subtract.", nullable_since=0, default=None
    )


@message
class IncrementalAlterConfigsResource(Message):
    """A resource and the changes of its options: an element of
    `IncrementalAlterConfigsRequest.resources`."""

    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    configs: list[IncrementalAlterableConfig] = array(
        IncrementalAlterableConfig, "The options to change."
    )


@message
class IncrementalAlterConfigsRequest(Message):
    """Changes single options of topics and brokers (KIP-339)."""

    resources: list[IncrementalAlterConfigsResource] = array(
        IncrementalAlterConfigsResource, "The resources to change."
    )
    validate_only: bool = boolean(
        "Whether the broker only validates the request and changes nothing."
    )


@message
class IncrementalAlterConfigsResourceResponse(Message):
    """The result for one resource: an element of `IncrementalAlterConfigsResponse.responses`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")


@message
class IncrementalAlterConfigsResponse(Message):
    """The result for each resource whose options the request changes."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    responses: list[IncrementalAlterConfigsResourceResponse] = array(
        IncrementalAlterConfigsResourceResponse, "One result for each resource of the request."
    )
