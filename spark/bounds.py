"""What a read asks for before the cluster was asked: which partitions, from where, to where. Values
only; `planning` turns them into a snapshot, in which every offset is a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pybroker.model import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""The two words where a number stands, as in the JSON of Spark's options."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which partitions to read; exactly one of the three is given.

    `topics` and `pattern` mean all partitions of a topic, those of the moment of planning.
    `pattern` is a regular expression that is looked for anywhere in a name, as Spark does; internal
    topics never match. `partitions` are topic -> partition numbers.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition, EARLIEST and LATEST among them; every wanted partition has to
    be named, and no other."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first offset whose record's timestamp is at least so many milliseconds since 1970: the
    same for all partitions, or one for each (then every wanted partition has to be named, and no
    other).

    As an end, a partition without such a record is read to its latest offset. As a start it is an
    error, or with `on_no_match="latest"` empty.
    """

    timestamp_ms: int | Mapping[TopicPartition, int]
    on_no_match: Literal["error", "latest"] = "error"


Bound: TypeAlias = Literal["earliest", "latest"] | AtOffsets | AtTimestamp
