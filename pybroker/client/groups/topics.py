"""The topics of a member: by name or by pattern, and the callbacks for changes. Pure."""

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
"""A plain or an async function of partitions, sorted."""


@dataclass(frozen=True, slots=True)
class RebalanceListener:
    """Called during the calls that read and close, never at any other time.

    `on_revoked`: these partitions are about to be given back and are still owned; finish and commit
    here. `on_lost`: these were taken away already; other members may read them, commits fail.
    Without it `on_revoked` is called instead. `on_assigned`: these are new (possibly none); seek
    here to read from another position than the committed offset.
    """

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


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Either `topics` or `pattern`, which must match the whole name."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    internal: bool = False
    """Whether the pattern may match internal topics."""

    def resolve(self, memory: TopicMemory) -> frozenset[str] | None:
        """Return the names of the topics; None while a pattern has not seen all topics."""
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
    """The topics that exist, as far as known.

    A broker that has just started reports for a moment that it knows no topics. If the member
    believed it, the group would rebalance and members would lose their partitions. So a known topic
    is gone only after brokers have reported that for `patience_s`. Any other error says nothing
    about existence.
    """

    def __init__(self, patience_s: float) -> None:
        self.known: dict[str, TopicInfo] = {}
        """The topics with partitions, by name."""
        self.complete = False
        """Whether all topics were ever requested."""
        self._patience_s = patience_s
        self._missing: dict[str, float] = {}

    @property
    def in_doubt(self) -> bool:
        """Whether a topic may be gone: refresh soon."""
        return bool(self._missing)

    def look(self, view: ClusterView, now: float) -> None:
        """Process the brokers' metadata at this time of the monotonic clock."""
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
        """Return the number of partitions of each of these topics; missing topics are left out."""
        return {
            name: len(self.known[name].partitions) for name in sorted(topics) if name in self.known
        }
