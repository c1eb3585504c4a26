"""DescribeGroups, ListGroups, DeleteGroups: administrators' requests about groups."""

from __future__ import annotations

from typing import Final

from pybroker.coordinator.groups.calls import GroupView
from pybroker.errors import BrokerError
from pybroker.handlers.context import Request, Services
from pybroker.wire.messages.group_admin import (
    OPERATIONS_NOT_ASKED,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

ALL_GROUP_OPERATIONS: Final = 0b0000_0001_0100_1000
"""The operations READ, DELETE and DESCRIBE: each one sets the bit of its AclOperation number.
Without an authorizer every client may do all of them."""


async def handle_describe_groups(
    services: Services, request: Request, message: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    operations = OPERATIONS_NOT_ASKED
    if message.include_authorized_operations:
        operations = ALL_GROUP_OPERATIONS
    # A repeated group is described once: its name has a few bytes, its description may have
    # megabytes.
    names = dict.fromkeys(message.groups)
    return DescribeGroupsResponse(
        groups=[await _described(services, group_id, operations) for group_id in names]
    )


async def _described(services: Services, group_id: str, operations: int) -> DescribedGroup:
    try:
        view = await services.groups.describe(group_id)
    except BrokerError as error:
        return DescribedGroup(error_code=error.code, group_id=group_id)
    return _shown(view, operations)


def _shown(view: GroupView, operations: int) -> DescribedGroup:
    return DescribedGroup(
        group_id=view.group_id,
        group_state=view.state.value,
        protocol_type=view.protocol_type,
        protocol_data=view.protocol,
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in view.members
        ],
        authorized_operations=operations,
    )


async def handle_list_groups(
    services: Services, request: Request, message: ListGroupsRequest
) -> ListGroupsResponse:
    error, found = await services.groups.overviews(message.states_filter)
    return ListGroupsResponse(
        error_code=error,
        groups=[
            ListedGroup(
                group_id=each.group_id,
                protocol_type=each.protocol_type,
                group_state=each.state.value,
            )
            for each in found
        ],
    )


async def handle_delete_groups(
    services: Services, request: Request, message: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(
                group_id=group_id, error_code=await services.groups.delete(group_id)
            )
            for group_id in dict.fromkeys(message.groups_names)
        ]
    )
