"""A group's description for DescribeGroups and ListGroups, and its subscribed topics."""

from __future__ import annotations

from pybroker.coordinator.groups.calls import GroupOverview, GroupView
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import MalformedInput
from pybroker.wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription


def describe(group: Group) -> GroupView:
    """Return the description of the group. If the group is not Stable, the members' metadata and
    assignments are empty."""
    is_stable = group.state is GroupState.STABLE
    protocol = group.protocol if is_stable else None
    return GroupView(
        group.group_id,
        group.state,
        group.protocol_type or "",
        protocol or "",
        group.generation,
        tuple(member.view(protocol) for member in group.members.values()),
    )


def overview(group: Group) -> GroupOverview:
    return GroupOverview(group.group_id, group.state, group.protocol_type or "")


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Return the topics that the members subscribe to; None if unknown, for example because the
    members are not consumers."""
    if not group.members:
        return frozenset()
    if group.protocol_type != PROTOCOL_TYPE or group.protocol is None:
        return None
    topics: set[str] = set()
    for member in group.members.values():
        try:
            topics.update(decode_subscription(member.metadata(group.protocol)).topics)
        except MalformedInput:
            return None
    return frozenset(topics)
