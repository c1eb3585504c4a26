"""Tests of the records of `__consumer_offsets`: the bytes of Apache Kafka 3.9.1, old versions,
and damaged records."""

from __future__ import annotations

import dataclasses

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import (
    GroupKey,
    OffsetKey,
    RecordedGroup,
    RecordedMember,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition

# Written by Apache Kafka 3.9.1 for a static member of confluent-kafka, and for a member that left.
APACHE_GROUP_KEY = "0002 0007 72656164657273"
APACHE_GROUP = (
    "0003 0008 636f6e73756d6572 00000001 0005 72616e6765"
    "0027 69312d32623933306339642d333337662d346337622d393866372d323938343163616561396130"
    "000001a2013ee1d6 00000001"
    "0027 69312d32623933306339642d333337662d346337622d393866372d323938343163616561396130"
    "0002 6931 0002 6331 000a 2f3132372e302e302e31 000493e0 0000afc8"
    "0000001a 00030000000100046c6f61640000000000000000ffffffff0000"
    "00000018 00000000000100046c6f6164000000010000000000000000"
)
APACHE_EMPTY_GROUP = "0003 0008 636f6e73756d6572 00000002 ffff ffff 000001a2013ee34b 00000000"
APACHE_OFFSET_KEY = "0001 0007 72656164657273 0004 6c6f6164 00000000"
APACHE_OFFSET = "0003 0000000000000001 ffffffff 0007 68c3a96c6c6f00 000001a2013ee278"
"""A committed offset. confluent-kafka includes the final NUL in its metadata."""

STATIC = RecordedMember(
    member_id="i1-2b930c9d-337f-4c7b-98f7-29841caea9a0",
    client_id="c1",
    client_host="/127.0.0.1",
    rebalance_timeout_ms=300_000,
    session_timeout_ms=45_000,
    subscription=bytes.fromhex("00030000000100046c6f61640000000000000000ffffffff0000"),
    assignment=bytes.fromhex("00000000000100046c6f6164000000010000000000000000"),
    group_instance_id="i1",
)
READERS = RecordedGroup("consumer", 1, "range", STATIC.member_id, 0x1A2013EE1D6, (STATIC,))

MEMBER_HEAD = "00000001 0003 632d31"
MEMBER_TAIL = "00002710 00000001 73 00000002 6173"
GROUP_HEAD = "0008 636f6e73756d6572 00000002 0005 72616e6765 0003 632d31"
GROUPS = {
    0: f"0000 {GROUP_HEAD} {MEMBER_HEAD} 0001 63 0002 2f68 {MEMBER_TAIL}",
    1: f"0001 {GROUP_HEAD} {MEMBER_HEAD} 0001 63 0002 2f68 0000ea60 {MEMBER_TAIL}",
    2: f"0002 {GROUP_HEAD} 0000000000000009 {MEMBER_HEAD} 0001 63 0002 2f68 0000ea60 {MEMBER_TAIL}",
    3: f"0003 {GROUP_HEAD} 0000000000000009 {MEMBER_HEAD} 0001 69 0001 63 0002 2f68 0000ea60"
    + MEMBER_TAIL,
    4: "0004 09 636f6e73756d6572 00000002 06 72616e6765 04 632d31 0000000000000009 02 04 632d31"
    "02 69 02 63 03 2f68 0000ea60 00002710 02 73 03 6173 00 00",
}
OFFSETS = {
    0: "0000 0000000000000007 0001 6d 0000000000000009",
    1: "0001 0000000000000007 0001 6d 0000000000000009 000000000000000a",
    2: "0002 0000000000000007 0001 6d 0000000000000009",
    3: "0003 0000000000000007 00000003 0001 6d 0000000000000009",
    4: "0004 0000000000000007 00000003 02 6d 0000000000000009 00",
}


def test_keys_are_those_of_apache() -> None:
    offset = OffsetKey("readers", TopicPartition("load", 0))
    assert encode_offset_key(offset) == bytes.fromhex(APACHE_OFFSET_KEY)
    assert encode_group_key("readers") == bytes.fromhex(APACHE_GROUP_KEY)
    assert decode_key(bytes.fromhex(APACHE_OFFSET_KEY)) == offset
    assert decode_key(bytes.fromhex(APACHE_GROUP_KEY)) == GroupKey("readers")


def test_the_oldest_offset_keys_are_read() -> None:
    old = b"\x00\x00" + bytes.fromhex(APACHE_OFFSET_KEY)[2:]
    assert decode_key(old) == OffsetKey("readers", TopicPartition("load", 0))


@pytest.mark.parametrize("version", [-1, 3, 15, 0x7FFF])
def test_keys_of_unknown_versions_are_ignored(version: int) -> None:
    assert decode_key(version.to_bytes(2, "big", signed=True) + b"whatever") is None


def test_groups_are_those_of_apache() -> None:
    stored = bytes.fromhex(APACHE_GROUP)
    assert encode_group_value(READERS) == stored
    assert decode_group_value(stored) == READERS


def test_empty_groups_are_those_of_apache() -> None:
    left = RecordedGroup("consumer", 2, None, None, 0x1A2013EE34B)
    assert encode_group_value(left) == bytes.fromhex(APACHE_EMPTY_GROUP)
    assert decode_group_value(bytes.fromhex(APACHE_EMPTY_GROUP)) == left


def test_offsets_are_those_of_apache() -> None:
    stored = bytes.fromhex(APACHE_OFFSET)
    committed = CommittedOffset(1, -1, "héllo\0", 0x1A2013EE278)
    assert encode_offset_value(committed) == stored
    assert decode_offset_value(stored) == committed


@pytest.mark.parametrize("version", GROUPS)
def test_groups_of_every_version_are_read(version: int) -> None:
    member = RecordedMember(
        member_id="c-1",
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
        session_timeout_ms=10_000,
        subscription=b"s",
        assignment=b"as",
        group_instance_id="i" if version >= 3 else None,
    )
    when = 9 if version >= 2 else -1
    expected = RecordedGroup("consumer", 2, "range", "c-1", when, (member,))
    assert decode_group_value(bytes.fromhex(GROUPS[version])) == expected


@pytest.mark.parametrize("version", OFFSETS)
def test_offsets_of_every_version_are_read(version: int) -> None:
    expected = CommittedOffset(
        7, 3 if version >= 3 else -1, "m", 9, expire_ms=10 if version == 1 else -1
    )
    assert decode_offset_value(bytes.fromhex(OFFSETS[version])) == expected


def test_an_offset_with_an_expiry_time_is_written_in_version_1() -> None:
    committed = CommittedOffset(7, 3, "m", 9, expire_ms=10)
    stored = encode_offset_value(committed)
    assert stored == bytes.fromhex(OFFSETS[1])
    assert decode_offset_value(stored) == dataclasses.replace(committed, leader_epoch=-1)


@pytest.mark.parametrize("version", [-1, 5, 0x7FFF])
def test_values_of_other_versions_are_refused(version: int) -> None:
    other = version.to_bytes(2, "big", signed=True)
    with pytest.raises(MalformedInput, match=f"the value of a group has version {version}"):
        decode_group_value(other + bytes.fromhex(GROUPS[3])[2:])
    with pytest.raises(MalformedInput, match=f"the value of an offset has version {version}"):
        decode_offset_value(other + bytes.fromhex(OFFSETS[3])[2:])


@pytest.mark.parametrize("version", GROUPS)
def test_cut_values_are_refused(version: int) -> None:
    group, offset = bytes.fromhex(GROUPS[version]), bytes.fromhex(OFFSETS[version])
    for size in range(len(group)):
        with pytest.raises(MalformedInput):
            decode_group_value(group[:size])
    for size in range(len(offset)):
        with pytest.raises(MalformedInput):
            decode_offset_value(offset[:size])


def test_cut_keys_are_refused() -> None:
    for key in (bytes.fromhex(APACHE_OFFSET_KEY), bytes.fromhex(APACHE_GROUP_KEY)):
        for size in range(len(key)):
            with pytest.raises(MalformedInput):
                decode_key(key[:size])


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="group: the string has more than 32767 bytes"):
        encode_group_key("g" * 40_000)
