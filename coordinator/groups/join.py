"""JoinGroup: who may come in, as whom, and whether the others have to rebalance for it."""

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
    """What is wrong with a join, whatever the group, or NONE."""
    timeouts = range(config.group_min_session_timeout_ms, config.group_max_session_timeout_ms + 1)
    if call.session_timeout_ms not in timeouts:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    size = sum(len(metadata) for _, metadata in call.protocols)
    if len(call.protocols) > PROTOCOLS_MAX or size > METADATA_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def only_wants_an_id(call: Join) -> bool:
    """Nobody comes in by such a join: it is told under which id to ask again (KIP-394)."""
    is_new = call.member_id == NO_MEMBER_ID and call.instance_id is None
    return is_new and call.requires_known_id


def may_be_first(call: Join) -> bool:
    """Whether it can begin a group: who says of no kind and no assignor is refused in any."""
    return bool(call.protocol_type) and bool(call.protocols)


def join(group: Group, call: Join, ticket: Ticket, effects: Effects) -> None:
    """Decide about a join that `fault_of` has let pass. It is answered now or later, but it is."""
    if group.state is GroupState.DEAD:
        effects.answer(ticket, Joined(ErrorCode.COORDINATOR_NOT_AVAILABLE, call.member_id))
    elif not _has_room(group, call, effects.config):
        _shed(group, call.member_id, effects)
        effects.answer(ticket, Joined(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER_ID))
    elif not group.supports(call.protocol_type, call.protocols):
        effects.answer(ticket, Joined(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, call.member_id))
    elif call.member_id == NO_MEMBER_ID:
        _join_as_somebody_new(group, call, ticket, effects)
    elif call.member_id in group.pending and call.instance_id is None:
        _admit(group, call, call.member_id, ticket, effects)
    else:
        _join_again(group, call, ticket, effects)
    rebalance.try_complete(group, effects)


def _has_room(group: Group, call: Join, config: BrokerConfig) -> bool:
    """Members of the generation have, and who takes a static member's place; while a new generation
    is made, the first to join have."""
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
        rebalance.take_out(group, effects, member, "the group is full")


def _join_as_somebody_new(group: Group, call: Join, ticket: Ticket, effects: Effects) -> None:
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
        # The leader may know of something that no metadata shows, such as new partitions.
        _update(member, call, ticket, effects)
        why = "has other metadata" if changed else "leads, and joins again"
        rebalance.prepare(group, effects, _why(call, f"member {call.member_id} {why}"))
    else:
        # It did not get the answer, or wants to sync again.
        effects.answer(ticket, rebalance.joined(group, member))


def _why(call: Join, event: str) -> str:
    return f"{event} ({call.reason[:REASON_MAX]})" if call.reason else event


def _update(member: Member, call: Join, ticket: Ticket, effects: Effects) -> None:
    """It waits for the new generation. An earlier request of the same member, whose connection is
    most probably gone, is told to ask again."""
    if member.join is not None:
        effects.answer(member.join, Joined(ErrorCode.REBALANCE_IN_PROGRESS, call.member_id))
    member.tell(call.protocols)
    member.rebalance_timeout_ms = call.rebalance_timeout_ms
    member.session_timeout_ms = call.session_timeout_ms
    member.join = ticket


def _replace(
    group: Group, before: Member, new_id: str, call: Join, ticket: Ticket, effects: Effects
) -> None:
    """A static member was started again: it takes its own place under another id (KIP-345), and
    whoever still speaks with the old one is fenced. A Stable group only stores that, unless it
    waits for the old one to join again."""
    leader = group.leader
    kept = dataclasses.replace(before, join=None, sync=None)
    rebalance.dismiss(effects, before, ErrorCode.FENCED_INSTANCE_ID, before.member_id)
    member = group.replace(before, new_id)
    _update(member, call, ticket, effects)
    member.client_id, member.client_host = call.client_id, call.client_host
    if not member.is_new:
        member.heard(effects.now)
    effects.note(group, "replaces", member=before.member_id, by=new_id)
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
        # The leader, who may be at work for the old id, has to hear of the new one.
        rebalance.prepare(group, effects, _why(call, f"static member {new_id} was started again"))


def refused(group: Group, store: StoreReplacement, error: ErrorCode, effects: Effects) -> None:
    """Nothing was appended: everything is as it was before."""
    member = group.members[store.member_id]
    assert member.join is not None
    effects.answer(member.join, Joined(error, NO_MEMBER_ID))
    restored = group.replace(member, store.before.member_id)
    group.members[restored.member_id] = dataclasses.replace(
        store.before, deadline=effects.now + store.before.session_timeout_ms / 1000
    )


def stored(group: Group, store: StoreReplacement, error: ErrorCode, effects: Effects) -> None:
    """The replacement is committed, or nobody knows: then its owner asks again, which replaces it
    once more. A leader must not work out an assignment, which a Stable group would not take: it is
    told so, or, if it does not understand that, it is told that its old id leads; then nobody looks
    for new partitions until the next rebalance."""
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
            answer = dataclasses.replace(answer, leader=store.leader, members=())
        effects.answer(member.join, answer)
        effects.has_new_members = True
    member.join = None
    member.heard(effects.now)
