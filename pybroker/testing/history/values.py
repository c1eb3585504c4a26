"""The values that workloads produce. Each is unique, and its checksum shows whether it is intact.

The form is `name:incarnation:counter:checksum`. The checksum covers the partition as well, so a
record that appears in another partition is detected.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

TopicPartition = tuple[str, int]
PAST: Final = "@"
"""The separator between a topic's name and an earlier era (see `eras`). No topic's name contains
it.
"""
NO_ERA: Final = f"{PAST}?"


class Identity(NamedTuple):
    """The origin of a value: the name of its producer, the producer's incarnation (how often its
    process has started), and the number of the value within the incarnation."""

    producer: str
    incarnation: int
    counter: int


def make_value(identity: Identity, partition: TopicPartition) -> str:
    head = f"{identity.producer}:{identity.incarnation}:{identity.counter}"
    return f"{head}:{_checksum(head, partition):08x}"


def read_value(value: str, partition: TopicPartition) -> Identity:
    """Return the origin of a value that was read from `partition`. Raises ValueError for a damaged
    value, or a value that was sent to another partition."""
    head, _, given = value.rpartition(":")
    words = head.split(":")
    if len(words) != 3 or not words[1].isdecimal() or not words[2].isdecimal():
        raise ValueError(f"the value is {value!r}, expected name:incarnation:counter:checksum")
    if given != f"{_checksum(head, partition):08x}":
        raise ValueError(
            f"{value} has a wrong checksum: it is damaged, or was sent to another partition"
        )
    return Identity(words[0], int(words[1]), int(words[2]))


def has_no_era(partition: TopicPartition) -> bool:
    """Return whether this is a special partition name under which operations without a known era
    are stored. The time of such an operation overlaps the recreation of the topic or a loss
    receipt."""
    return NO_ERA in partition[0]


def is_past(partition: TopicPartition) -> bool:
    """Return whether `partition` stands for an era that ended before the end of the run, or for an
    unknown era (`has_no_era`). `eras` gives each era of a partition a name of its own; the
    era at the end of the run has the partition's own name."""
    return PAST in partition[0]


def _checksum(head: str, partition: TopicPartition) -> int:
    topic = partition[0].partition(PAST)[0]
    return zlib.crc32(f"{topic}/{partition[1]}/{head}".encode())
