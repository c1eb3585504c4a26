"""A controller's term, from the won election to the end: one handler for each event.

Only the handlers change the context, one after the other. If a handler fails half-way, its stored
decisions remain. When the event is handled again, the brokers get these decisions too.
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.coordinator.controller.broker_notifier import ChannelFactory
from pybroker.coordinator.controller.brokers import BrokerChanges
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.controlled_shutdown import Handovers
from pybroker.coordinator.controller.deletions import Deletions
from pybroker.coordinator.controller.election import Won
from pybroker.coordinator.controller.events import (
    BrokersChanged,
    DeletionRequested,
    ElectionAsked,
    Event,
    HandoverAsked,
    IsrChanged,
    LogDirsFailed,
    PoliciesChanged,
    PreferredElectionRequested,
    ReassignmentRequested,
    RebalanceDue,
    ReplicasAccepted,
    ReplicasDeleted,
    ReplicasRefused,
    Retry,
    TopicChanged,
    TopicsChanged,
)
from pybroker.coordinator.controller.initializer import ControllerInitializer, Watches
from pybroker.coordinator.controller.isr_notices import IsrNotices
from pybroker.coordinator.controller.log_dirs import LogDirFailures
from pybroker.coordinator.controller.partitions import PartitionStatus
from pybroker.coordinator.controller.preferred import RequestedElections
from pybroker.coordinator.controller.reassignments import Reassignments
from pybroker.coordinator.controller.rebalance import Rebalance
from pybroker.coordinator.controller.services import ControllerServices, ControllerSettings
from pybroker.coordinator.controller.suspects import Suspects
from pybroker.coordinator.controller.topic_changes import TopicChanges
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import CoordError
from pybroker.ports import Clock, Coord, Rng, WatchEvent


class ControllerTerm:
    """One term of a controller. Owns the senders and timers, from `begin` to `close`."""

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
        self.won = won
        self._clock = clock
        self._services = services = ControllerServices(
            coord, won, channels, settings, clock, rng, enqueue
        )
        watches = Watches(
            brokers=lambda _: enqueue(BrokersChanged()),
            topics=lambda _: enqueue(TopicsChanged()),
            topic=self._topic_changed,
            deletions=lambda _: enqueue(DeletionRequested()),
        )
        self._loader = ControllerInitializer(coord, services.writer, services.context, watches, rng)
        self._topics = TopicChanges(services, self._loader, watches)
        self._deletions = Deletions(services, watches.deletions, self._topics.look)
        self._log_dirs = LogDirFailures(services, lambda _: enqueue(LogDirsFailed()))
        self._suspects = Suspects(services)
        self._isr_notices = IsrNotices(services, lambda _: enqueue(IsrChanged()), self._suspects)
        self._brokers = BrokerChanges(services, watches.brokers, self._log_dirs, self._deletions)
        self._elections = RequestedElections(
            services, lambda _: enqueue(PreferredElectionRequested())
        )
        self._reassignments = Reassignments(services, lambda _: enqueue(ReassignmentRequested()))
        self._rebalance = Rebalance(services)
        self._handovers = Handovers(services, self._brokers.look)

    @property
    def context(self) -> ClusterContext:
        """The controller's view of the cluster; read-only for callers."""
        return self._services.context

    async def begin(self) -> None:
        """Read the cluster, elect leaders where necessary, and send every broker its roles and all
        metadata. Raises ControllerMoved, CoordError: the caller must then close this term and stand
        for election again."""
        services = self._services
        services.journal.elected()
        notices = await self._isr_notices.find()
        deletions, left_out = await self._loader.load()
        await self._isr_notices.remove(notices)
        services.retries.repeat_if(left_out, TopicsChanged())
        await self._log_dirs.take()
        services.notifier.open(self.context.brokers)
        self._deletions.begin(deletions & self.context.topics.keys())
        await services.notifier.queue_current_state(self.context.brokers)
        await services.repair(self.context.partitions)
        await self._suspects.look_at_all()
        if deletions:
            await self._deletions.look()
        await self._elections.look()
        await self._reassignments.look()
        self._rebalance.begin()
        await self._end_round()

    async def handle(self, event: Event) -> None:
        """Handle one event. Raises ControllerMoved, CoordError. If the error is ConnectionLoss, the
        caller can handle the event again."""
        self._services.journal.event = type(event).__name__
        match event:
            case BrokersChanged():
                began = self._clock.monotonic()
                await self._brokers.look()
                self._services.settings.elections.add(self._clock.monotonic() - began)
                await self._suspects.look_at_all()
            case TopicsChanged():
                await self._topics.look()
            case TopicChanged():
                await self._topics.look_at(event.topic)
            case DeletionRequested():
                await self._deletions.look()
            case ReplicasDeleted():
                await self._deletions.confirmed(event)
            case LogDirsFailed():
                await self._log_dirs.take()
            case IsrChanged():
                await self._isr_notices.take()
            case ReplicasRefused() | ReplicasAccepted():
                changed = self._log_dirs.answered(event)
                self._services.notifier.describe(changed)
                await self._services.repair(changed)
                await self._suspects.look(changed)
            case PreferredElectionRequested():
                await self._elections.look()
            case ReassignmentRequested():
                await self._reassignments.look()
            case RebalanceDue():
                await self._rebalance.check()
            case ElectionAsked():
                await self._elections.answer(event)
            case HandoverAsked():
                await self._handovers.answer(event)
            case PoliciesChanged():
                await self._policies_changed(event.topics)
            case Retry():
                await self._try_again()
        await self._end_round()

    async def _try_again(self) -> None:
        keys = self._services.retries.take()
        try:
            # After a lost reply a state may be stored that the context does not have yet. Without
            # this read, `repair` would change nothing, and the leader and the followers would never
            # get the stored state.
            await self._services.machine.refresh(keys)
        except CoordError:
            self._services.retries.partitions.update(keys)
            raise
        await self._services.repair(keys)
        await self._suspects.look(keys)
        await self._deletions.finish()

    async def _policies_changed(self, topics: frozenset[str] | None) -> None:
        """Elect leaders for partitions without a live leader, after a change of
        unclean.leader.election.enable or min.insync.replicas in `topics` (None: in any topic)."""
        await self._services.repair(
            partition.topic_partition
            for partition in list(self.context.kept_partitions())
            if partition.status is not PartitionStatus.ONLINE
            and (topics is None or partition.topic_partition.topic in topics)
        )

    async def close(self) -> None:
        """Stop the timers and the senders. Idempotent."""
        self._services.journal.steps_down()
        self._rebalance.close()
        await self._services.close()

    async def _end_round(self) -> None:
        await self._services.notifier.send_round()
        self._services.retries.schedule()

    def _topic_changed(self, event: WatchEvent) -> None:
        name = paths.parse_topic(event.path)
        if name is not None:
            self._services.enqueue(TopicChanged(name))
