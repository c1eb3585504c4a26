"""DeleteGroups, and the end of groups that nobody uses any more."""

from __future__ import annotations

from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode


def fault_of(group: Group) -> ErrorCode:
    """Why it cannot be deleted now, or NONE."""
    if group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NON_EMPTY_GROUP


def delete(group: Group, wall_ms: int) -> None:
    """It is going: from now on everybody is told to ask again, which ends when it is gone."""
    group.pending.clear()
    group.move_to(GroupState.DEAD, wall_ms)


def survive(group: Group, wall_ms: int) -> None:
    """It could not be deleted."""
    group.move_to(GroupState.EMPTY, wall_ms)
