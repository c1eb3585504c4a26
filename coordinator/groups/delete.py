"""The deletion of a group: by DeleteGroups, or when it has no members and no offsets."""

from __future__ import annotations

from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode


def fault_of(group: Group) -> ErrorCode:
    """Return the error that prevents the deletion of the group now; NONE if nothing does."""
    if group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if group.state is GroupState.DEAD:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.NON_EMPTY_GROUP


def delete(group: Group, wall_ms: int) -> None:
    """Begin the deletion of the group at `wall_ms` (ms since 1970). Until the deletion ends,
    requests to the group get a retriable error."""
    group.pending.clear()
    group.move_to(GroupState.DEAD, wall_ms)


def survive(group: Group, wall_ms: int) -> None:
    """Make the group Empty again after a failed deletion."""
    group.move_to(GroupState.EMPTY, wall_ms)
