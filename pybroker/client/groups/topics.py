"""The subscription of a member, by names or by a pattern, and its rebalance callbacks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from pybroker.client.metadata import ClusterView, TopicInfo
from pybroker.errors import ErrorCode
from pybroker.model import INTERNAL_TOPICS, TopicPartition

GONE: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
)
Callback = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A rebalance callback of the application, a plain or an async function. It gets a sorted list of
partitions."""


class RebalanceListener:
    """The base class of rebalance listeners. A method may be plain or async, and gets a sorted list
    of partitions. The methods run only during calls that read, unsubscribe or close."""

    def on_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called with the member's new partitions, possibly none. Seek here to start at another
        position than the committed offset."""

    def on_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called before the member releases these partitions. Finish processing their records here,
        and commit the offsets."""

    def on_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Called when the member has already lost these partitions. Other members can already own
        them, and commits fail. Unless overridden, `on_lost` calls `on_revoked`."""
        return self.on_revoked(partitions)


@dataclass(frozen=True, slots=True)
class RebalanceCallbacks:
    """The callbacks of a subscription, as in `RebalanceListener`."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None

    async def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        await _call(self.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[TopicPartition]) -> None:
        await _call(self.on_revoked, partitions)

    async def lost(self, partitions: Iterable[TopicPartition]) -> None:
        await _call(self.on_lost or self.on_revoked, partitions)


async def _call(callback: Callback | None, partitions: Iterable[TopicPartition]) -> None:
    if callback is not None:
        outcome = callback(sorted(partitions))
        if inspect.isawaitable(outcome):
            await outcome


def topic_names(topics: Iterable[str]) -> frozenset[str]:
    """Return the names of topics to subscribe to; the result may be empty. Raises ValueError if
    `topics` is not a list of names."""
    if isinstance(topics, str):
        # One topic or, as in bootstrap_servers, several names with commas between them?
        raise ValueError(f"topics must be a list of names, not {topics!r}: write [{topics!r}]")
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise ValueError(f"topics must be a list of names, not {topics!r}")
    names = list(topics)
    for name in names:
        if not isinstance(name, str) or not name:
            raise ValueError(f"a topic in topics must be a name, not {name!r}")
    return frozenset(names)


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A subscription: the names `topics`, or all topics whose full name matches `pattern`."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    internal: bool = False
    """Whether the pattern may match internal topics."""

    def resolve(self, memory: TopicMemory) -> frozenset[str] | None:
        """Return the names of the subscribed topics; None if a pattern needs metadata that `memory`
        does not have yet."""
        if self.pattern is None:
            return self.topics
        if not memory.complete:
            return None
        return frozenset(
            name
            for name, topic in memory.known.items()
            if self.pattern.fullmatch(name)
            and (self.internal or not (topic.internal or name in INTERNAL_TOPICS))
        )


class TopicMemory:
    """The topics that exist. A topic counts as deleted only after brokers have reported it as
    missing for `patience_s` seconds: a broker that has just started may not know all topics."""

    def __init__(self, patience_s: float) -> None:
        self.known: dict[str, TopicInfo] = {}
        """The topics that have partitions, by name."""
        self.complete = False
        """Whether the metadata of all topics was requested at least once."""
        self._patience_s = patience_s
        self._missing: dict[str, float] = {}

    @property
    def in_doubt(self) -> bool:
        """Whether brokers report a known topic as missing, so that the metadata needs a refresh."""
        return bool(self._missing)

    def look(self, view: ClusterView, now: float) -> None:
        """Update the topics from new metadata. `now` is the time of the monotonic clock in
        seconds."""
        self.complete = self.complete or view.complete
        for name, topic in view.topics.items():
            if topic.partitions:
                self.known[name] = topic
                self._missing.pop(name, None)
        for name in list(self.known):
            found = view.topics.get(name)
            gone = view.complete if found is None else found.error in GONE
            if gone and now - self._missing.setdefault(name, now) >= self._patience_s:
                del self.known[name], self._missing[name]

    def partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return topic -> partition count, for those of the topics that exist."""
        return {
            name: len(self.known[name].partitions) for name in sorted(topics) if name in self.known
        }
