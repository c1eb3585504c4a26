"""LeaveGroup: members leave, or an operator removes static members."""

from __future__ import annotations

from collections.abc import Sequence

from pybroker.coordinator.groups import rebalance
from pybroker.coordinator.groups.calls import NO_MEMBER_ID, Identity
from pybroker.coordinator.groups.effects import Effects
from pybroker.coordinator.groups.group import Group
from pybroker.errors import ErrorCode


def leave(group: Group, leaving: Sequence[Identity], effects: Effects) -> list[ErrorCode]:
    """Remove these members, and return one error code for each. The remaining members rebalance
    once. The group must not be Dead."""
    answers = [_leave(group, identity, effects) for identity in leaving]
    if ErrorCode.NONE in answers:
        rebalance.continue_without(group, effects, "members left")
    return answers


def _leave(group: Group, identity: Identity, effects: Effects) -> ErrorCode:
    member_id: str | None = identity.member_id
    if identity.member_id == NO_MEMBER_ID:
        member_id = None if identity.instance_id is None else group.static.get(identity.instance_id)
        if member_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif identity.member_id in group.pending:
        group.remove(identity.member_id)
        return ErrorCode.NONE
    else:
        fault = group.fault_of(identity)
        if fault is not ErrorCode.NONE:
            return fault
    assert member_id is not None
    rebalance.remove_member(group, effects, group.members[member_id], "left the group")
    return ErrorCode.NONE
