"""What a member reads: topics by name or by pattern, and whom it tells of changes. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from pybroker.client.metadata import ClusterView
from pybroker.errors import ErrorCode
from pybroker.model import INTERNAL_TOPICS, TopicPartition

Callback = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A plain or an async function of partitions, sorted."""


@dataclass(frozen=True, slots=True)
class RebalanceListener:
    """Called inside of the calls that read and close, never at any other time.

    `on_revoked`: these are given back now and still ours; the place to finish and commit.
    `on_lost`: these were taken away before we noticed; others may read them already, commits fail.
    Without it `on_revoked` is called instead. `on_assigned`: these are new (possibly none); seek
    here to read from elsewhere than the committed offset.
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
    """Either `topics` or `pattern`, which the whole name has to match."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    internal: bool = False
    """Whether the pattern may match topics that are internal."""

    def resolve(self, view: ClusterView) -> frozenset[str] | None:
        """The names of the topics; None while a pattern has not seen all topics."""
        if self.pattern is None:
            return self.topics
        if not view.complete:
            return None
        return frozenset(
            name
            for name, topic in view.topics.items()
            if self.pattern.fullmatch(name)
            and topic.error != ErrorCode.TOPIC_AUTHORIZATION_FAILED
            and (self.internal or not (topic.internal or name in INTERNAL_TOPICS))
        )


def partition_counts(
    view: ClusterView, topics: Iterable[str], before: dict[str, int]
) -> dict[str, int]:
    """How many partitions each of the topics has. One that cannot be told at the moment has as many
    as `before`; one that does not exist is left out."""
    counts = {}
    for name in sorted(topics):
        topic = view.topics.get(name)
        if topic is not None and topic.partitions:
            counts[name] = len(topic.partitions)
        elif name in before and (
            topic is None or topic.error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ):
            counts[name] = before[name]
    return counts
