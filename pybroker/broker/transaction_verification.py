"""Connects the verification of transactions (KIP-890) with the rest of the broker: finds a
transactional id's coordinator and the channel to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from pybroker.broker.group_coordination import CoordinationRooms
from pybroker.broker.transaction_coordination import TRANSACTION_TOPIC, TransactionCoordination
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.model import Endpoint, TopicPartition
from pybroker.peers.transaction_verifier import Channel, RemoteCoordinator, Verifier
from pybroker.replication.verification import TransactionVerification


class Verifying:
    """Verifies, until `stop`, that partitions are in a producer's transaction. `transactions` has
    the coordinators on this broker, which are called without a network request. `current` returns
    the broker's options in force."""

    def __init__(
        self,
        rooms: CoordinationRooms,
        transactions: TransactionCoordination,
        current: Callable[[], BrokerConfig],
    ) -> None:
        self._rooms = rooms
        self._coordinator = transactions.service
        self._topic = transactions.topic
        verifier = Verifier(
            self._find,
            self._channel_to,
            rooms.broker_id,
            self._verify_here,
            self._verify_here_at_once,
        )
        self.stop = verifier.stop
        self.verification = TransactionVerification(
            verifier,
            rooms.replicas,
            rooms.clock,
            lambda: current().transaction_partition_verification_enable,
            rooms.metrics,
        )

    async def _find(self, transactional_id: str) -> int:
        """Return the broker id of the transactional id's coordinator. Raise BrokerError
        COORDINATOR_NOT_AVAILABLE if the coordinator is unknown."""
        known = self._rooms.metadata.topic(TRANSACTION_TOPIC)
        if known is None:
            text = f"there is no topic {TRANSACTION_TOPIC}"
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        try:
            await self._topic.learn(known.topic_id)
        except (CoordError, MalformedNode) as error:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        return self._topic.leader_of(self._topic.partition_of(transactional_id))

    def _channel_to(self, broker_id: int) -> Channel:
        return RemoteCoordinator(
            lambda: self._endpoint(broker_id),
            client_id=f"broker-{self._rooms.broker_id}-transactions",
            timeout_s=self._rooms.config.request_timeout_ms / 1000,
        )

    def _endpoint(self, broker_id: int) -> Endpoint | None:
        broker = self._rooms.metadata.broker(broker_id)
        listener = self._rooms.config.inter_broker_listener
        return None if broker is None else broker.endpoint(listener)

    async def _verify_here(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        return await self._coordinator.verify(transactional_id, producer, partitions)

    def _verify_here_at_once(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        if not self._topic.is_known:
            return None
        partition = self._topic.partition_of(transactional_id)
        if self._topic.leader_of(partition) != self._rooms.broker_id:
            return None
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        return self._coordinator.verify_at_once(transactional_id, producer, partitions)
