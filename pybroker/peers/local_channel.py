"""Carries out the controller's commands on this broker. The controller may run in this process, or
may send the commands from another broker by requests."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from pybroker.coordinator.zookeeper.paths import CONTROLLER_EPOCH
from pybroker.coordinator.zookeeper.schemas import decode_number
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import (
    LeaderAndIsr,
    PartitionFacts,
    StopReplica,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.ports import Coord
from pybroker.replication.manager import ReplicaManager

log = logging.getLogger(__name__)


class ProvenEpochs:
    """Rejects commands with a controller epoch above the one in ZooKeeper. Without this check, a
    client could send a command with a very high epoch, and this broker would reject the real
    controller forever."""

    def __init__(self, coord: Coord) -> None:
        self._coord = coord
        self._highest = -1

    async def prove(self, controller_epoch: int) -> None:
        """Raise BrokerError CLUSTER_AUTHORIZATION_FAILED if no controller has had this epoch,
        NETWORK_EXCEPTION if ZooKeeper does not answer."""
        if controller_epoch <= self._highest:
            return
        try:
            await self._coord.sync(CONTROLLER_EPOCH)
            data, _ = await self._coord.get(CONTROLLER_EPOCH)
            self._highest = decode_number(CONTROLLER_EPOCH, data)
        except (CoordError, MalformedNode) as error:
            raise BrokerError(
                ErrorCode.NETWORK_EXCEPTION,
                f"reading {CONTROLLER_EPOCH} in ZooKeeper failed: {type(error).__name__}: {error}",
            ) from error
        if controller_epoch > self._highest:
            raise BrokerError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                f"the command has controller epoch {controller_epoch}, but no controller has had"
                f" an epoch above {self._highest}, according to ZooKeeper",
            )


class LocalBrokerChannel:
    """Carries out the controller's commands on this broker."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataView,
        on_facts: Callable[[Iterable[PartitionFacts]], None] = lambda partitions: None,
    ) -> None:
        """`on_facts` receives the partitions of each LeaderAndIsr and UpdateMetadata command that
        this broker has carried out."""
        self._replicas = replicas
        self._metadata = metadata
        self._on_facts = on_facts

    async def close(self) -> None:
        """Do nothing: this channel has no connection."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        # The command may wait for earlier ones. Its roles are stored in ZooKeeper already, so the
        # new leaders may lead before this broker carries it out.
        me = self._replicas.broker_id
        leads: dict[TopicPartition, bool] = {}
        for facts in command.partitions:
            key, state = facts.topic_partition, facts.state
            partition = self._replicas.partitions.get(key)
            if partition is None or state.leader_epoch > partition.leader_epoch:
                leads[key] = state.leader == me
                if partition is not None and partition.is_leader:
                    partition.superseded(is_replaced=not leads[key])
        answers = await self._replicas.leader_and_isr(command)
        self._on_facts(command.partitions)
        taken = Counter(leads[key] for key in leads if answers[key] is ErrorCode.NONE)
        for leader, partitions in sorted(taken.items(), reverse=True):
            role = "leader" if leader else "follower"
            text = "become %s partitions=%d controller_epoch=%d"
            log.info(text, role, partitions, command.controller_epoch)
        return answers

    async def update_metadata(self, command: UpdateMetadata) -> None:
        if -1 < command.broker_epoch < self._replicas.broker_epoch:
            raise BrokerError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"the command has broker epoch {command.broker_epoch}, which is below the epoch of"
                f" this broker's registration, {self._replicas.broker_epoch}",
            )
        self._metadata.apply(command)
        self._on_facts(command.partitions)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        """Stop serving the partitions of the command, and return the result of each partition. If a
        partition of the command has `delete`, also delete its log."""
        answers = await self._replicas.stop_replica(command)
        deleted = (item.topic_partition for item in command.partitions if item.delete)
        gone = sum(answers[key] is ErrorCode.NONE for key in deleted)
        if gone:
            epoch = command.controller_epoch
            log.info("partitions deleted partitions=%d controller_epoch=%d", gone, epoch)
        return answers
