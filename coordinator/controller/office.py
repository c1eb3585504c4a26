"""What every part of a reign works with: the picture of the cluster, the fenced writer, the state
machine, the news for the brokers and what is tried again. Each part (`brokers.py`,
`topic_changes.py`, `deletions.py` ...) is given this and adds one kind of event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pybroker.coordinator.controller.channel import Backoff
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import Event
from pybroker.coordinator.controller.partitions import (
    Partition,
    PartitionStatus,
    StateWrite,
    decide_online,
)
from pybroker.coordinator.controller.replicas import decide_loss
from pybroker.coordinator.controller.retries import Retries
from pybroker.coordinator.controller.telling import ChannelFactory, Teller
from pybroker.coordinator.controller.transitions import StateMachine
from pybroker.coordinator.controller.writes import FencedWriter
from pybroker.model import TopicPartition
from pybroker.ports import Coord, Rng


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`delete_topic_enable` as Kafka's delete.topic.enable; `backoff` for everything that is tried
    again; `stop_timeout_s` is how long resigning may take."""

    delete_topic_enable: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    stop_timeout_s: float = 3.0


class Office:
    """Of one reign; used by the controller's consumer task only."""

    def __init__(
        self,
        coord: Coord,
        won: Won,
        channels: ChannelFactory,
        settings: ControllerSettings,
        rng: Rng,
        enqueue: Callable[[Event], None],
    ) -> None:
        self.coord = coord
        self.won = won
        self.settings = settings
        self.rng = rng
        self.enqueue = enqueue
        self.context = ClusterContext(won.epoch)
        self.writer = FencedWriter(coord, won.epoch_version)
        self.retries = Retries(enqueue, settings.backoff)
        self.teller = Teller(won, self.context, channels, enqueue, settings.backoff)
        self.machine = StateMachine(coord, self.writer, self.context, self.teller, self.retries)

    async def repair(self, keys: Iterable[TopicPartition]) -> None:
        """Bring the partitions to the best state that the live brokers allow.

        Raises ControllerMoved or SessionExpired.
        """
        kept = [key for key in keys if key.topic not in self.context.deletions]
        await self.machine.move(kept, self._decide_repair)

    def _decide_repair(self, partition: Partition) -> StateWrite | None:
        live, epoch = self.context.hosts_of(partition), self.context.controller_epoch
        if partition.status is not PartitionStatus.ONLINE:
            online = decide_online(partition, live, epoch)
            if online is not None:
                return online
        dead = [replica for replica in partition.replicas if replica not in live]
        return decide_loss(partition, dead, live, epoch)

    async def close(self) -> None:
        """Stop telling brokers anything. Idempotent."""
        self.retries.close()
        await self.teller.close()
