"""Verifies with the transaction coordinator that a transaction is open, before its first append to
a partition (KIP-890, part 1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import Metrics
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Producer
from pybroker.records.batch import NO_SEQUENCE
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition
from pybroker.storage.producer_state import EXEMPT, Verification

RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
    }
)
"""The codes that leave open whether a partition is in a transaction. With OPERATION_NOT_ATTEMPTED
the coordinator has refused the request because of another partition in the request."""


class TransactionVerifier(Protocol):
    """Asks transaction coordinators whether partitions are in a transaction (KIP-890)."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return an error code for each partition that is not in the ongoing transaction of this
        producer epoch. Raises BrokerError if the coordinator does not answer."""

    def verify_at_once(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        """Return the result of `verify` if the result is known without waiting, else None. Raises
        BrokerError if the coordinator on this broker refuses to answer."""


class TransactionVerification:
    """Confirms with the transaction coordinator that partitions are in a transaction. `is_enabled`
    returns the option transaction.partition.verification.enable."""

    def __init__(
        self,
        verifier: TransactionVerifier,
        replicas: ReplicaManager,
        clock: Clock,
        is_enabled: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        self.verifier = verifier
        self._replicas = replicas
        self._clock = clock
        self._is_enabled = is_enabled
        self._metrics = metrics

    def begin(
        self, partition: Partition, producer: Producer, sequence: int, now_ms: int
    ) -> Verification | None:
        """Return the guard for a batch that begins with `sequence`. The guard is EXEMPT if
        verification is disabled, and None if the producer has an open transaction in the partition.
        With any other guard, the caller must call `confirm`."""
        if not self._is_enabled():
            return EXEMPT
        return partition.log.producers.verification(
            producer.producer_id, producer.epoch, sequence, now_ms
        )

    async def confirm(
        self, transactional_id: str, producer: Producer, keys: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Ask the transaction coordinator whether the partitions `keys` are in the producer's
        ongoing transaction. Return an error code for each partition that the coordinator does not
        confirm."""
        started = self._clock.monotonic()
        try:
            found = await self.verifier.verify(
                transactional_id, producer.producer_id, producer.epoch, keys
            )
        except BrokerError as error:
            found = dict.fromkeys(keys, error.code)
        return self._note(started, producer, found)

    def confirm_at_once(
        self, transactional_id: str, producer: Producer, keys: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode] | None:
        """Return the result of `confirm` if the coordinator is on this broker and answers without a
        wait. Otherwise return None."""
        started = self._clock.monotonic()
        found: Mapping[TopicPartition, ErrorCode] | None
        try:
            found = self.verifier.verify_at_once(
                transactional_id, producer.producer_id, producer.epoch, keys
            )
        except BrokerError as error:
            found = dict.fromkeys(keys, error.code)
        return None if found is None else self._note(started, producer, found)

    def _note(
        self, started: float, producer: Producer, found: Mapping[TopicPartition, ErrorCode]
    ) -> Mapping[TopicPartition, ErrorCode]:
        self._metrics.verifications.add(self._clock.monotonic() - started)
        self._metrics.verification_failures += len(found)
        for key, code in found.items():
            partition = self._replicas.partitions.get(key)
            if code not in RETRIABLE and partition is not None:
                partition.log.producers.refuse(producer.producer_id, producer.epoch)
        return found

    async def of_partition(
        self, partition: Partition, transactional_id: str, producer: Producer
    ) -> Verification | None:
        """Return the verification guard (KIP-890) for a transactional batch without sequences, or
        None if the producer already has an open transaction in the partition. If necessary, the
        transaction coordinator first confirms that the partition is in the transaction. Raises
        BrokerError with the coordinator's error code if the coordinator does not confirm it."""
        key = partition.topic_partition
        guard = self.begin(partition, producer, NO_SEQUENCE, self._clock.wall_ms())
        if guard is not None and guard is not EXEMPT:
            for code in (await self.confirm(transactional_id, producer, (key,))).values():
                raise BrokerError(
                    code,
                    f"{key}: the coordinator of transactional id {transactional_id} did not confirm"
                    " that the partition is in the transaction",
                )
        return guard
