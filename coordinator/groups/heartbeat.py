"""Heartbeat, and the membership check of OffsetCommit. Both renew the member's session."""

from __future__ import annotations

from pybroker.coordinator.groups.calls import NO_MEMBER_ID, Identity
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode


def heartbeat(group: Group, identity: Identity, generation: int, now: float) -> ErrorCode:
    """Return the error code for a heartbeat. A valid heartbeat renews the member's session at
    `now`, in seconds of the monotonic clock."""
    fault = _fault_of(group, identity, generation)
    if fault is not ErrorCode.NONE:
        return fault
    group.members[identity.member_id].renew_session(now)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def commit(
    group: Group, identity: Identity, generation: int, now: float, *, in_transaction: bool = False
) -> ErrorCode:
    """Return NONE if offsets may be committed now, else the error code. A member's valid commit
    outside a transaction renews the member's session.

    Without a generation (-1), two kinds of commit are allowed:

    - any commit in an Empty group
    - a transaction's commit that has neither a member id nor an instance id, as from old producers
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if generation < 0 and identity.member_id == NO_MEMBER_ID and identity.instance_id is None:
        return ErrorCode.NONE if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID
    fault = _fault_of(group, identity, generation)
    if fault is not ErrorCode.NONE:
        return fault
    if in_transaction:
        return ErrorCode.NONE
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    group.members[identity.member_id].renew_session(now)
    return ErrorCode.NONE


def commit_without_group(generation: int) -> ErrorCode:
    """Return the error code for an OffsetCommit to an unknown group: NONE if the request has no
    generation (-1), otherwise ILLEGAL_GENERATION."""
    return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION


def _fault_of(group: Group, identity: Identity, generation: int) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    fault = group.fault_of(identity)
    if fault is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return fault
