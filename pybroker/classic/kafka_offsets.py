"""Offsets at the group's coordinator (offsets.storage=kafka), and also in the classic nodes while a
group moves from there (dual.commit.enabled).

The coordinator accepts these commits without a member id, so it cannot tell an owner from a former
one. Before each commit, ZooKeeper's leader is asked whether this member still owns the partitions;
a change between its answer and the commit is not fenced, as in Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from pybroker.classic.commits import Offsets, Progress
from pybroker.classic.partition_owners import OwnedPartition
from pybroker.client.consumer import Consumer
from pybroker.model import TopicPartition


class KafkaOffsets:
    """As `commits.Offsets`, whose instance for the nodes it receives. Its methods may raise
    ClientError, too."""

    def __init__(
        self, nodes: Offsets, *, consumer: Callable[[], Consumer], dual: bool, timeout_ms: int
    ) -> None:
        """`consumer` has the group's id, and commits nothing by itself."""
        self._nodes = nodes
        self._consumer = consumer
        self._dual = dual
        self._timeout_ms = timeout_ms
        self._writing = asyncio.Lock()
        """Always taken before the lock of the nodes."""

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Progress]:
        """Return the stored offsets; with dual.commit.enabled a member starts at the larger of the
        two."""
        committed = await self._consumer().committed(partitions)
        found = {}
        for key, answer in committed.items():
            stored = None if answer is None else answer.offset
            found[key] = Progress(stored, stored)
        if self._dual:
            for key, (start, _) in (await self._nodes.read(partitions)).items():
                stored = found[key].stored
                known = [offset for offset in (start, stored) if offset is not None]
                found[key] = Progress(max(known, default=None), stored)
        return found

    async def write(
        self,
        owned_partitions: Iterable[OwnedPartition],
        exact: Mapping[TopicPartition, int] | None = None,
    ) -> list[OwnedPartition]:
        async with self._writing:
            news: dict[OwnedPartition, int] = {}
            for owned in owned_partitions:
                offset = owned.consumed if exact is None else exact[owned.topic_partition]
                if offset is not None and offset != owned.stored:
                    news[owned] = offset
            lost = await self._nodes.disowned(news)
            for owned in lost:
                del news[owned]
            if not news:
                return lost
            offsets = {owned.topic_partition: offset for owned, offset in news.items()}
            await self._consumer().commit(offsets, timeout_ms=self._timeout_ms)
            if self._dual:
                lost += await self._nodes.write(news, offsets)
            for owned, offset in news.items():
                owned.stored = offset
            return lost
