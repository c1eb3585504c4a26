"""The unique values of the records that workloads send: `name:incarnation:counter:checksum`. The
checksum also covers the partition."""

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
    """The origin of a value. `incarnation` counts the starts of the producer. `counter` is the
    value's number within its incarnation."""

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
    """Return whether the topic name contains NO_ERA. `eras.split` adds NO_ERA for an operation that
    belongs to no era (see `eras.py`), such as a read shortly after the topic was recreated."""
    return NO_ERA in partition[0]


def is_past(partition: TopicPartition) -> bool:
    """Return whether the partition's name stands for an earlier part (era) of the partition's
    history. `eras.split` adds a suffix to the name in each era except the last."""
    return PAST in partition[0]


def _checksum(head: str, partition: TopicPartition) -> int:
    topic = partition[0].partition(PAST)[0]
    return zlib.crc32(f"{topic}/{partition[1]}/{head}".encode())
