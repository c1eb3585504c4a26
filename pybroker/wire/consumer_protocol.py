"""The messages of Kafka's "consumer" protocol type, versions 0-3: Subscription (in JoinGroup) and
Assignment (in SyncGroup).

Each message begins with its version as an int16. Only Subscription changes: version 1 adds the
owned partitions (KIP-429), 2 their generation (KIP-792), 3 the rack (KIP-881). Later versions are
decoded as version 3.
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
"""The protocol type of groups whose members are consumers."""
VERSION_MAX: Final = 3
NO_GENERATION: Final = -1

_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a group member. `generation_id` is the generation in which the member got
    `owned_partitions`; -1 if unknown."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The assignment of a group member: its partitions, and the user data of the leader's
    assignor."""

    partitions: tuple[TopicPartition, ...] = ()
    user_data: bytes | None = None


@message
class _Partitions(Message):
    """The partitions of one topic."""

    topic: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class _Subscription(Message):
    """The wire format of `Subscription`."""

    topics: list[str] = string_array("The topics to which the member subscribes.")
    user_data: bytes | None = octets(
        "The user data of the assignor.", nullable_since=0, default=None
    )
    owned_partitions: list[_Partitions] = array(
        _Partitions, "The partitions that the member owns.", since=1, ignorable=True
    )
    generation_id: int = int32(
        "The generation of the owned partitions.", since=2, ignorable=True, default=NO_GENERATION
    )
    rack_id: str | None = string(
        "The rack of the member.", since=3, nullable_since=3, ignorable=True, default=None
    )


@message
class _Assignment(Message):
    """The wire format of `Assignment`."""

    assigned_partitions: list[_Partitions] = array(_Partitions, "The partitions of the member.")
    user_data: bytes | None = octets(
        "The user data of the assignor.", nullable_since=0, default=None
    )


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Return the bytes of a subscription in this version. Raises ValueError for an unknown version,
    or if a value does not fit into its field."""
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
    """Return the subscription in `data`. Raises MalformedInput."""
    found = _decode(_Subscription, data)
    return Subscription(
        tuple(found.topics),
        found.user_data,
        _flat(found.owned_partitions),
        found.generation_id,
        found.rack_id,
    )


def plain_subscription(data: Buffer) -> dict[str, Any]:
    """Return the fields of the subscription in `data` as plain values for JSON. Raises
    MalformedInput."""
    return plain(_decode(_Subscription, data), _known_version(data))


def encode_assignment(assignment: Assignment, version: int = VERSION_MAX) -> bytes:
    """Return the bytes of an assignment in this version. Raises the errors of
    `encode_subscription`."""
    return _encode(
        _Assignment(
            assigned_partitions=_by_topic(assignment.partitions), user_data=assignment.user_data
        ),
        version,
    )


def decode_assignment(data: Buffer) -> Assignment:
    """Return the assignment in `data`; an empty assignment if `data` is empty. Raises
    MalformedInput."""
    if len(data) == 0:
        return Assignment()
    found = _decode(_Assignment, data)
    return Assignment(_flat(found.assigned_partitions), found.user_data)


def plain_assignment(data: Buffer) -> dict[str, Any]:
    """Return the fields of the assignment in `data` as plain values for JSON. Raises
    MalformedInput."""
    return plain(_decode(_Assignment, data), _known_version(data))


def _encode(fields: Message, version: int) -> bytes:
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(
            f"the version of the consumer protocol is {version}, expected 0 to {VERSION_MAX}"
        )
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
    """Return the version with which to decode the message in `data`, at most VERSION_MAX. Raises
    MalformedInput."""
    if len(data) < _VERSION.size:
        raise MalformedInput(
            f"the message of the consumer protocol has {len(data)} bytes, expected at least"
            f" {_VERSION.size}"
        )
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedInput(
            f"the version of the consumer protocol is {version}, expected 0 or more"
        )
    return min(version, VERSION_MAX)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[_Partitions]:
    topics: dict[str, _Partitions] = {}
    for topic, number in partitions:
        topics.setdefault(topic, _Partitions(topic=topic)).partitions.append(number)
    return list(topics.values())


def _flat(topics: Iterable[_Partitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic, number) for row in topics for number in row.partitions)
