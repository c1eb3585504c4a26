"""A broker that leads partitions, with their state nodes in an in-memory ZooKeeper, and the actions
of followers, ZooKeeper and the controller."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import create_parents, ensure
from pybroker.coordinator.zookeeper.schemas import (
    TopicAssignment,
    decode_partitions,
    decode_state,
    encode_state,
    encode_topic,
)
from pybroker.metrics import Metrics
from pybroker.model import PartitionFacts, PartitionState, TopicPartition
from pybroker.replication.isr_changes import IsrChanges
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from pybroker.storage.log_config import LogConfig
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.patience import until
from unit_tests.replication.vocabulary import ME, T0, TOPIC_ID, Replicas

ALL = (ME, 2, 3)
LAG_S = 10.0


class Leading:
    """A broker that leads partitions, between `start` and `stop`."""

    def __init__(self, home: Path, min_insync_replicas: int = 1) -> None:
        self.metrics = Metrics()
        config = LogConfig(min_insync_replicas=min_insync_replicas)
        self.replicas = Replicas(home, config, self.metrics)
        self.clock = self.replicas.clock
        self.tree = MemoryTree(self.clock)
        self.coord = MemoryCoord(self.tree, name="leader")
        self.replicas.manager.lag_max_s = LAG_S
        self.changes = IsrChanges(
            coord=self.coord,
            replicas=self.replicas.manager,
            clock=self.clock,
            metrics=self.metrics,
        )

    async def start(self) -> None:
        await self.coord.start()
        await create_parents(self.coord)
        for broker in ALL:
            await ensure(self.coord, paths.incarnation(broker))
            await ensure(self.coord, paths.broker(broker))
        self.changes.start()

    async def stop(self) -> None:
        await self.changes.stop()
        await self.coord.close()
        self.replicas.logs.shutdown({})

    # the controller

    async def lead(
        self,
        *keys: TopicPartition,
        isr: tuple[int, ...] = ALL,
        epoch: int = 0,
        eligible: tuple[int, ...] = (),
        more: bytes = b"",
        topic_id: uuid.UUID = TOPIC_ID,
    ) -> None:
        """Store this state, and send it to the leader by LeaderAndIsr. `more` is the previous
        content of the node."""
        state = PartitionState(ME, epoch, isr, 1, eligible)
        facts = []
        for key in keys or (T0,):
            await ensure(self.coord, paths.topic_id(topic_id))
            await ensure(self.coord, paths.topic(key.topic))
            topic = encode_topic(TopicAssignment({key.partition: ALL}, topic_id))
            await self.coord.set(paths.topic(key.topic), topic)
            path = paths.partition_state(key)
            await ensure(self.coord, path)
            stat = await self.coord.set(path, encode_state(state, more))
            facts.append(PartitionFacts(key, topic_id, state, stat.version, ALL))
        await self.replicas.told(*facts)

    async def tell_again(self, broker_epoch: int = -1) -> None:
        """Send LeaderAndIsr again, with the current state of the node and the same leader epoch."""
        path = paths.partition_state(T0)
        data, stat = await self.coord.get(path)
        state = decode_state(path, data)
        facts = PartitionFacts(T0, TOPIC_ID, state, stat.version, ALL)
        assert await self.replicas.told(facts, broker_epoch=broker_epoch) == [0]

    async def meddle(self, key: TopicPartition = T0, **changes: object) -> None:
        """Change the state node as another process would do."""
        path = paths.partition_state(key)
        data, _ = await self.coord.get(path)
        state = decode_state(path, data)
        fields = {name: getattr(state, name) for name in PartitionState.__slots__} | changes
        await self.coord.set(path, encode_state(PartitionState(**fields), data))

    # followers

    async def register(self, broker: int) -> int:
        """Register the broker again and return its incarnation."""
        return (await self.coord.set(paths.incarnation(broker), b"")).version

    def fetch(
        self, broker: int, offset: int, *, incarnation: int = 0, key: TopicPartition = T0
    ) -> None:
        fetch = FollowerFetch(broker, offset, 0, incarnation)
        manager = self.replicas.manager
        manager.follower_fetched(manager.partition(key), fetch, self.clock.monotonic())

    async def pass_time(self, seconds: float, *fetching: int) -> None:
        """Advance the clock, let these brokers fetch at the log end, and let the leader search for
        lagging followers."""
        self.clock.advance(seconds)
        for broker in fetching:
            self.fetch(broker, self.partition().log.log_end_offset)
        await self.changes.review_all()

    async def look(self) -> None:
        """Let the leader check the version of its state node, as after the first fetch of a
        follower."""
        await self.changes.review_all()
        change = self.replicas.manager.isr_changes[T0]
        assert change.only_looks
        await until(lambda: not self.partition().is_pending(change))

    # what there is

    def partition(self, key: TopicPartition = T0) -> Partition:
        return self.replicas.partition(key)

    @property
    def node(self) -> PartitionState:
        return self.state_of(T0)

    def state_of(self, key: TopicPartition) -> PartitionState:
        path = paths.partition_state(key)
        found = self.tree.node(path)
        assert found is not None
        return decode_state(path, found[0])

    @property
    def version(self) -> int:
        """Return the version of the state node."""
        found = self.tree.node(paths.partition_state(T0))
        assert found is not None
        return found[1].version

    @property
    def believed(self) -> tuple[int, ...]:
        """Return the stored ISR as the leader knows it."""
        state = self.partition().state
        assert state is not None
        return state.isr

    @property
    def hw(self) -> int:
        return self.partition().high_watermark

    async def until_stored(self, *isr: int, keys: Iterable[TopicPartition] = (T0,)) -> None:
        """Wait until node and leader agree on this ISR."""
        for key in keys:
            await until(
                lambda key=key: (  # type: ignore[misc]
                    self.state_of(key).isr == isr == self.partition(key).state.isr  # type: ignore[union-attr]
                )
            )

    def told(self) -> list[set[TopicPartition]]:
        """Return the notifications of ISR changes for the controller."""
        found = []
        for path in self.tree.paths():
            if path.startswith(paths.ISR_CHANGE_PREFIX):
                node = self.tree.node(path)
                assert node is not None
                found.append(set(decode_partitions(path, node[0])))
        return found
