"""Cooperative rebalancing (KIP-429): finds the members that must rejoin after they have revoked
partitions. A partition is being revoked if a member owned it before, and this generation assigns it
to no member.

A static member that restarts owns no partitions. So it revokes none, and would not rejoin. If the
member still had a partition to revoke when it restarted, the coordinator begins a new generation.
"""

from __future__ import annotations

from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.member import Member
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription


def is_awaited_from(group: Group, member: Member) -> bool:
    """Whether this member still has to revoke a partition: the member owned the partition when it
    joined, and the new assignment gives the partition to no member. False if the members are not
    consumers, or if the metadata cannot be decoded."""
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
