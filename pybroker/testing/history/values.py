"""The values of the records that workloads send, as `name:incarnation:counter:checksum`. The first
three parts are the fields of `Identity`. Each value is unique. The checksum also covers the
partition, so a record in the wrong partition is detected."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

TopicPartition = tuple[str, int]
PAST: Final = "@"
"""The separator between a topic's name and the name of an earlier era (see `eras`). No topic's name
contains it."""
NO_ERA: Final = f"{PAST}?"
"""The end of the partition name that `eras.split` gives to operations that belong to no era. The
topic's name precedes it."""


class Identity(NamedTuple):
    """The origin of a value. `incarnation` is the number of the producer's process, counted over
    all starts of the producer. `counter` is the number of the value, counted within this
    process."""

    producer: str
    incarnation: int
    counter: int


def make_value(identity: Identity, partition: TopicPartition) -> str:
    head = f"{identity.producer}:{identity.incarnation}:{identity.counter}"
    return f"{head}:{_checksum(head, partition):08x}"


def read_value(value: str, partition: TopicPartition) -> Identity:
    """Return the origin of a value that was read from `partition`. Raises ValueError if the value
    is damaged or was sent to another partition."""
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
    """Return whether this partition name was made by `eras.split` for operations that belong to no
    era. An era of a partition ends when the topic is recreated or loses data. If it is not known
    whether an operation happened before or after this end, the operation belongs to no era."""
    return NO_ERA in partition[0]


def is_past(partition: TopicPartition) -> bool:
    """Return whether `eras.split` has appended a suffix to the topic name. `eras.split` divides the
    history of a partition at each recreation of the topic and at each data loss. Only the last part
    can keep the plain topic name. All other parts get a suffix."""
    return PAST in partition[0]


def _checksum(head: str, partition: TopicPartition) -> int:
    topic = partition[0].partition(PAST)[0]
    return zlib.crc32(f"{topic}/{partition[1]}/{head}".encode())
