"""Requests of a group's members: FindCoordinator (10) 0-4, JoinGroup (11) 0-9, Heartbeat (12) 0-4,
LeaveGroup (13) 0-4, SyncGroup (14) 0-5.

FindCoordinator: 1 transactions, error texts. 2 the client throttles itself. 3 flexible. 4 several
keys (KIP-699).
JoinGroup: 1 rebalance timeout. 2 throttle time. 3 the client throttles itself. 4 error 79 possible
(KIP-394). 5 static members. 6 flexible. 7 protocol type in the answer. 8 a reason (KIP-800). 9 a
leader that assigns nothing (KIP-814).
Heartbeat, SyncGroup: 1 throttle time. 2 the client throttles itself. 3 static members. 4 flexible.
SyncGroup: 5 protocol type and name.
LeaveGroup: 1 throttle time. 2 the client throttles itself. 3 several members. 4 flexible.
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
    """Asks which broker coordinates a group or a transactional id."""

    key: str = string("The group or transactional id.", until=3)
    key_type: int = int8("0 group, 1 transaction.", since=1)
    coordinator_keys: list[str] = string_array("The group or transactional ids (KIP-699).", since=4)


@message
class Coordinator(Message):
    """One element of `FindCoordinatorResponse.coordinators`."""

    key: str = string("The group or transactional id.")
    node_id: int = int32("The broker's id.")
    host: str = string("Where the broker listens.")
    port: int = int32("The port it listens on.")
    error_code: int = int16("The error, or 0.")
    error_message: str | None = string(
        "The error in words, or null.", nullable_since=0, default=None
    )


@message
class FindCoordinatorResponse(Message):
    """The coordinator."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.", until=3)
    error_message: str | None = string(
        "The error in words, or null.",
        since=1,
        until=3,
        nullable_since=1,
        ignorable=True,
        default=None,
    )
    node_id: int = int32("The broker's id.", until=3)
    host: str = string("Where the broker listens.", until=3)
    port: int = int32("The port it listens on.", until=3)
    coordinators: list[Coordinator] = array(Coordinator, "One result for each key.", since=4)


@message
class JoinGroupRequestProtocol(Message):
    """One element of `JoinGroupRequest.protocols`."""

    name: str = string("The assignor's name.")
    metadata: bytes = octets("The member's data for the assignor.")


@message
class JoinGroupRequest(Message):
    """Joins a group, or joins it again in a rebalance."""

    group_id: str = string("The group's id.")
    session_timeout_ms: int = int32("How long the member may be silent, in ms.")
    rebalance_timeout_ms: int = int32(
        "How long the member may take to join again, in ms; -1 as session_timeout_ms.",
        since=1,
        ignorable=True,
        default=-1,
    )
    member_id: str = string("The member's id; empty before the coordinator gave one.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", since=5, nullable_since=5, default=None
    )
    protocol_type: str = string('What kind of group it is; consumers say "consumer".')
    protocols: list[JoinGroupRequestProtocol] = array(
        JoinGroupRequestProtocol, "The assignors that the member knows, best first."
    )
    reason: str | None = string(
        "Why it joins, for the log, or null.",
        since=8,
        nullable_since=8,
        ignorable=True,
        default=None,
    )


@message
class JoinGroupResponseMember(Message):
    """One element of `JoinGroupResponse.members`."""

    member_id: str = string("The member's id; empty before the coordinator gave one.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.",
        since=5,
        nullable_since=5,
        ignorable=True,
        default=None,
    )
    metadata: bytes = octets("The member's data for the assignor.")


@message
class JoinGroupResponse(Message):
    """The new generation and, for the leader, its members."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=2,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    generation_id: int = int32("The group's generation.", default=-1)
    protocol_type: str | None = string(
        'What kind of group it is; consumers say "consumer".',
        since=7,
        nullable_since=7,
        ignorable=True,
        default=None,
    )
    protocol_name: str | None = string(
        "The assignor that was chosen; empty, later null, on error.", nullable_since=7
    )
    leader: str = string("The id of the member that assigns.")
    skip_assignment: bool = boolean(
        "Whether the leader has nothing to assign: it took its own place in a stable group.",
        since=9,
    )
    member_id: str = string("The member's id; empty before the coordinator gave one.")
    members: list[JoinGroupResponseMember] = array(
        JoinGroupResponseMember, "All members, for the leader only."
    )


@message
class SyncGroupRequestAssignment(Message):
    """One element of `SyncGroupRequest.assignments`."""

    member_id: str = string("The member's id; empty before the coordinator gave one.")
    assignment: bytes = octets("The member's assignment.")


@message
class SyncGroupRequest(Message):
    """Sends the leader's assignment, or asks for the member's own."""

    group_id: str = string("The group's id.")
    generation_id: int = int32("The group's generation.")
    member_id: str = string("The member's id; empty before the coordinator gave one.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", since=3, nullable_since=3, default=None
    )
    protocol_type: str | None = string(
        'What kind of group it is; consumers say "consumer".',
        since=5,
        nullable_since=5,
        ignorable=True,
        default=None,
    )
    protocol_name: str | None = string(
        "The assignor that was chosen.", since=5, nullable_since=5, ignorable=True, default=None
    )
    assignments: list[SyncGroupRequestAssignment] = array(
        SyncGroupRequestAssignment, "The assignments; from the leader only."
    )


@message
class SyncGroupResponse(Message):
    """The member's assignment."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    protocol_type: str | None = string(
        'What kind of group it is; consumers say "consumer".',
        since=5,
        nullable_since=5,
        ignorable=True,
        default=None,
    )
    protocol_name: str | None = string(
        "The assignor that was chosen.", since=5, nullable_since=5, ignorable=True, default=None
    )
    assignment: bytes = octets("The member's assignment.")


@message
class HeartbeatRequest(Message):
    """Tells the coordinator that a member is alive."""

    group_id: str = string("The group's id.")
    generation_id: int = int32("The group's generation.")
    member_id: str = string("The member's id; empty before the coordinator gave one.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", since=3, nullable_since=3, default=None
    )


@message
class HeartbeatResponse(Message):
    """Whether the member still belongs to the generation."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")


@message
class MemberIdentity(Message):
    """One element of `LeaveGroupRequest.members`."""

    member_id: str = string("The member's id; may be empty for a static member.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", nullable_since=0, default=None
    )


@message
class LeaveGroupRequest(Message):
    """Takes members out of a group."""

    group_id: str = string("The group's id.")
    member_id: str = string("The member's id; empty before the coordinator gave one.", until=2)
    members: list[MemberIdentity] = array(MemberIdentity, "The members that leave.", since=3)


@message
class MemberResponse(Message):
    """One element of `LeaveGroupResponse.members`."""

    member_id: str = string("The member's id; empty before the coordinator gave one.")
    group_instance_id: str | None = string(
        "The id of a static member (KIP-345), or null.", nullable_since=0, default=None
    )
    error_code: int = int16("The error, or 0.")


@message
class LeaveGroupResponse(Message):
    """Whether each member was taken out."""

    throttle_time_ms: int = int32(
        "How long the client should pause because of a quota, in ms; 0 if not at all.",
        since=1,
        ignorable=True,
    )
    error_code: int = int16("The error, or 0.")
    members: list[MemberResponse] = array(MemberResponse, "One result for each member.", since=3)
