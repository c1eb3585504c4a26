"""Requests of group members: FindCoordinator (10), versions 0-4, JoinGroup (11), versions 0-9,
Heartbeat (12), versions 0-4, LeaveGroup (13), versions 0-4, SyncGroup (14), versions 0-5.

- Throttling by the client (KIP-219) begins with JoinGroup 3, and with version 2 of the other APIs.
- JoinGroup 4 adds error 79 (MEMBER_ID_REQUIRED, KIP-394).
- JoinGroup 8 adds the reason of the request (KIP-800).
- JoinGroup 9 adds the response field `skip_assignment` (KIP-814).
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
    octets,
    string,
    string_array,
)


@message
class FindCoordinatorRequest(Message):
    """Requests the coordinator of a group or a transactional id."""

    key: str = string("The group id or the transactional id.", until=3)
    key_type: int = int8("The type of the key: 0 group, 1 transactional id.", since=1)
    coordinator_keys: list[str] = string_array(
        "The group ids or the transactional ids (KIP-699).", since=4
    )


@message
class Coordinator(Message):
    """The coordinator of one key: an element of `FindCoordinatorResponse.coordinators`."""

    key: str = string("The group id or the transactional id.")
    node_id: int = int32("The broker id.")
    host: str = string("The host on which the broker listens.")
    port: int = int32("The port on which the broker listens.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error message, or null.", nullable_since=0, default=None
    )


@message
class FindCoordinatorResponse(Message):
    """The coordinator of each key."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.", until=3)
    error_message: str | None = string(
        "The error message, or null.",
        since=1,
        until=3,
        nullable_since=1,
        ignorable=True,
        default=None,
    )
    node_id: int = int32("The broker id.", until=3)
    host: str = string("The host on which the broker listens.", until=3)
    port: int = int32("The port on which the broker listens.", until=3)
    coordinators: list[Coordinator] = array(
        Coordinator, "One result for each key of the request.", since=4
    )


@message
class JoinGroupRequestProtocol(Message):
    """An assignor that the member supports, and the member's data for it: an element of
    `JoinGroupRequest.protocols`."""

    name: str = string("The name of the assignor.")
    metadata: bytes = octets("The metadata that the member sends to the assignor.")


@message
class JoinGroupRequest(Message):
    """Joins a group, or rejoins it during a rebalance."""

    group_id: str = string("The group id.")
    session_timeout_ms: int = int32("The session timeout, in ms.")
    rebalance_timeout_ms: int = int32(
        "The rebalance timeout, in ms; -1 for the value of session_timeout_ms.",
        since=1,
        ignorable=True,
        default=-1,
    )
    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=5,
        nullable_since=5,
        default=None,
    )
    protocol_type: str = string('The protocol type of the group; consumers use "consumer".')
    protocols: list[JoinGroupRequestProtocol] = array(
        JoinGroupRequestProtocol, "The assignors that the member supports, in order of preference."
    )
    reason: str | None = string(
        "The reason for joining, which the coordinator logs, or null.",
        since=8,
        nullable_since=8,
        ignorable=True,
        default=None,
    )


@message
class JoinGroupResponseMember(Message):
    """A member of the new generation: an element of `JoinGroupResponse.members`."""

    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=5,
        nullable_since=5,
        ignorable=True,
        default=None,
    )
    metadata: bytes = octets("The metadata that the member sends to the assignor.")


@message
class JoinGroupResponse(Message):
    """The new generation and, for the leader of the group, the members."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=2,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    generation_id: int = int32("The generation of the group.", default=-1)
    protocol_type: str | None = string(
        'The protocol type of the group; consumers use "consumer".',
        since=7,
        nullable_since=7,
        ignorable=True,
        default=None,
    )
    protocol_name: str | None = string(
        "The assignor of the generation; empty on error, null on error from version 7 on.",
        nullable_since=7,
    )
    leader: str = string("The member id of the group's leader.")
    skip_assignment: bool = boolean(
        "Whether the leader computes no assignment, because it rejoined a stable group.",
        since=9,
    )
    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    members: list[JoinGroupResponseMember] = array(
        JoinGroupResponseMember,
        "The members of the group; empty for all members except the leader.",
    )


@message
class SyncGroupRequestAssignment(Message):
    """The assignment of one member: an element of `SyncGroupRequest.assignments`."""

    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    assignment: bytes = octets("The assignment of the member.")


@message
class SyncGroupRequest(Message):
    """Requests the assignment of one member. The request of the group's leader also has the
    assignments of all members."""

    group_id: str = string("The group id.")
    generation_id: int = int32("The generation of the group.")
    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=3,
        nullable_since=3,
        default=None,
    )
    protocol_type: str | None = string(
        'The protocol type of the group; consumers use "consumer".',
        since=5,
        nullable_since=5,
        ignorable=True,
        default=None,
    )
    protocol_name: str | None = string(
        "The assignor of the generation.", since=5, nullable_since=5, ignorable=True, default=None
    )
    assignments: list[SyncGroupRequestAssignment] = array(
        SyncGroupRequestAssignment,
        "The assignments of all members; empty unless the leader sends them.",
    )


@message
class SyncGroupResponse(Message):
    """The assignment of the member."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    protocol_type: str | None = string(
        'The protocol type of the group; consumers use "consumer".',
        since=5,
        nullable_since=5,
        ignorable=True,
        default=None,
    )
    protocol_name: str | None = string(
        "The assignor of the generation.", since=5, nullable_since=5, ignorable=True, default=None
    )
    assignment: bytes = octets("The assignment of the member.")


@message
class HeartbeatRequest(Message):
    """Reports to the coordinator that a member is alive."""

    group_id: str = string("The group id.")
    generation_id: int = int32("The generation of the group.")
    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        since=3,
        nullable_since=3,
        default=None,
    )


@message
class HeartbeatResponse(Message):
    """The result of the heartbeat: whether the member still belongs to the generation."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")


@message
class MemberIdentity(Message):
    """A member to remove: an element of `LeaveGroupRequest.members`."""

    member_id: str = string("The member id; may be empty for a static member.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        nullable_since=0,
        default=None,
    )


@message
class LeaveGroupRequest(Message):
    """Removes members from a group."""

    group_id: str = string("The group id.")
    member_id: str = string(
        "The member id; empty until the coordinator assigns a member id.", until=2
    )
    members: list[MemberIdentity] = array(MemberIdentity, "The members to remove.", since=3)


@message
class MemberResponse(Message):
    """The result for one member: an element of `LeaveGroupResponse.members`."""

    member_id: str = string("The member id; empty until the coordinator assigns a member id.")
    group_instance_id: str | None = string(
        "The group instance id of a static member (KIP-345), or null.",
        nullable_since=0,
        default=None,
    )
    error_code: int = int16("The error, or 0.")


@message
class LeaveGroupResponse(Message):
    """The result for each member to remove."""

    throttle_time_ms: int = int32(
        "The time for which the client should pause because of a quota, in ms; 0 for none.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    members: list[MemberResponse] = array(
        MemberResponse, "One result for each member of the request.", since=3
    )
