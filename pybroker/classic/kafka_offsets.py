"""Committed offsets with offsets.storage=kafka: the group coordinator stores them.

The commits have no member id, so the coordinator cannot reject a commit of an earlier owner.
Therefore the member checks its owner nodes in ZooKeeper before each commit. As in Kafka, the owner
may still change after the check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from pybroker.classic.commits import Offsets, Progress
from pybroker.classic.partition_owners import OwnedPartition
from pybroker.client.consumer import Consumer
from pybroker.model import TopicPartition


class KafkaOffsets:
    """The store of committed offsets for offsets.storage=kafka. `nodes` is the store in ZooKeeper,
    for ownership checks and dual.commit.enabled. The methods raise ClientError, CoordError and
    MalformedNode."""

    def __init__(
        self, nodes: Offsets, *, consumer: Callable[[], Consumer], dual: bool, timeout_ms: int
    ) -> None:
        """Each call of `consumer` returns the member's Consumer, which has the group's id and makes
        no automatic commits. With `dual`, offsets are also written to ZooKeeper."""
        self._nodes = nodes
        self._consumer = consumer
        self._dual = dual
        self._timeout_ms = timeout_ms
        self._writing = asyncio.Lock()
        """Held during a whole commit. Always acquired before the lock of `nodes`."""

    async def read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Progress]:
        """Return each partition's committed offset in Kafka. With dual.commit.enabled, `start` is
        the larger of the committed offsets in Kafka and in ZooKeeper."""
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
