"""How the controller of this process reaches the broker of this process: without a network, but
with the same commands, the same order and the same refusals.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.errors import ErrorCode
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import LeaderAndIsr, StopReplica, TopicPartition, UpdateMetadata
from pybroker.replication.manager import ReplicaManager


class LocalBrokerChannel:
    """The `BrokerChannel` of the broker itself."""

    def __init__(self, replicas: ReplicaManager, metadata: MetadataView) -> None:
        self._replicas = replicas
        self._metadata = metadata

    async def close(self) -> None:
        """Nothing is open."""

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        return await self._replicas.leader_and_isr(command)

    async def update_metadata(self, command: UpdateMetadata) -> None:
        self._metadata.apply(command)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        return await self._replicas.stop_replica(command)
