"""Tests of Subscription and Assignment: known bytes, all versions, damaged input."""

from __future__ import annotations

import pytest

from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

WANTED = Subscription(
    ("a", "bc"),
    b"\x01\x02",
    (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("bc", 1)),
    7,
    "r1",
)
GIVEN = Assignment((TopicPartition("a", 0), TopicPartition("a", 2)), b"x")

HEAD = "00000002 000161 00026263 00000002 0102"
OWNED = "00000002 000161 00000002 00000000 00000002 00026263 00000001 00000001"
SUBSCRIPTIONS = {
    0: f"0000 {HEAD}",
    1: f"0001 {HEAD} {OWNED}",
    2: f"0002 {HEAD} {OWNED} 00000007",
    3: f"0003 {HEAD} {OWNED} 00000007 00027231",
}


@pytest.mark.parametrize("version", SUBSCRIPTIONS)
def test_subscription_bytes_of_each_version(version: int) -> None:
    expected = bytes.fromhex(SUBSCRIPTIONS[version])
    assert encode_subscription(WANTED, version) == expected
    found = decode_subscription(expected)
    assert (found.topics, found.user_data) == (WANTED.topics, WANTED.user_data)
    assert found.owned_partitions == (WANTED.owned_partitions if version >= 1 else ())
    assert found.generation_id == (7 if version >= 2 else -1)
    assert found.rack_id == ("r1" if version >= 3 else None)


def test_empty_subscription() -> None:
    expected = bytes.fromhex("0003 00000000 ffffffff 00000000 ffffffff ffff")
    assert encode_subscription(Subscription(())) == expected
    assert decode_subscription(expected) == Subscription(())


@pytest.mark.parametrize("version", range(4))
def test_assignment_bytes_are_the_same_in_all_versions(version: int) -> None:
    expected = bytes.fromhex(f"{version:04x} 00000001 000161 00000002 00000000 00000002 0000000178")
    assert encode_assignment(GIVEN, version) == expected
    assert decode_assignment(expected) == GIVEN


def test_no_bytes_are_decoded_as_an_empty_assignment() -> None:
    assert decode_assignment(b"") == Assignment()


def test_additional_bytes_of_a_newer_version_are_ignored() -> None:
    newer = b"\x00\x09" + encode_subscription(WANTED)[2:] + b"more"
    assert decode_subscription(newer) == WANTED
    assert decode_assignment(b"\x00\x04" + encode_assignment(GIVEN)[2:] + b"more") == GIVEN


@pytest.mark.parametrize("size", range(len(bytes.fromhex(SUBSCRIPTIONS[3]))))
def test_subscription_that_is_cut_off_is_rejected(size: int) -> None:
    with pytest.raises(MalformedInput):
        decode_subscription(bytes.fromhex(SUBSCRIPTIONS[3])[:size])


@pytest.mark.parametrize("bad", ["00", "ffff 00000000 ffffffff", "0000 7fffffff", "0000 00000001"])
def test_damaged_assignment_is_rejected(bad: str) -> None:
    with pytest.raises(MalformedInput):
        decode_assignment(bytes.fromhex(bad))


@pytest.mark.parametrize("version", [-1, 4])
def test_encoding_of_an_unknown_version_is_rejected(version: int) -> None:
    with pytest.raises(ValueError, match=f"version of the consumer protocol is {version}"):
        encode_assignment(GIVEN, version)
