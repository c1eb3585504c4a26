"""Computes a group's assignment in each member, as the Scala consumer does.

The strategy `roundrobin` assigns as Kafka 0.8.2 to 0.10.1 does. Later releases compute another
assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pybroker.errors import PybrokerError
from pybroker.model import TopicPartition


class ThreadId(NamedTuple):
    """The id of one stream of a member. The owner node of each partition of the stream contains
    this id as a text."""

    consumer: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.number}"


Streams = Mapping[str, Mapping[str, int]]
"""Consumer id -> topic -> number of streams."""
Assignment = dict[TopicPartition, ThreadId]


class NoRoundRobin(PybrokerError):
    """`roundrobin` is impossible: some member has more streams for one topic than for another."""


def assign_range(streams: Streams, partitions: Mapping[str, Sequence[int]]) -> Assignment:
    """Return the assignment by the strategy `range`. `partitions` maps a topic to its partition
    numbers, ascending."""
    found: Assignment = {}
    for topic, numbers in partitions.items():
        threads = sorted(_threads_of(streams, topic), key=_java_order)
        if not threads:
            continue
        share, rest = divmod(len(numbers), len(threads))
        for position, thread in enumerate(threads):
            start = share * position + min(position, rest)
            for number in numbers[start : start + share + (1 if position < rest else 0)]:
                found[TopicPartition(topic, number)] = thread
    return found


def assign_roundrobin(streams: Streams, partitions: Mapping[str, Sequence[int]]) -> Assignment:
    """Return the assignment by the strategy `roundrobin`: the partitions are sorted by a hash of
    their names, and each is assigned to the next stream in turn. Raises NoRoundRobin."""
    topics = dict.fromkeys(topic for counts in streams.values() for topic in counts)
    if not topics:
        return {}
    head, *others = topics
    threads = _threads_of(streams, head)
    for topic in others:
        if set(_threads_of(streams, topic)) != set(threads):
            raise NoRoundRobin(
                "partition.assignment.strategy=roundrobin: each member needs the same number of"
                " streams for all topics of the group, but some member has different numbers for"
                f" the topics {head} and {topic}; subscribe every member to both topics with the"
                " same number of streams, or set the strategy range in all members"
            )
    threads.sort(key=_java_order)
    keys = sorted(TopicPartition(topic, number) for topic in topics for number in partitions[topic])
    keys.sort(key=lambda key: java_hash(f"[{key.topic},{key.partition}]"))
    return {key: threads[turn % len(threads)] for turn, key in enumerate(keys)}


STRATEGIES: Final = {"range": assign_range, "roundrobin": assign_roundrobin}


def java_hash(text: str) -> int:
    """Return `String.hashCode` of Java: a signed number of 32 bits."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _threads_of(streams: Streams, topic: str) -> list[ThreadId]:
    return [
        ThreadId(consumer, number)
        for consumer, counts in streams.items()
        for number in range(counts.get(topic, 0))
    ]


def _java_order(thread: ThreadId) -> bytes:
    """Return the sort key of Java's order of strings (UTF-16 units): thread 10 comes before thread
    2."""
    return str(thread).encode("utf-16-be", "surrogatepass")
