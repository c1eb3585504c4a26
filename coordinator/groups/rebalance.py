"""Rebalances: how a rebalance begins, which members it waits for, and how it ends with the next
generation."""

from __future__ import annotations

from pybroker.coordinator.groups.calls import NO_MEMBER_ID, Joined, Synced
from pybroker.coordinator.groups.effects import Effects, StoreEmpty
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.member import Member
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode

CAN_REBALANCE = (GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


def prepare(group: Group, effects: Effects, why: str) -> None:
    """Begin a rebalance, unless the group already waits for joins. An Empty group waits for the
    initial delay, any other group for its members. `why` is for the log."""
    if group.state not in CAN_REBALANCE:
        return
    if group.state is GroupState.COMPLETING_REBALANCE:
        spread(group, effects, ErrorCode.REBALANCE_IN_PROGRESS)
    group.owes_sync.clear()
    group.sync_deadline = None
    group.is_storing = False
    timeout_s = group.rebalance_timeout_s
    if group.state is GroupState.EMPTY:
        delay_s = effects.config.group_initial_rebalance_delay_ms / 1000
        group.initial_rest_s = max(timeout_s - delay_s, 0.0)
        group.was_extended = False
        group.join_deadline = effects.now + delay_s
    else:
        group.initial_rest_s = None
        group.join_deadline = effects.now + timeout_s
    group.move_to(GroupState.PREPARING_REBALANCE, effects.wall_ms)
    effects.note(group, "rebalances", generation=group.generation, reason=why)
    try_complete(group, effects)


def try_complete(group: Group, effects: Effects) -> None:
    """Begin the next generation if all members have joined and the initial delay is over."""
    if group.state is not GroupState.PREPARING_REBALANCE or group.initial_rest_s is not None:
        return
    if group.all_joined:
        complete(group, effects)


def expired(group: Group, effects: Effects) -> None:
    """Handle the end of the initial delay or of the rebalance timeout. If a member joined during
    the initial delay, extend the delay, but not beyond the rebalance timeout. Otherwise complete
    the rebalance."""
    if group.was_extended and group.initial_rest_s:
        delay_s = min(effects.config.group_initial_rebalance_delay_ms / 1000, group.initial_rest_s)
        group.initial_rest_s -= delay_s
        group.was_extended = False
        group.join_deadline = effects.now + delay_s
        return
    complete(group, effects)


def complete(group: Group, effects: Effects) -> None:
    """Remove dynamic members that have not joined, and begin the next generation. Static members
    remain until their session times out. If only static members that have not joined remain, wait
    for joins again."""
    for member in [*group.members.values()]:
        if member.join is None and not member.is_static:
            remove_member(group, effects, member, "did not rejoin in time")
    if group.members and not _choose_joined_leader(group):
        group.initial_rest_s = None
        group.join_deadline = effects.now + group.rebalance_timeout_s
        return
    group.join_deadline = group.initial_rest_s = None
    group.was_extended = False
    group.generation += 1
    if not group.members:
        _become_empty(group, effects)
        return
    group.protocol = group.elected_protocol()
    group.move_to(GroupState.COMPLETING_REBALANCE, effects.wall_ms)
    effects.note(group, "generation", generation=group.generation, members=len(group.members))
    group.sync_deadline = effects.now + group.rebalance_timeout_s
    group.owes_sync = set(group.members)
    for member in group.members.values():
        if member.join is not None:
            effects.answer(member.join, joined(group, member))
            member.join = None
        member.renew_session(effects.now)
        member.is_new = False


def joined(group: Group, member: Member) -> Joined:
    """Return the JoinGroup answer to a member of the present generation."""
    assert group.protocol is not None and group.leader is not None
    is_leader = group.leader == member.member_id
    everybody = group.members.values() if is_leader else ()
    return Joined(
        ErrorCode.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        tuple(each.as_joined(group.protocol) for each in everybody),
    )


def spread(group: Group, effects: Effects, error: ErrorCode) -> None:
    """Answer all waiting SyncGroup requests: each with the member's assignment if `error` is NONE,
    otherwise with `error`."""
    for member in group.members.values():
        if error is not ErrorCode.NONE:
            member.assignment = b""
        if member.sync is None:
            continue
        effects.answer(member.sync, synced(group, member) if not error else Synced(error))
        member.sync = None
        member.renew_session(effects.now)


def synced(group: Group, member: Member) -> Synced:
    """Return the SyncGroup answer with the member's assignment."""
    return Synced(ErrorCode.NONE, member.assignment, group.protocol_type, group.protocol)


def remove_member(group: Group, effects: Effects, member: Member, why: str) -> None:
    """Remove a member, and answer its waiting requests with UNKNOWN_MEMBER_ID. `why` is for the
    log."""
    group.remove(member.member_id)
    dismiss(effects, member, ErrorCode.UNKNOWN_MEMBER_ID)
    effects.note(group, "member_removed", member=member.member_id, reason=why)
    effects.has_new_members = True


def dismiss(
    effects: Effects, member: Member, error: ErrorCode, member_id: str = NO_MEMBER_ID
) -> None:
    """Answer the member's waiting requests with an error."""
    if member.join is not None:
        effects.answer(member.join, Joined(error, member_id))
        member.join = None
    if member.sync is not None:
        effects.answer(member.sync, Synced(error))
        member.sync = None


def continue_without(group: Group, effects: Effects, why: str) -> None:
    """Let the group continue after a member was removed. If the group already waits for joins, call
    `try_complete`. Otherwise begin a rebalance, unless the group is empty or dead. `why` is for the
    log."""
    if group.state is GroupState.PREPARING_REBALANCE:
        try_complete(group, effects)
    elif group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        prepare(group, effects, why)


def _choose_joined_leader(group: Group) -> bool:
    """If the group's leader has not joined, make another member the leader, one that has joined.
    Return False if no member has joined."""
    assert group.leader is not None
    if group.members[group.leader].join is not None:
        return True
    others = (m.member_id for m in group.members.values() if m.join is not None)
    group.leader = next(others, group.leader)
    return group.members[group.leader].join is not None


def _become_empty(group: Group, effects: Effects) -> None:
    group.protocol = None
    group.leader = None
    group.move_to(GroupState.EMPTY, effects.wall_ms)
    effects.note(group, "empty", generation=group.generation)
    effects.stores.append(StoreEmpty(group.recorded({}, effects.wall_ms)))
