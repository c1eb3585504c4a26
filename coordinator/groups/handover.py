"""Cooperative rebalancing (KIP-429): whether a member has to join again so that others get what it
had.

Of its assignor's business a coordinator knows only what all consumers say in the same form. What a
member had, and nobody has in this generation, it is giving back; when it joins again, those
partitions are divided. A static member that dies before takes its place again without knowing of
that, and so may the leader, the only other one who does.
"""

from __future__ import annotations

from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.member import Member
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription


def is_awaited_from(group: Group, member: Member) -> bool:
    """Whether the next generation waits for this member to give something back. False where the
    members speak otherwise, or cannot be understood."""
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
