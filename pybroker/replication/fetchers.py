"""The replica fetchers of a broker: one fetcher for each other broker that leads a followed
partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from pybroker.config.broker_config import BrokerConfig
from pybroker.metrics import FetcherCounters, Metrics
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Clock, LeaderChannel
from pybroker.replication.catch_up import CatchUp
from pybroker.replication.fetcher import Fetcher
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.replication.partition import Partition
from pybroker.replication.truncation import Failed, Losses, NoLosses, Truncator
from pybroker.storage.replica_health import ReplicaHealth


class ReplicaFetchers:
    """Owns the replica fetchers of a broker. Use it from the event loop only."""

    def __init__(
        self,
        *,
        channel: Callable[[int], LeaderChannel],
        health: ReplicaHealth,
        blocking: Blocking,
        clock: Clock,
        config: BrokerConfig,
        losses: Losses | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """`channel` returns the channel to a broker id. `losses` reads and writes the loss receipts
        in ZooKeeper: the offsets that an unclean election may have lost. None means that the
        cluster has no unclean elections."""
        self._channel = channel
        self._blocking = blocking
        self._clock = clock
        self._config = config
        self._metrics = Metrics() if metrics is None else metrics
        self._truncator = Truncator(blocking, NoLosses() if losses is None else losses)
        self._catch_up = CatchUp(health, blocking)
        self._fetchers: dict[int, Fetcher] = {}
        self._sources: dict[TopicPartition, Fetcher] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def listen(self, failed: Failed) -> None:
        """From now on, call `failed` whenever the truncation of a replica's log has failed.
        `failed` receives the partition and the reason, and has to close the replica."""
        self._truncator.on_failed = failed

    # queries

    @property
    def copies(self) -> Mapping[TopicPartition, FollowedPartition]:
        """Partition that this broker follows -> the fetcher's state of this partition."""
        return {key: fetcher.copies[key] for key, fetcher in self._sources.items()}

    def is_busy(self, key: TopicPartition) -> bool:
        """Return whether this partition's log is being truncated. No other code may change the log
        meanwhile."""
        return self._truncator.is_busy(key)

    @property
    def busy(self) -> frozenset[TopicPartition]:
        return self._truncator.busy

    # changes

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Fetch each partition from its current leader, beginning at the replica's log end
        offset."""
        if self._stopped:
            return
        by_leader: dict[int, list[Partition]] = {}
        for partition in partitions:
            self._forget(partition.topic_partition)
            assert partition.state is not None and not partition.is_leader
            by_leader.setdefault(partition.state.leader, []).append(partition)
        for leader, followed in by_leader.items():
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = self._new_fetcher(leader)
            for partition in followed:
                self._sources[partition.topic_partition] = fetcher
            fetcher.add(followed)

    def leave(self, keys: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions. The fetchers ignore later answers for these
        partitions."""
        for key in keys:
            self._forget(key)

    def end_idle(self) -> None:
        """Stop each fetcher without partitions."""
        for leader, fetcher in list(self._fetchers.items()):
            if not fetcher.copies:
                del self._fetchers[leader]
                task = asyncio.create_task(fetcher.stop(), name=f"end fetcher {leader}")
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    def synced(self, key: TopicPartition) -> None:
        """Let the next fetch of this partition report the new durable end of its log to the leader.
        Without effect if the broker does not follow the partition."""
        fetcher = self._sources.get(key)
        if fetcher is not None:
            fetcher.synced()

    async def settled(self, keys: Iterable[TopicPartition]) -> None:
        """Wait until no log of these partitions is being truncated."""
        await self._truncator.settled(keys)

    async def stop(self) -> None:
        """Stop all fetchers, and wait for running truncations. Idempotent."""
        self._stopped = True
        self._sources.clear()
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers), *self._ending)
        await self._truncator.settled()

    def _new_fetcher(self, leader: int) -> Fetcher:
        counters = self._metrics.fetchers.setdefault(leader, FetcherCounters())
        channel = self._channel(leader)
        return Fetcher(
            leader,
            channel,
            self._truncator,
            self._catch_up,
            self._blocking,
            self._clock,
            self._config,
            counters,
        )

    def _forget(self, key: TopicPartition) -> None:
        fetcher = self._sources.pop(key, None)
        if fetcher is not None:
            fetcher.remove(key)
