"""ACLs: DescribeAcls (29), CreateAcls (30), DeleteAcls (31), versions 0-2 each.

Changes in version 1: pattern types (KIP-290), throttling by the client (KIP-219). Version 2:
flexible.
"""

from __future__ import annotations

from pybroker.wire.schema import Message, array, int8, int16, int32, message, string


@message
class DescribeAclsRequest(Message):
    """Requests the ACLs that match a filter."""

    resource_type_filter: int = int8("The resource type; 1 for any type.")
    resource_name_filter: str | None = string(
        "The resource name; null for any name.", nullable_since=0, default=None
    )
    pattern_type_filter: int = int8(
        "The pattern type of the resource name (KIP-290): 1 any, 2 match, 3 literal, 4 prefixed.",
        since=1,
        default=3,
    )
    principal_filter: str | None = string(
        "The principal; null for any principal.", nullable_since=0, default=None
    )
    host_filter: str | None = string("The host; null for any host.", nullable_since=0, default=None)
    operation: int = int8("The ACL operation, for example 3 for read.")
    permission_type: int = int8("The permission type: 1 any, 2 deny, 3 allow.")


@message
class AclDescription(Message):
    """An ACL of a resource: an element of `DescribeAclsResource.acls`."""

    principal: str = string("The principal, for example User:alice.")
    host: str = string("The host; * for any host.")
    operation: int = int8("The ACL operation, for example 3 for read.")
    permission_type: int = int8("The permission type: 1 any, 2 deny, 3 allow.")


@message
class DescribeAclsResource(Message):
    """A resource with the ACLs that match the filter: an element of
    `DescribeAclsResponse.resources`."""

    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    pattern_type: int = int8(
        "The pattern type of the resource name (KIP-290): 3 literal, 4 prefixed.",
        since=1,
        default=3,
    )
    acls: list[AclDescription] = array(AclDescription, "The ACLs of the resource.")


@message
class DescribeAclsResponse(Message):
    """The ACLs that match the filter."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    resources: list[DescribeAclsResource] = array(
        DescribeAclsResource, "The ACLs that match the filter, by resource."
    )


@message
class AclCreation(Message):
    """An ACL to create: an element of `CreateAclsRequest.creations`."""

    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    resource_pattern_type: int = int8(
        "The pattern type of the resource name (KIP-290): 3 literal, 4 prefixed.",
        since=1,
        default=3,
    )
    principal: str = string("The principal, for example User:alice.")
    host: str = string("The host; * for any host.")
    operation: int = int8("The ACL operation, for example 3 for read.")
    permission_type: int = int8("The permission type: 1 any, 2 deny, 3 allow.")


@message
class CreateAclsRequest(Message):
    """Creates ACLs."""

    creations: list[AclCreation] = array(AclCreation, "The ACLs to create.")


@message
class AclCreationResult(Message):
    """The result of creating one ACL: an element of `CreateAclsResponse.results`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )


@message
class CreateAclsResponse(Message):
    """The result of each creation of an ACL."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[AclCreationResult] = array(
        AclCreationResult, "One result for each ACL of the request, in the same order."
    )


@message
class DeleteAclsFilter(Message):
    """A filter for the ACLs to delete: an element of `DeleteAclsRequest.filters`."""

    resource_type_filter: int = int8("The resource type; 1 for any type.")
    resource_name_filter: str | None = string(
        "The resource name; null for any name.", nullable_since=0, default=None
    )
    pattern_type_filter: int = int8(
        "The pattern type of the resource name (KIP-290): 1 any, 2 match, 3 literal, 4 prefixed.",
        since=1,
        default=3,
    )
    principal_filter: str | None = string(
        "The principal; null for any principal.", nullable_since=0, default=None
    )
    host_filter: str | None = string("The host; null for any host.", nullable_since=0, default=None)
    operation: int = int8("The ACL operation, for example 3 for read.")
    permission_type: int = int8("The permission type: 1 any, 2 deny, 3 allow.")


@message
class DeleteAclsRequest(Message):
    """Deletes the ACLs that match any of several filters."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, "The filters of the ACLs to delete.")


@message
class DeleteAclsMatchingAcl(Message):
    """An ACL that matched the filter, and the result of its deletion: an element of
    `DeleteAclsFilterResult.matching_acls`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    resource_type: int = int8("The resource type.")
    resource_name: str = string("The resource name.")
    pattern_type: int = int8(
        "The pattern type of the resource name (KIP-290): 3 literal, 4 prefixed.",
        since=1,
        default=3,
    )
    principal: str = string("The principal, for example User:alice.")
    host: str = string("The host; * for any host.")
    operation: int = int8("The ACL operation, for example 3 for read.")
    permission_type: int = int8("The permission type: 1 any, 2 deny, 3 allow.")


@message
class DeleteAclsFilterResult(Message):
    """The result for one filter: an element of `DeleteAclsResponse.filter_results`."""

    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )
    matching_acls: list[DeleteAclsMatchingAcl] = array(
        DeleteAclsMatchingAcl, "The ACLs that match the filter."
    )


@message
class DeleteAclsResponse(Message):
    """The deleted ACLs of each filter."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    filter_results: list[DeleteAclsFilterResult] = array(
        DeleteAclsFilterResult, "One result for each filter of the request, in the same order."
    )
