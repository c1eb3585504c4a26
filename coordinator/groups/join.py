"""JoinGroup: whether the member may join, with which member id, and whether the group has to
rebalance."""

from __future__ import annotations

import dataclasses

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups import handover, rebalance
from pybroker.coordinator.groups.calls import (
    NO_MEMBER_ID,
    Identity,
    Join,
    Joined,
    Ticket,
)
from pybroker.coordinator.groups.effects import Effects, StoreReplacement
from pybroker.coordinator.groups.group import Group, assignments_of
from pybroker.coordinator.groups.member import Member
from pybroker.coordinator.groups.options import (
    METADATA_BYTES_MAX,
    NEW_MEMBER_JOIN_TIMEOUT_S,
    PROTOCOLS_MAX,
    REASON_MAX,
)
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import ErrorCode


def fault_of(call: Join, config: BrokerConfig) -> ErrorCode:
    """Return the error code if the session timeout or the assignors of the request are not valid,
    otherwise NONE."""
    timeouts = range(config.group_min_session_timeout_ms, config.group_max_session_timeout_ms + 1)
    if call.session_timeout_ms not in timeouts:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    size = sum(len(metadata) for _, metadata in call.protocols)
    if len(call.protocols) > PROTOCOLS_MAX or size > METADATA_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def only_wants_an_id(call: Join) -> bool:
    """Whether the answer is only a member id, with which the client has to join again (KIP-394)."""
    is_new = call.member_id == NO_MEMBER_ID and call.instance_id is None
    return is_new and call.requires_known_id


def may_be_first(call: Join) -> bool:
    """Whether the request can create a group: it has a protocol type and an assignor."""
    return bool(call.protocol_type) and bool(call.protocols)


def join(group: Group, call: Join, ticket: Ticket, effects: Effects) -> None:
    """Handle a JoinGroup request for which `fault_of` returned NONE. If the member must wait for
    other members, a later decision answers `ticket`."""
    if group.state is GroupState.DEAD:
        effects.answer(ticket, Joined(ErrorCode.COORDINATOR_NOT_AVAILABLE, call.member_id))
    elif not _has_room(group, call, effects.config):
        _shed(group, call.member_id, effects)
        effects.answer(ticket, Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID))
    elif not group.supports(call.protocol_type, call.protocols):
        effects.answer(ticket, Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, call.member_id))
    elif call.member_id == NO_MEMBER_ID:
        _join_as_new_member(group, call, ticket, effects)
    elif call.member_id in group.pending and call.instance_id is None:
        _admit(group, call, call.member_id, ticket, effects)
    else:
        _join_again(group, call, ticket, effects)
    rebalance.try_complete(group, effects)


def _has_room(group: Group, call: Join, config: BrokerConfig) -> bool:
    """Whether group.max.size allows the member to join. Members of the present generation and the
    new instance of a static member are always allowed."""
    member = group.members.get(call.member_id)
    takes_a_place = call.member_id == NO_MEMBER_ID and call.instance_id in group.static
    if group.state is GroupState.EMPTY or takes_a_place:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        has_joined = member is not None and member.join is not None
        return has_joined or group.joining < config.group_max_size
    return member is not None or len(group.members) < config.group_max_size


def _shed(group: Group, member_id: str, effects: Effects) -> None:
    member = group.members.get(member_id)
    if member is None:
        group.remove(member_id)
    else:
        rebalance.remove_member(group, effects, member, "the group is full")


def _join_as_new_member(group: Group, call: Join, ticket: Ticket, effects: Effects) -> None:
    if call.instance_id is not None:
        new_id = effects.new_id(call.instance_id)
        known = group.static.get(call.instance_id)
        if known is None:
            _admit(group, call, new_id, ticket, effects)
        else:
            _replace(group, group.members[known], new_id, call, ticket, effects)
        return
    new_id = effects.new_id(call.client_id)
    if not only_wants_an_id(call):
        _admit(group, call, new_id, ticket, effects)
        return
    group.pending[new_id] = effects.now + call.session_timeout_ms / 1000
    effects.answer(ticket, Joined(ErrorCode.MEMBER_ID_REQUIRED, new_id))


def _admit(group: Group, call: Join, member_id: str, ticket: Ticket, effects: Effects) -> None:
    member = Member(
        member_id=member_id,
        instance_id=call.instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        rebalance_timeout_ms=call.rebalance_timeout_ms,
        session_timeout_ms=call.session_timeout_ms,
        protocols=call.protocols,
        deadline=effects.now + NEW_MEMBER_JOIN_TIMEOUT_S,
        is_new=True,
        join=ticket,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
        group.was_extended = True
    group.add(member, call.protocol_type)
    rebalance.prepare(group, effects, _why(call, f"member {member_id} joins"))


def _join_again(group: Group, call: Join, ticket: Ticket, effects: Effects) -> None:
    fault = group.fault_of(Identity(call.member_id, call.instance_id))
    if fault is not ErrorCode.NONE:
        effects.answer(ticket, Joined(fault, call.member_id))
        return
    member = group.members[call.member_id]
    changed = member.protocols != call.protocols
    leads = group.leader == call.member_id
    if group.state is GroupState.PREPARING_REBALANCE:
        _update(member, call, ticket, effects)
    elif changed or (leads and group.state is GroupState.STABLE):
        # The leader may rejoin for a reason that its metadata does not show, such as new
        # partitions.
        _update(member, call, ticket, effects)
        why = "has new metadata" if changed else "is the leader and rejoins"
        rebalance.prepare(group, effects, _why(call, f"member {call.member_id} {why}"))
    else:
        # The member did not get the answer to its last request, or wants to send SyncGroup again.
        effects.answer(ticket, rebalance.joined(group, member))


def _why(call: Join, event: str) -> str:
    return f"{event} ({call.reason[:REASON_MAX]})" if call.reason else event


def _update(member: Member, call: Join, ticket: Ticket, effects: Effects) -> None:
    """Copy the values of this request into the member, and make the member wait for the new
    generation. If an earlier JoinGroup of the member still waits, answer it with
    REBALANCE_IN_PROGRESS."""
    if member.join is not None:
        effects.answer(member.join, Joined(ErrorCode.REBALANCE_IN_PROGRESS, call.member_id))
    member.set_protocols(call.protocols)
    member.rebalance_timeout_ms = call.rebalance_timeout_ms
    member.session_timeout_ms = call.session_timeout_ms
    member.join = ticket


def _replace(
    group: Group, before: Member, new_id: str, call: Join, ticket: Ticket, effects: Effects
) -> None:
    """Give a restarted static member a new member id, and fence the old id (KIP-345). A Stable
    group rebalances only if its assignor changes, or if the old member still had to revoke a
    partition."""
    leader = group.leader
    kept = dataclasses.replace(before, join=None, sync=None)
    rebalance.dismiss(effects, before, ErrorCode.FENCED_INSTANCE_ID, before.member_id)
    member = group.replace(before, new_id)
    _update(member, call, ticket, effects)
    member.client_id, member.client_host = call.client_id, call.client_host
    if not member.is_new:
        member.renew_session(effects.now)
    effects.note(group, "member_replaced", member=before.member_id, by=new_id)
    is_as_before = (
        group.state is GroupState.STABLE
        and group.protocol == group.elected_protocol()
        and not handover.is_awaited_from(group, before)
    )
    if is_as_before:
        assert leader is not None
        record = group.recorded(assignments_of(group.members.values()), effects.wall_ms)
        effects.stores.append(StoreReplacement(record, new_id, kept, leader, call.may_skip))
    elif group.state is not GroupState.PREPARING_REBALANCE:
        # The leader may be computing an assignment for the old member id; it has to get the new id.
        rebalance.prepare(group, effects, _why(call, f"static member {new_id} has restarted"))


def refused(group: Group, store: StoreReplacement, error: ErrorCode, effects: Effects) -> None:
    """Undo the new id of a static member, because the record of the id could not be appended.
    Answer the member's JoinGroup with `error`."""
    member = group.members[store.member_id]
    assert member.join is not None
    effects.answer(member.join, Joined(error, NO_MEMBER_ID))
    restored = group.replace(member, store.old_member.member_id)
    group.members[restored.member_id] = dataclasses.replace(
        store.old_member, deadline=effects.now + store.old_member.session_timeout_ms / 1000
    )


def stored(group: Group, store: StoreReplacement, error: ErrorCode, effects: Effects) -> None:
    """Answer the waiting JoinGroup of the static member that got a new member id. `error` is NONE
    if the in-sync replicas have the record with the new member id.

    A Stable group accepts no new assignment, so even the group's leader must not compute an
    assignment. If the client supports `skip_assignment` (KIP-814), the answer to the leader sets
    that field. An older client gets `store.old_leader` as the leader's member id, so a restarted
    leader does not act as the leader.
    """
    member = group.members.get(store.member_id)
    if member is None or member.join is None or group.state is not GroupState.STABLE:
        return
    if error is not ErrorCode.NONE:
        effects.answer(member.join, Joined(error, NO_MEMBER_ID))
    else:
        answer = rebalance.joined(group, member)
        if store.may_skip:
            answer = dataclasses.replace(answer, skips=bool(answer.members))
        else:
            answer = dataclasses.replace(answer, leader=store.old_leader, members=())
        effects.answer(member.join, answer)
        effects.has_new_members = True
    member.join = None
    member.renew_session(effects.now)
