"""The controller's topic deletions, from the request under /admin/delete_topics to the removal of
the topic's ZooKeeper nodes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable

from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.deletion import Deletion, remove_topic
from pybroker.coordinator.controller.events import DeletionRequested, ReplicasDeleted
from pybroker.coordinator.controller.reading import read_deletion_requests
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.coordinator.controller.writes import Write
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ConnectionLoss, CoordError, NoNode
from pybroker.model import LEADER_DURING_DELETION, StopReplicaPartition, TopicPartition
from pybroker.ports import DeleteOp, Watch

log = logging.getLogger(__name__)


class Deletions:
    """Carries out topic deletions during one controller epoch. `look_at_topics` updates the topics
    in the `ClusterContext`, and returns the names of all topics."""

    def __init__(
        self,
        services: ControllerServices,
        watch: Watch,
        look_at_topics: Callable[[], Awaitable[set[str]]],
    ) -> None:
        self._services = services
        self._watch = watch
        self._look_at_topics = look_at_topics

    @property
    def _context(self) -> ClusterContext:
        return self._services.context

    async def look(self) -> None:
        """Begin the requested deletions, and finish each deletion that all replicas have confirmed.
        Requests for unknown topics are removed. With delete.topic.enable=false, all requests are
        removed, and nothing else is done."""
        requested = await read_deletion_requests(self._services.coord, self._watch)
        if not self._services.settings.delete_topic_enable:
            await self._drop_requests(requested)
            return
        names = requested & self._context.topics.keys()
        if requested - names:
            names = await self._look_at_topics()
            await self._drop_requests(requested - names)
        self.begin(requested & self._context.topics.keys())
        await self.finish()

    async def _drop_requests(self, names: Collection[str]) -> None:
        if not names:
            return
        log.warning(
            "topic deletion request removed topics=%s: no such topic, or delete.topic.enable=false",
            sorted(names),
        )
        outcomes = await self._services.writer.write_all(
            [Write((DeleteOp(paths.delete_topic(name)),)) for name in sorted(names)]
        )
        failed = [
            outcome
            for outcome in outcomes
            if isinstance(outcome, CoordError) and not isinstance(outcome, NoNode)
        ]
        self._services.retries.repeat_if(failed, DeletionRequested())

    def begin(self, names: Iterable[str]) -> None:
        """Queue the requests that tell the brokers to delete the replicas of these topics, and to
        forget the topics. Do nothing if delete.topic.enable is false."""
        if not self._services.settings.delete_topic_enable:
            return
        for name in sorted(set(names) - self._context.deletions.keys()):
            log.info("topic deletion started topic=%s", name)
            self._services.journal.deletion(name, done=False)
            assignment = self._context.topics[name].assignment
            self._context.deletions[name] = Deletion.begun(name, assignment, self._context.brokers)
            self._services.notifier.describe_now(self._context.partitions_of(name))
            self._stop_replicas(name, self._context.brokers)

    def stop_replicas_of(self, broker_ids: Collection[int]) -> None:
        """For these brokers, which have just started, queue the StopReplica requests of all
        deletions under way."""
        for name in self._context.deletions:
            self._stop_replicas(name, broker_ids)

    def forget_brokers(self, broker_ids: Collection[int]) -> None:
        """Let no deletion wait for a StopReplica response from these brokers, which have ended or
        restarted."""
        for name, deletion in self._context.deletions.items():
            for broker_id in broker_ids:
                deletion = deletion.without_broker(broker_id)
            self._context.deletions[name] = deletion

    def _stop_replicas(self, name: str, broker_ids: Iterable[int]) -> None:
        for broker_id in broker_ids:
            keys = [
                TopicPartition(name, number)
                for number, replicas in self._context.topics[name].assignment.items()
                if broker_id in replicas
            ]
            deletion = self._context.deletions[name]
            self._context.deletions[name] = deletion.expecting(broker_id, keys)
            self._services.notifier.stop(
                broker_id,
                [StopReplicaPartition(key, LEADER_DURING_DELETION, delete=True) for key in keys],
            )

    async def confirmed(self, event: ReplicasDeleted) -> None:
        broker = self._context.brokers.get(event.broker_id)
        if broker is None or broker.epoch != event.broker_epoch:
            return
        for name in {key.topic for key in event.topic_partitions}:
            deletion = self._context.deletions.get(name)
            if deletion is not None:
                self._context.deletions[name] = deletion.confirmed(
                    event.broker_id, event.topic_partitions
                )
        await self.finish()

    async def finish(self) -> None:
        """Remove the nodes of every topic whose replicas have all confirmed their deletion."""
        for name, deletion in list(self._context.deletions.items()):
            if not deletion.is_confirmed:
                continue
            deletion.finished()  # raises IllegalMove if a confirmation is still awaited
            if await self._remove_topic(name):
                log.info("topic deleted topic=%s", name)
                self._services.journal.deletion(name, done=True)
                self._context.drop_topic(name)
            else:
                self._services.retries.removals = True

    async def _remove_topic(self, name: str) -> bool:
        services, topic_id = self._services, self._context.topics[name].topic_id
        try:
            return await remove_topic(services.coord, services.writer, name, topic_id)
        except ConnectionLoss as error:
            log.warning(
                "topic removal interrupted topic=%s reason=%r: the controller tries again",
                name,
                error,
            )
            return False
