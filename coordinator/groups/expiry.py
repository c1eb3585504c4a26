"""What happens to a group because time passes."""

from __future__ import annotations

from pybroker.coordinator.groups import rebalance
from pybroker.coordinator.groups.effects import Effects
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState

WITH_SYNC_DEADLINE = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def expire(group: Group, effects: Effects) -> None:
    """Decide about everything that is due at `effects.now`."""
    if group.state is GroupState.DEAD:
        return
    _expire_pending(group, effects)
    _expire_sessions(group, effects)
    if group.sync_deadline is not None and group.sync_deadline <= effects.now:
        _expire_syncs(group, effects)
    if group.join_deadline is not None and group.join_deadline <= effects.now:
        rebalance.expired(group, effects)


def begin_anew(group: Group, effects: Effects) -> None:
    """This broker has not listened for a while: nobody is to blame for being silent, or late. All
    have as much time as after a fail-over."""
    for member in group.members.values():
        if not member.is_new:
            member.heard(effects.now)
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
        why = "nothing was heard of its client" if member.is_new else "its session is over"
        rebalance.take_out(group, effects, member, why)
    if late:
        rebalance.go_on_without(group, effects, f"{len(late)} members were not heard of")


def _expire_syncs(group: Group, effects: Effects) -> None:
    """Who has not asked for its assignment in time cannot be at work, though it heartbeats."""
    group.sync_deadline = None
    if group.state not in WITH_SYNC_DEADLINE:
        return
    late = [group.members[each] for each in sorted(group.owes_sync) if each in group.members]
    group.owes_sync.clear()
    for member in late:
        rebalance.take_out(group, effects, member, "it did not sync in time")
    if late:
        rebalance.go_on_without(group, effects, f"{len(late)} members did not sync")
