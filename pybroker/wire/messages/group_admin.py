"""For operators of groups: DescribeGroups (15) 0-5, ListGroups (16) 0-4, DeleteGroups (42) 0-2.

DescribeGroups: 1 throttle time. 2 the client throttles itself. 3 authorized operations. 4 static
members. 5 flexible.
ListGroups: 1 throttle time. 2 the client throttles itself. 3 flexible. 4 states (KIP-518).
DeleteGroups: 1 the client throttles itself. 2 flexible.
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

OPERATIONS_NOT_ASKED: Final = -(2**31)  # instead of the bits of authorized operations


@message
class DescribeGroupsRequest(Message):
    """Asks for the state and the members of groups."""

    groups: list[str] = string_array("The groups' ids.")
    include_authorized_operations: bool = boolean(
        "Whether to answer the operations allowed on each group.", since=3
    )


@message
class DescribedGroupMember(Message):
    """One element of `DescribedGroup.members`."""

    member_id: str = string("The member's id; empty before the coordinator gave one.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.",
        since=4,
        nullable_since=4,
        ignorable=True,
        default=None,
    )
    client_id: str = string("The member's client id.")
    client_host: str = string("Where the member connects from.")
    member_metadata: bytes = octets("The member's data for the assignor.")
    member_assignment: bytes = octets("The member's assignment.")


@message
class DescribedGroup(Message):
    """One element of `DescribeGroupsResponse.groups`."""

    error_code: int = int16("The error, or 0.")
    group_id: str = string("The group's id.")
    group_state: str = string("The state's name, as in Stable.")
    protocol_type: str = string('What kind of group it is; consumers say "consumer".')
    protocol_data: str = string("The assignor in use.")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "The members.")
    authorized_operations: int = int32(
        "Bits of the operations allowed on the group.", since=3, default=OPERATIONS_NOT_ASKED
    )


@message
class DescribeGroupsResponse(Message):
    """State and members of each group."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    groups: list[DescribedGroup] = array(DescribedGroup, "One result for each id.")


@message
class ListGroupsRequest(Message):
    """Asks which groups this broker coordinates."""

    states_filter: list[str] = string_array("The states to list; empty all (KIP-518).", since=4)


@message
class ListedGroup(Message):
    """One element of `ListGroupsResponse.groups`."""

    group_id: str = string("The group's id.")
    protocol_type: str = string('What kind of group it is; consumers say "consumer".')
    group_state: str = string("The state's name, as in Stable.", since=4, ignorable=True)


@message
class ListGroupsResponse(Message):
    """The groups."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    groups: list[ListedGroup] = array(ListedGroup, "The groups that this broker coordinates.")


@message
class DeleteGroupsRequest(Message):
    """Deletes groups without members, and their offsets."""

    groups_names: list[str] = string_array("The groups' ids.")


@message
class DeletableGroupResult(Message):
    """One element of `DeleteGroupsResponse.results`."""

    group_id: str = string("The group's id.")
    error_code: int = int16("The error, or 0.")


@message
class DeleteGroupsResponse(Message):
    """Whether each group was deleted."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all."
    )
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "One result for each group.")
