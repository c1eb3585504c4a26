"""The records of `__consumer_offsets`, in Kafka's bytes: groups and committed offsets. A value of
None is a tombstone.

Every key and value begins with its version (int16):

- Keys: 0 and 1 an offset, 2 a group.
- Offset values: 1 adds the time of expiry, 2 drops it, 3 adds the leader epoch.
- Group values: 1 adds the rebalance timeout, 2 the time of the last state change, 3 static members.

Version 4 of values is flexible (KIP-482). Version 4 is read but never written, so that brokers of
every release can take over the partition.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from typing import Any, Final

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.errors import MalformedInput
from pybroker.model import NO_EPOCH, NO_TIMESTAMP, TopicPartition
from pybroker.wire import consumer_protocol
from pybroker.wire.codec import decode_message, encode_message
from pybroker.wire.plain import plain
from pybroker.wire.primitives import Buffer
from pybroker.wire.schema import (
    Message,
    MessageT,
    array,
    int32,
    int64,
    message,
    octets,
    string,
)

OFFSET_KEY_VERSION: Final = 1
"""The version that Kafka writes; 0 has the same fields."""
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
"""The only value version with a time of expiry: written if the client set a retention time."""
GROUP_VALUE_VERSION: Final = 3
FIRST_FLEXIBLE: Final = 4
VALUE_VERSION_MAX: Final = 4

_VERSION = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class OffsetKey:
    group_id: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupKey:
    group_id: str


@dataclass(frozen=True, slots=True)
class RecordedMember:
    """A member in a group's record. Timeouts are in ms. `subscription` is the member's metadata for
    the group's assignor."""

    member_id: str
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A group's record. `protocol` and `leader` are None while the group has no members.
    `state_ms`: when the group entered its state, in ms since 1970, -1 if unknown."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int = NO_TIMESTAMP
    members: tuple[RecordedMember, ...] = ()


@message
class _OffsetKey(Message):
    group: str = string("The group's id.")
    topic: str = string("The topic's name.")
    partition: int = int32("The partition's number.")


@message
class _GroupKey(Message):
    group: str = string("The group's id.")


@message
class _OffsetValue(Message):
    """The stored form of a `CommittedOffset`."""

    offset: int = int64("The next record's offset.")
    leader_epoch: int = int32(
        "The leader epoch of the last record read.", since=3, ignorable=True, default=NO_EPOCH
    )
    metadata: str = string("The client's metadata.")
    commit_timestamp: int = int64("The time of the commit, in ms since 1970.")
    expire_timestamp: int = int64(
        "The time of expiry, in ms since 1970.",
        since=1,
        until=1,
        ignorable=True,
        default=NO_TIMESTAMP,
    )


@message
class _Member(Message):
    member_id: str = string("The member's id.")
    group_instance_id: str | None = string(
        "The id of a static member, or null.",
        since=3,
        nullable_since=3,
        ignorable=True,
        default=None,
    )
    client_id: str = string("The member's client id.")
    client_host: str = string("The address of the member's client.")
    rebalance_timeout: int = int32(
        "The member's rebalance timeout, in ms.", since=1, ignorable=True, default=-1
    )
    session_timeout: int = int32("The member's session timeout, in ms.")
    subscription: bytes = octets("The member's metadata for the assignor.")
    assignment: bytes = octets("The member's assignment.")


@message
class _GroupValue(Message):
    protocol_type: str = string("The group's protocol type.")
    generation: int = int32("The group's generation.")
    protocol: str | None = string("The chosen assignor.", nullable_since=0, default=None)
    leader: str | None = string("The id of the leader.", nullable_since=0, default=None)
    current_state_timestamp: int = int64(
        "The time of the last state change, in ms since 1970.",
        since=2,
        ignorable=True,
        default=NO_TIMESTAMP,
    )
    members: list[_Member] = array(_Member, "The members.")


def encode_offset_key(key: OffsetKey) -> bytes:
    """Encode the key of an offset record. Raises ValueError for a group id or topic name of more
    than 32,767 bytes."""
    topic, partition = key.topic_partition
    stored = _OffsetKey(group=key.group_id, topic=topic, partition=partition)
    return _encode(stored, OFFSET_KEY_VERSION)


def encode_group_key(group_id: str) -> bytes:
    """Encode the key of a group. Raises ValueError for an id of more than 32,767 bytes."""
    return _encode(_GroupKey(group=group_id), GROUP_KEY_VERSION)


def is_offset_key(data: Buffer) -> bool:
    """Return whether `data` is the key of a committed offset's record. Raises MalformedInput."""
    return _version_of(data) in (0, OFFSET_KEY_VERSION)


def decode_key(data: Buffer) -> OffsetKey | GroupKey | None:
    """Return the decoded key. Return None if the version is unknown; the record must then be
    ignored. Raises MalformedInput."""
    version = _version_of(data)
    if version in (0, OFFSET_KEY_VERSION):
        found = _decode(_OffsetKey, data)
        return OffsetKey(found.group, TopicPartition(found.topic, found.partition))
    if version == GROUP_KEY_VERSION:
        return GroupKey(_decode(_GroupKey, data).group)
    return None


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """Encode the value of an offset record: in version 1 if the offset has a time of expiry, else
    in version 3. Version 1 has no leader epoch. Raises ValueError."""
    expires = committed.expire_ms != NO_TIMESTAMP
    stored = _OffsetValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
    )
    return _encode(stored, EXPIRING_OFFSET_VALUE_VERSION if expires else OFFSET_VALUE_VERSION)


def decode_offset_value(data: Buffer) -> CommittedOffset:
    """Decode the value of an offset record (version 0 to 4). Raises MalformedInput."""
    _check_value_version(data, "an offset")
    found = _decode(_OffsetValue, data)
    return CommittedOffset(
        found.offset,
        found.leader_epoch,
        found.metadata,
        found.commit_timestamp,
        found.expire_timestamp,
    )


def encode_group_value(group: RecordedGroup) -> bytes:
    """Encode the value of a group's record in version 3. Raises ValueError for text of more than
    32,767 bytes."""
    stored = _GroupValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.state_ms,
        members=[
            _Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    return _encode(stored, GROUP_VALUE_VERSION)


def decode_group_value(data: Buffer) -> RecordedGroup:
    """Decode version 0 to 4 of a group record's value. In version 0 the session timeout is also the
    rebalance timeout. Raises MalformedInput."""
    version = _check_value_version(data, "a group")
    found = _decode(_GroupValue, data)
    return RecordedGroup(
        found.protocol_type,
        found.generation,
        found.protocol,
        found.leader,
        found.current_state_timestamp,
        tuple(
            RecordedMember(
                member.member_id,
                member.client_id,
                member.client_host,
                member.session_timeout if version == 0 else member.rebalance_timeout,
                member.session_timeout,
                bytes(member.subscription),
                bytes(member.assignment),
                member.group_instance_id,
            )
            for member in found.members
        ),
    )


def plain_key(data: Buffer) -> tuple[int, dict[str, Any] | None]:
    """Return (version, fields) of the key; the fields are None if the version is unknown. Raises
    MalformedInput."""
    version = _version_of(data)
    if version in (0, OFFSET_KEY_VERSION):
        return version, plain(_decode(_OffsetKey, data), version)
    if version == GROUP_KEY_VERSION:
        return version, plain(_decode(_GroupKey, data), version)
    return version, None


def plain_value(key_version: int, data: Buffer) -> tuple[int, dict[str, Any]]:
    """Return (version, fields) of the value `data`. The value describes a group if `key_version` is
    2, else an offset. Valid subscriptions and assignments of consumers are decoded, too. Raises
    MalformedInput."""
    if key_version != GROUP_KEY_VERSION:
        version = _check_value_version(data, "an offset")
        return version, plain(_decode(_OffsetValue, data), version)
    version = _check_value_version(data, "a group")
    group = _decode(_GroupValue, data)
    fields = plain(group, version)
    if group.protocol_type == consumer_protocol.PROTOCOL_TYPE:
        for member, shown in zip(group.members, fields["members"], strict=True):
            with contextlib.suppress(MalformedInput):
                shown["subscription"] = consumer_protocol.plain_subscription(member.subscription)
            with contextlib.suppress(MalformedInput):
                shown["assignment"] = consumer_protocol.plain_assignment(member.assignment)
    return version, fields


def _version_of(data: Buffer) -> int:
    if len(data) < _VERSION.size:
        raise MalformedInput(
            f"a key or value has {len(data)} bytes, expected at least 2 bytes for its version"
        )
    version: int = _VERSION.unpack_from(data)[0]
    return version


def _check_value_version(data: Buffer, what: str) -> int:
    version = _version_of(data)
    if not 0 <= version <= VALUE_VERSION_MAX:
        raise MalformedInput(
            f"the value of {what} has version {version}, expected 0 to {VALUE_VERSION_MAX}"
        )
    return version


def _encode(stored: Message, version: int) -> bytes:
    return _VERSION.pack(version) + encode_message(stored, version, version >= FIRST_FLEXIBLE)


def _decode(message_class: type[MessageT], data: Buffer) -> MessageT:
    version = _version_of(data)
    return decode_message(
        message_class,
        version,
        version >= FIRST_FLEXIBLE,
        memoryview(data)[_VERSION.size :],
        to_the_end=False,
    )
