"""Cooperative rebalancing (KIP-429): whether a member has to rejoin so that other members get the
partitions that it has revoked.

The coordinator decodes only the part of the metadata that all consumers encode in the same format.
A partition is being revoked if a member owned it before, and this generation assigns it to no
member. The next generation, which begins when that member rejoins, assigns it again. A static
member that restarts before it has rejoined does not know any more that it has to rejoin. The
coordinator therefore tracks which members have to rejoin.
"""

from __future__ import annotations

from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.member import Member
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription


def is_awaited_from(group: Group, member: Member) -> bool:
    """Whether this member has revoked partitions that can be assigned again only after it rejoins.
    False if the members are not consumers, or if their metadata cannot be decoded."""
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
