"""DescribeGroups and ListGroups: what operators see of a group, and what other rooms need to know
of its members."""

from __future__ import annotations

from pybroker.coordinator.groups.calls import GroupOverview, GroupView
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import MalformedInput
from pybroker.wire.consumer_protocol import PROTOCOL_TYPE, decode_subscription


def describe(group: Group) -> GroupView:
    """While it rebalances, what members were given does not hold, and is not shown."""
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
    """The topics that its members read; None if nobody knows, because they are no consumers, or no
    protocol has been chosen yet, or one of them says what cannot be read."""
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
