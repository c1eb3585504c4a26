"""Administration of groups: DescribeGroups (15), versions 0-5, ListGroups (16), versions 0-4, and
DeleteGroups (42), versions 0-2.

Throttling by the client (KIP-219) begins with DescribeGroups 2, ListGroups 2 and DeleteGroups 1.
"""

from __future__ import annotations

from typing import Final

from pybroker.wire.schema import (
    Message,
    array,
    boolean,
    int16,
    int32,
    message,
    octets,
    string,
    string_array,
)

OPERATIONS_NOT_ASKED: Final = -(2**31)
"""The value of a field for authorized operations if the client did not request them."""


@message
class DescribeGroupsRequest(Message):
    """Requests the state and the members of groups."""

    groups: list[str] = string_array("The group ids.")
    include_authorized_operations: bool = boolean(
        "Whether the response includes the operations that the client may perform on each group.",
        since=3,
    )


@message
class DescribedGroupMember(Message):
    """A member of the group: an element of `DescribedGroup.members`."""

    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=4,
        nullable_since=4,
        ignorable=True,
        default=None,
    )
    client_id: str = string("The client id of the member.")
    client_host: str = string("The host of the member.")
    member_metadata: bytes = octets("The metadata that the member sends to the assignor.")
    member_assignment: bytes = octets("The assignment of the member.")


@message
class DescribedGroup(Message):
    """The description of one group: an element of `DescribeGroupsResponse.groups`."""

    error_code: int = int16("The error, or 0.")
    group_id: str = string("The group id.")
    group_state: str = string("The name of the state, for example Stable.")
    protocol_type: str = string('The protocol type of the group; consumers use "consumer".')
    protocol_data: str = string("The assignor of the current generation.")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "The members of the group.")
    authorized_operations: int = int32(
        "A bit field of the operations that the client may perform on the group.",
        since=3,
        default=OPERATIONS_NOT_ASKED,
    )


@message
class DescribeGroupsResponse(Message):
    """The state and the members of each group."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    groups: list[DescribedGroup] = array(DescribedGroup, "One result for each id of the request.")


@message
class ListGroupsRequest(Message):
    """Requests the groups that this broker coordinates."""

    states_filter: list[str] = string_array(
        "The states of the groups to list; empty for all states (KIP-518).", since=4
    )


@message
class ListedGroup(Message):
    """A group that the broker coordinates: an element of `ListGroupsResponse.groups`."""

    group_id: str = string("The group id.")
    protocol_type: str = string('The protocol type of the group; consumers use "consumer".')
    group_state: str = string("The name of the state, for example Stable.", since=4, ignorable=True)


@message
class ListGroupsResponse(Message):
    """The groups that this broker coordinates."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    groups: list[ListedGroup] = array(ListedGroup, "The groups that this broker coordinates.")


@message
class DeleteGroupsRequest(Message):
    """Deletes groups and their committed offsets. The groups must have no members."""

    groups_names: list[str] = string_array("The group ids.")


@message
class DeletableGroupResult(Message):
    """The result for one group: an element of `DeleteGroupsResponse.results`."""

    group_id: str = string("The group id.")
    error_code: int = int16("The error, or 0.")


@message
class DeleteGroupsResponse(Message):
    """The result for each group to delete."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none."
    )
    results: list[DeletableGroupResult] = array(
        DeletableGroupResult, "One result for each group of the request."
    )
