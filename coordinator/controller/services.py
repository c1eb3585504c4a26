"""The objects that all parts of a controller's term share: the context, the fenced writer, the
state machine, the broker notifier and the retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.broker_notifier import BrokerNotifier, ChannelFactory
from pybroker.coordinator.controller.channel import Backoff
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.decisions import Circumstances, decide_repair
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import Event
from pybroker.coordinator.controller.journal import Journal, Note
from pybroker.coordinator.controller.partition_state_machine import PartitionStateMachine
from pybroker.coordinator.controller.partitions import Partition
from pybroker.coordinator.controller.policies import Policies, PolicyOf, policy_of
from pybroker.coordinator.controller.receipts import ReceiptBook
from pybroker.coordinator.controller.retries import Retries
from pybroker.coordinator.controller.writes import FencedWriter
from pybroker.metrics import TimeMeter
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Coord, Rng


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """Kafka's leader.imbalance.* options. `first_check_s` is the time from the controller's
    election to the first check."""

    imbalance_percentage: int
    interval_s: float
    first_check_s: float = 5.0

    @classmethod
    def of(cls, config: BrokerConfig) -> Self | None:
        """Return the settings; None if auto.leader.rebalance.enable is off."""
        if not config.auto_leader_rebalance_enable:
            return None
        return cls(
            imbalance_percentage=config.leader_imbalance_per_broker_percentage,
            interval_s=config.leader_imbalance_check_interval_seconds,
        )


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The controller's settings.

    - `stop_timeout_s`: the time limit for resigning
    - `rebalance`: None means no automatic preferred elections
    - `elections`: measures, for each change of the live brokers, how long the controller takes to
      handle it
    """

    delete_topic_enable: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    stop_timeout_s: float = 3.0
    rebalance: RebalanceSettings | None = None
    journal: Note = lambda entry: None
    elections: TimeMeter = field(default_factory=TimeMeter)
    policy_of: PolicyOf = lambda overrides: policy_of(BrokerConfig(), overrides)


class ControllerServices:
    """The shared objects of one controller's term. Only the task that handles the controller's
    events uses them."""

    def __init__(
        self,
        coord: Coord,
        won: Won,
        channels: ChannelFactory,
        settings: ControllerSettings,
        clock: Clock,
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
        self.notifier = BrokerNotifier(won, self.context, channels, enqueue, settings.backoff)
        self.policies = Policies(coord, settings.policy_of)
        self.journal = Journal(settings.journal, won, clock)
        receipts = ReceiptBook(coord, self.writer, self.context, clock)
        self.machine = PartitionStateMachine(
            coord,
            self.writer,
            self.context,
            self.policies,
            receipts,
            self.journal,
            self.notifier,
            self.retries,
        )

    async def repair(self, keys: Iterable[TopicPartition]) -> None:
        """Give each partition the best leader and ISR that the live brokers allow. Partitions of
        topics that are being deleted are skipped. Raises ControllerMoved, CoordError."""
        kept = [key for key in keys if key.topic not in self.context.deletions]
        await self.machine.move(
            kept, lambda partition: decide_repair(partition, self.circumstances(partition))
        )

    def circumstances(self, partition: Partition) -> Circumstances:
        """Return the current inputs for a decision about the partition's next state.
        `Policies.load` must have loaded the topic's policy."""
        context = self.context
        policy = self.policies.of(partition.topic_partition.topic)
        return Circumstances(
            hosts=context.hosts_of(partition),
            candidates=context.candidates_of(partition),
            controller_epoch=context.controller_epoch,
            stale=context.stale.get(partition.topic_partition, ()),
            required=min(policy.min_insync_replicas, len(partition.replicas)),
            unclean=policy.unclean_elections,
            yielding=context.yielding.get(partition.topic_partition, ()),
        )

    async def close(self) -> None:
        """Stop the retries and the notifier. Idempotent."""
        self.retries.close()
        await self.notifier.close()
