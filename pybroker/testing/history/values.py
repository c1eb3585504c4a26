"""The values that workloads produce: each is sent once, and says by itself whether it is intact.

`name:incarnation:counter:checksum`. The checksum covers the partition as well, so a record that
turns up in another partition is found out.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

TopicPartition = tuple[str, int]
PAST: Final = "@"
"""No topic's name has it: what follows tells an earlier life of the partition (see `eras`)."""
NO_ERA: Final = f"{PAST}?"


class Identity(NamedTuple):
    """Who sent a value: a producer, its life, and the place among the values of that life."""

    producer: str
    incarnation: int
    counter: int


def make_value(identity: Identity, partition: TopicPartition) -> str:
    head = f"{identity.producer}:{identity.incarnation}:{identity.counter}"
    return f"{head}:{_checksum(head, partition):08x}"


def read_value(value: str, partition: TopicPartition) -> Identity:
    """Who sent it. Raises ValueError saying what is wrong with it."""
    head, _, given = value.rpartition(":")
    words = head.split(":")
    if len(words) != 3 or not words[1].isdecimal() or not words[2].isdecimal():
        raise ValueError("this is no value of a workload")
    if given != f"{_checksum(head, partition):08x}":
        raise ValueError("the checksum is wrong: it was damaged, or is of another partition")
    return Identity(words[0], int(words[1]), int(words[2]))


def has_no_era(partition: TopicPartition) -> bool:
    """Whether it is that of an operation during which the topic was made anew, or a loss admitted:
    nobody knows who answered it."""
    return NO_ERA in partition[0]


def is_past(partition: TopicPartition) -> bool:
    """Whether it is a life that ended before the end of the run."""
    return PAST in partition[0]


def _checksum(head: str, partition: TopicPartition) -> int:
    topic = partition[0].partition(PAST)[0]
    return zlib.crc32(f"{topic}/{partition[1]}/{head}".encode())
