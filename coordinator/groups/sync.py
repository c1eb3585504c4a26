"""SyncGroup: the leader sends the assignments of all members. When the in-sync replicas have the
record of the assignments, each member gets its own assignment."""

from __future__ import annotations

from pybroker.coordinator.groups import rebalance
from pybroker.coordinator.groups.calls import Identity, Sync, Synced, Ticket
from pybroker.coordinator.groups.effects import Effects, StoreAssignment
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode


def sync(group: Group, call: Sync, ticket: Ticket, effects: Effects) -> None:
    """Handle a SyncGroup request. `ticket` identifies the request. The answer is added to `effects`
    now, or to the effects of a later decision about the group."""
    fault = _fault_of(group, call)
    if fault is not ErrorCode.NONE:
        effects.answer(ticket, Synced(fault))
        return
    member = group.members[call.member_id]
    group.owes_sync.discard(call.member_id)
    if not group.owes_sync:
        group.sync_deadline = None
    if group.state is GroupState.STABLE:
        member.renew_session(effects.now)
        effects.answer(ticket, rebalance.synced(group, member))
        return
    if member.sync is not None:
        effects.answer(member.sync, Synced(ErrorCode.REBALANCE_IN_PROGRESS))
    member.sync = ticket
    if group.leader == call.member_id and not group.is_storing:
        _hand_over(group, call, effects)


def appended_or_not(
    group: Group, store: StoreAssignment, error: ErrorCode, effects: Effects
) -> None:
    """Handle the success (NONE) or failure of storing an assignment. After a failure all members
    have to rejoin. Do nothing if the group has begun another generation since."""
    record = store.record
    if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != record.generation:
        return
    group.is_storing = False
    if error is not ErrorCode.NONE:
        rebalance.spread(group, effects, error)
        rebalance.prepare(group, effects, f"the assignment could not be stored ({error.name})")
        return
    for given in record.members:
        member = group.members.get(given.member_id)
        if member is not None:
            member.assignment = given.assignment
    group.move_to(GroupState.STABLE, effects.wall_ms)
    effects.has_new_members = True
    rebalance.spread(group, effects, ErrorCode.NONE)


def _fault_of(group: Group, call: Sync) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    fault = group.fault_of(Identity(call.member_id, call.instance_id))
    if fault is not ErrorCode.NONE:
        return fault
    if call.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if call.protocol_type is not None and call.protocol_type != group.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if call.protocol is not None and call.protocol != group.protocol:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _hand_over(group: Group, call: Sync, effects: Effects) -> None:
    left_out = [member_id for member_id in group.members if member_id not in call.assignments]
    if left_out:
        effects.note(group, "members_without_assignment", members=len(left_out))
    group.is_storing = True
    effects.rebalances += 1
    effects.stores.append(StoreAssignment(group.recorded(call.assignments, effects.wall_ms)))
