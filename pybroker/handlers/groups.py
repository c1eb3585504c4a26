"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: turns each request into a call of the group
coordinator.
"""

from __future__ import annotations

from typing import Final

from pybroker.coordinator.groups.calls import Identity, Join, Joined, Sync
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.wire.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

_FIRST_JOIN_WITH_KNOWN_ID: Final = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
_FIRST_JOIN_THAT_SKIPS: Final = 9
_FIRST_SYNC_WITH_PROTOCOL: Final = 5
_FIRST_LEAVE_OF_MANY: Final = 3


async def handle_join_group(
    services: Services, request: Request, message: JoinGroupRequest
) -> JoinGroupResponse:
    instance_id = message.group_instance_id
    timeout_ms = message.rebalance_timeout_ms
    call = Join(
        member_id=message.member_id,
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.session_timeout_ms if timeout_ms < 0 else timeout_ms,
        protocol_type=message.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in message.protocols),
        instance_id=instance_id,
        client_id=request.header.client_id or "",
        client_host=f"/{request.peer_host}",
        requires_known_id=request.version >= _FIRST_JOIN_WITH_KNOWN_ID and instance_id is None,
        may_skip=request.version >= _FIRST_JOIN_THAT_SKIPS,
        reason=message.reason or "",
    )
    joined = await services.groups.join(message.group_id, call)
    return _join_response(joined, request.version)


def _join_response(joined: Joined, version: int) -> JoinGroupResponse:
    protocol = joined.protocol
    if protocol is None and version < _FIRST_JOIN_WITH_NULL_PROTOCOL:
        protocol = ""
    return JoinGroupResponse(
        error_code=joined.error,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=protocol,
        leader=joined.leader,
        skip_assignment=joined.skips,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )


async def handle_sync_group(
    services: Services, request: Request, message: SyncGroupRequest
) -> SyncGroupResponse:
    says_nothing = message.protocol_type is None or message.protocol_name is None
    if request.version >= _FIRST_SYNC_WITH_PROTOCOL and says_nothing:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    call = Sync(
        member_id=message.member_id,
        generation=message.generation_id,
        instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocol=message.protocol_name,
        assignments={each.member_id: bytes(each.assignment) for each in message.assignments},
    )
    synced = await services.groups.sync(message.group_id, call)
    return SyncGroupResponse(
        error_code=synced.error,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )


def handle_heartbeat(
    services: Services, request: Request, message: HeartbeatRequest
) -> HeartbeatResponse:
    who = Identity(message.member_id, message.group_instance_id)
    code = services.groups.heartbeat(message.group_id, who, message.generation_id)
    return HeartbeatResponse(error_code=code)


def handle_leave_group(
    services: Services, request: Request, message: LeaveGroupRequest
) -> LeaveGroupResponse:
    many = request.version >= _FIRST_LEAVE_OF_MANY
    leaving = [Identity(each.member_id, each.group_instance_id) for each in message.members]
    if not many:
        leaving = [Identity(message.member_id)]
    try:
        codes = services.groups.leave(message.group_id, leaving)
    except BrokerError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not many:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(
                member_id=who.member_id, group_instance_id=who.instance_id, error_code=code
            )
            for who, code in zip(leaving, codes, strict=True)
        ]
    )
