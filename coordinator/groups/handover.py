"""Cooperative rebalancing (KIP-429): whether a member has to rejoin so that others get partitions
that it has revoked.

The coordinator knows only the part of the metadata that all consumers encode in the same form. A
partition that a member owned before, and that no member is assigned in this generation, is being
revoked; when the member rejoins, it is assigned again. A static member that restarts before it has
rejoined does not know that others wait for these partitions, and the leader may have restarted,
too: then no member knows.
"""

from __future__ import annotations

from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.member import Member
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription


def is_awaited_from(group: Group, member: Member) -> bool:
    """Whether the next generation waits for this member to rejoin after revoking partitions. False
    if the members are no consumers, or if their metadata cannot be read."""
    if group.protocol_type != PROTOCOL_TYPE or group.protocol is None:
        return False
    try:
        owned = decode_subscription(member.metadata(group.protocol)).owned_partitions
    except MalformedInput:
        return False
    missing = {*owned} - _assigned(member)
    if not missing:
        return False
    return bool(missing.difference(*map(_assigned, group.members.values())))


def _assigned(member: Member) -> set[TopicPartition]:
    try:
        return {*decode_assignment(member.assignment).partitions}
    except MalformedInput:
        return set()
