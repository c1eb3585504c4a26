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
class RebalanceSettings:
    """Kafka's leader.imbalance.*: the share of a broker's partitions, in percent, that others may
    lead, and how often it is looked at; for the first time `first_check_s` after taking office."""

    imbalance_percentage: int = 10
    interval_s: float = 300.0
    first_check_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """`delete_topic_enable` as Kafka's delete.topic.enable; `backoff` for everything that is tried
    again; `stop_timeout_s` is how long resigning may take; `rebalance` None leaves leaders where
    they are."""

    delete_topic_enable: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    stop_timeout_s: float = 3.0
    rebalance: RebalanceSettings | None = None


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
        context, epoch = self.context, self.context.controller_epoch
        candidates = context.candidates_of(partition)
        if partition.status is not PartitionStatus.ONLINE:
            online = decide_online(partition, candidates, epoch)
            if online is not None:
                return online
        hosts = context.hosts_of(partition)
        dead = [replica for replica in partition.replicas if replica not in hosts]
        return decide_loss(partition, dead, candidates, epoch)

    async def close(self) -> None:
        """Stop telling brokers anything. Idempotent."""
        self.retries.close()
        await self.teller.close()
