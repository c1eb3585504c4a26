"""The deadlines of a group: of sessions, joins, syncs, and of unused member ids."""

from __future__ import annotations

from pybroker.coordinator.groups import rebalance
from pybroker.coordinator.groups.effects import Effects
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState

WITH_SYNC_DEADLINE = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def expire(group: Group, effects: Effects) -> None:
    """Handle every deadline of the group that has passed at `effects.now`."""
    if group.state is GroupState.DEAD:
        return
    _expire_pending(group, effects)
    _expire_sessions(group, effects)
    if group.sync_deadline is not None and group.sync_deadline <= effects.now:
        _expire_syncs(group, effects)
    if group.join_deadline is not None and group.join_deadline <= effects.now:
        rebalance.expired(group, effects)


def restart_deadlines(group: Group, effects: Effects) -> None:
    """Restart the session timeouts and the rebalance deadlines, because members could not meet them
    while this broker was paused. The deadlines of a new member's first JoinGroup, of an unused
    member id and of the initial rebalance delay do not change."""
    for member in group.members.values():
        if not member.is_new:
            member.renew_session(effects.now)
    if group.sync_deadline is not None:
        group.sync_deadline = effects.now + group.rebalance_timeout_s
    if group.join_deadline is not None and group.initial_rest_s is None:
        group.join_deadline = effects.now + group.rebalance_timeout_s


def _expire_pending(group: Group, effects: Effects) -> None:
    late = [each for each, deadline in group.pending.items() if deadline <= effects.now]
    for member_id in late:
        group.remove(member_id)
    if late:
        rebalance.try_complete(group, effects)


def _expire_sessions(group: Group, effects: Effects) -> None:
    late = [
        member
        for member in group.members.values()
        if member.deadline <= effects.now and not member.is_excused()
    ]
    for member in late:
        why = "first join not answered in time" if member.is_new else "session timeout"
        rebalance.remove_member(group, effects, member, why)
    if late:
        rebalance.continue_without(group, effects, f"{len(late)} members timed out")


def _expire_syncs(group: Group, effects: Effects) -> None:
    """Remove members that have not sent SyncGroup in time, even if they send heartbeats."""
    group.sync_deadline = None
    if group.state not in WITH_SYNC_DEADLINE:
        return
    late = [group.members[each] for each in sorted(group.owes_sync) if each in group.members]
    group.owes_sync.clear()
    for member in late:
        rebalance.remove_member(group, effects, member, "no SyncGroup in time")
    if late:
        rebalance.continue_without(group, effects, f"{len(late)} members sent no SyncGroup")
