"""What happens to a group because time passes."""

from __future__ import annotations

from pybroker.coordinator.groups import rebalance
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.groups.turn import Turn

WITH_SYNC_DEADLINE = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def expire(group: Group, turn: Turn) -> None:
    """Decide about everything that is due at `turn.now`."""
    if group.state is GroupState.DEAD:
        return
    _expire_pending(group, turn)
    _expire_sessions(group, turn)
    if group.sync_deadline is not None and group.sync_deadline <= turn.now:
        _expire_syncs(group, turn)
    if group.join_deadline is not None and group.join_deadline <= turn.now:
        rebalance.expired(group, turn)


def begin_anew(group: Group, turn: Turn) -> None:
    """This broker has not listened for a while: nobody is to blame for being silent, or late. All
    have as much time as after a fail-over."""
    for member in group.members.values():
        if not member.is_new:
            member.heard(turn.now)
    if group.sync_deadline is not None:
        group.sync_deadline = turn.now + group.rebalance_timeout_s
    if group.join_deadline is not None and group.initial_rest_s is None:
        group.join_deadline = turn.now + group.rebalance_timeout_s


def _expire_pending(group: Group, turn: Turn) -> None:
    late = [each for each, deadline in group.pending.items() if deadline <= turn.now]
    for member_id in late:
        group.remove(member_id)
    if late:
        rebalance.try_complete(group, turn)


def _expire_sessions(group: Group, turn: Turn) -> None:
    late = [
        member
        for member in group.members.values()
        if member.deadline <= turn.now and not member.is_excused()
    ]
    for member in late:
        why = "nothing was heard of its client" if member.is_new else "its session is over"
        rebalance.take_out(group, turn, member, why)
    if late:
        rebalance.go_on_without(group, turn, f"{len(late)} members were not heard of")


def _expire_syncs(group: Group, turn: Turn) -> None:
    """Who has not asked for its assignment in time cannot be at work, though it heartbeats."""
    group.sync_deadline = None
    if group.state not in WITH_SYNC_DEADLINE:
        return
    late = [group.members[each] for each in sorted(group.owes_sync) if each in group.members]
    group.owes_sync.clear()
    for member in late:
        rebalance.take_out(group, turn, member, "it did not sync in time")
    if late:
        rebalance.go_on_without(group, turn, f"{len(late)} members did not sync")
