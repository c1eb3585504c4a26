"""Access rules: DescribeAcls (29), CreateAcls (30), DeleteAcls (31), versions 0-2 each.

1 pattern types (KIP-290), the client throttles itself. 2 flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import Message, array, int8, int16, int32, message, string


@message
class DescribeAclsRequest(Message):
    """Asks for the rules that match a filter."""

    resource_type_filter: int = int8("The kind of resource, or 1 for any.")
    resource_name_filter: str | None = string(
        "The resource's name; null is any.", nullable_since=0, default=None
    )
    pattern_type_filter: int = int8(
        "How the name matches (KIP-290): 3 literally, 4 as a prefix, 1 any, 2 match.",
        since=1,
        default=3,
    )
    principal_filter: str | None = string(
        "The principal; null is any.", nullable_since=0, default=None
    )
    host_filter: str | None = string("The host; null is any.", nullable_since=0, default=None)
    operation: int = int8("The operation.")
    permission_type: int = int8("Whether to allow or to deny.")


@message
class AclDescription(Message):
    """One element of `DescribeAclsResource.acls`."""

    principal: str = string("The principal, as in User:alice.")
    host: str = string("The host, or * for any.")
    operation: int = int8("The operation.")
    permission_type: int = int8("Whether to allow or to deny.")


@message
class DescribeAclsResource(Message):
    """One element of `DescribeAclsResponse.resources`."""

    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    pattern_type: int = int8(
        "How the name matches: 3 literally, 4 as a prefix (KIP-290).", since=1, default=3
    )
    acls: list[AclDescription] = array(AclDescription, "The rules of the resource.")


@message
class DescribeAclsResponse(Message):
    """The rules."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    resources: list[DescribeAclsResource] = array(
        DescribeAclsResource, "The rules found, by resource."
    )


@message
class AclCreation(Message):
    """One element of `CreateAclsRequest.creations`."""

    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    resource_pattern_type: int = int8(
        "How the name matches: 3 literally, 4 as a prefix (KIP-290).", since=1, default=3
    )
    principal: str = string("The principal, as in User:alice.")
    host: str = string("The host, or * for any.")
    operation: int = int8("The operation.")
    permission_type: int = int8("Whether to allow or to deny.")


@message
class CreateAclsRequest(Message):
    """Adds rules."""

    creations: list[AclCreation] = array(AclCreation, "The rules to add.")


@message
class AclCreationResult(Message):
    """One element of `CreateAclsResponse.results`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )


@message
class CreateAclsResponse(Message):
    """Whether each rule was added."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[AclCreationResult] = array(AclCreationResult, "One result for each rule.")


@message
class DeleteAclsFilter(Message):
    """One element of `DeleteAclsRequest.filters`."""

    resource_type_filter: int = int8("The kind of resource, or 1 for any.")
    resource_name_filter: str | None = string(
        "The resource's name; null is any.", nullable_since=0, default=None
    )
    pattern_type_filter: int = int8(
        "How the name matches (KIP-290): 3 literally, 4 as a prefix, 1 any, 2 match.",
        since=1,
        default=3,
    )
    principal_filter: str | None = string(
        "The principal; null is any.", nullable_since=0, default=None
    )
    host_filter: str | None = string("The host; null is any.", nullable_since=0, default=None)
    operation: int = int8("The operation.")
    permission_type: int = int8("Whether to allow or to deny.")


@message
class DeleteAclsRequest(Message):
    """Removes the rules that match filters."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, "Filters of the rules to remove.")


@message
class DeleteAclsMatchingAcl(Message):
    """One element of `DeleteAclsFilterResult.matching_acls`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The kind of resource.")
    resource_name: str = string("The resource's name.")
    pattern_type: int = int8(
        "How the name matches: 3 literally, 4 as a prefix (KIP-290).", since=1, default=3
    )
    principal: str = string("The principal, as in User:alice.")
    host: str = string("The host, or * for any.")
    operation: int = int8("The operation.")
    permission_type: int = int8("Whether to allow or to deny.")


@message
class DeleteAclsFilterResult(Message):
    """One element of `DeleteAclsResponse.filter_results`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )
    matching_acls: list[DeleteAclsMatchingAcl] = array(
        DeleteAclsMatchingAcl, "The rules that the filter met."
    )


@message
class DeleteAclsResponse(Message):
    """The rules that were removed."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    filter_results: list[DeleteAclsFilterResult] = array(
        DeleteAclsFilterResult, "One result for each filter."
    )
