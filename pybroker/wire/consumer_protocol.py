"""The messages between consumers of a group, which the coordinator only passes on: a member's
Subscription, in the metadata of JoinGroup, and its Assignment, in SyncGroup. Versions 0-3 of both
(Kafka's "consumer" protocol type).

The version comes first, as an int16. Subscription: 1 owned partitions (KIP-429). 2 their generation
(KIP-792). 3 rack (KIP-881). Assignment: the same in all. A version above 3 is read as 3, and
further bytes are ignored: newer members may be in the group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.codec import decode_message, encode_message
from pybroker.wire.plain import plain
from pybroker.wire.primitives import REQUEST_ELEMENTS_MAX, Buffer
from pybroker.wire.schema import (
    Message,
    MessageT,
    array,
    int32,
    int32_array,
    message,
    octets,
    string,
    string_array,
)

PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members speak this protocol."""
VERSION_MAX: Final = 3
NO_GENERATION: Final = -1

_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics of a member, the user data of its assignor, and the partitions that it owned in
    `generation_id` (-1: unknown)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions of a member, and the user data of the leader's assignor."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


@message
class _Partitions(Message):
    """Partitions of one topic."""

    topic: str = string("The topic's name.")
    partitions: list[int] = int32_array("The partitions' numbers.")


@message
class _Subscription(Message):
    """`Subscription` on the wire."""

    topics: list[str] = string_array("The topics that the member reads.")
    user_data: bytes | None = octets(
        "The user data of the assignor.", nullable_since=0, default=None
    )
    owned_partitions: list[_Partitions] = array(
        _Partitions, "The partitions that the member owned.", since=1, ignorable=True
    )
    generation_id: int = int32(
        "The generation of the owned partitions.", since=2, ignorable=True, default=NO_GENERATION
    )
    rack_id: str | None = string(
        "The member's rack.", since=3, nullable_since=3, ignorable=True, default=None
    )


@message
class _Assignment(Message):
    """`Assignment` on the wire."""

    assigned_partitions: list[_Partitions] = array(_Partitions, "The partitions of the member.")
    user_data: bytes | None = octets(
        "The user data of the assignor.", nullable_since=0, default=None
    )


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Return the bytes; fields that the version lacks are left out. Raises ValueError for text or
    numbers that do not fit, and for an unknown version."""
    return _encode(
        _Subscription(
            topics=list(subscription.topics),
            user_data=subscription.user_data,
            owned_partitions=_by_topic(subscription.owned_partitions),
            generation_id=subscription.generation_id,
            rack_id=subscription.rack_id,
        ),
        version,
    )


def decode_subscription(data: Buffer) -> Subscription:
    """Return the subscription. Raises MalformedInput."""
    found = _decode(_Subscription, data)
    return Subscription(
        tuple(found.topics),
        found.user_data,
        _flat(found.owned_partitions),
        found.generation_id,
        found.rack_id,
    )


def plain_subscription(data: Buffer) -> dict[str, Any]:
    """Return the fields of the version in which the subscription was sent. Raises
    MalformedInput."""
    return plain(_decode(_Subscription, data), _known_version(data))


def encode_assignment(assignment: Assignment, version: int = VERSION_MAX) -> bytes:
    """Return the bytes. Raises the errors of `encode_subscription`."""
    return _encode(
        _Assignment(
            assigned_partitions=_by_topic(assignment.partitions), user_data=assignment.user_data
        ),
        version,
    )


def decode_assignment(data: Buffer) -> Assignment:
    """Return the assignment; an empty one for no bytes, which a member without an assignment has.
    Raises MalformedInput."""
    if len(data) == 0:
        return Assignment()
    found = _decode(_Assignment, data)
    return Assignment(_flat(found.assigned_partitions), found.user_data)


def plain_assignment(data: Buffer) -> dict[str, Any]:
    """Return the fields of the assignment. Raises MalformedInput."""
    return plain(_decode(_Assignment, data), _known_version(data))


def _encode(fields: Message, version: int) -> bytes:
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"version {version} of the consumer protocol, expected 0 to {VERSION_MAX}")
    return _VERSION.pack(version) + encode_message(fields, version, False)


def _decode(message_class: type[MessageT], data: Buffer) -> MessageT:
    return decode_message(
        message_class,
        _known_version(data),
        False,
        memoryview(data)[_VERSION.size :],
        REQUEST_ELEMENTS_MAX,
        to_the_end=False,
    )


def _known_version(data: Buffer) -> int:
    """Return the version as which the data are read."""
    if len(data) < _VERSION.size:
        raise MalformedInput(f"{len(data)} bytes of the consumer protocol, expected 2 or more")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedInput(f"version {version} of the consumer protocol, expected 0 or more")
    return min(version, VERSION_MAX)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[_Partitions]:
    topics: dict[str, _Partitions] = {}
    for topic, number in partitions:
        topics.setdefault(topic, _Partitions(topic=topic)).partitions.append(number)
    return list(topics.values())


def _flat(topics: Iterable[_Partitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic, number) for row in topics for number in row.partitions)
