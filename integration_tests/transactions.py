"""Transactions written by raw requests: the batches of producers, and the markers of a coordinator.
The brokers run without the verification of transactions, since there is no coordinator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from integration_tests.wire_client import Connection, batch_of
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.records.batch import TRANSACTIONAL_FLAG, seal
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pybroker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from unit_tests.patience import PATIENCE_MS

UNVERIFIED: Final = {"transaction.partition.verification.enable": "false"}
_ATTRIBUTES_POSITION: Final = 22


@dataclass
class Transactions:
    """Writes to partition 0 of a topic. `outcome` has each written value and whether it was
    committed; a value of an open transaction is missing. `order` has all values."""

    topic: str
    outcome: dict[bytes, bool] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    _open: dict[int, list[bytes]] = field(default_factory=dict)
    _sequences: dict[int, int] = field(default_factory=dict)

    def put(self, connection: Connection, producer: int, *values: bytes) -> None:
        """Write a batch of the producer's transaction. Producer 0 writes without transactions."""
        sequence = self._sequences.get(producer, 0)
        batch = bytearray(
            batch_of(*values, producer=(producer, 0), sequence=sequence)
            if producer
            else batch_of(*values)
        )
        if producer:
            batch[_ATTRIBUTES_POSITION] |= TRANSACTIONAL_FLAG
            seal(batch, 0, len(batch))
            self._sequences[producer] = sequence + len(values)
            self._open.setdefault(producer, []).extend(values)
        else:
            self.outcome.update(dict.fromkeys(values, True))
        data = PartitionProduceData(index=0, records=bytes(batch))
        request = ProduceRequest(
            transactional_id="tx",
            acks=-1,
            timeout_ms=PATIENCE_MS,
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )
        answer = connection.ask(9, request, ProduceResponse)
        (result,) = answer.responses[0].partition_responses
        assert result.error_code == 0, (result.error_code, result.error_message)
        self.order += values

    def end(self, connection: Connection, producer: int, *, commit: bool) -> None:
        """Write the marker that ends the producer's transaction."""
        code = self.try_to_end(connection, producer, commit=commit)
        assert code is ErrorCode.NONE, code

    def try_to_end(self, connection: Connection, producer: int, *, commit: bool) -> ErrorCode:
        marker = WritableTxnMarker(
            producer_id=producer,
            producer_epoch=0,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=self.topic, partition_indexes=[0])],
            coordinator_epoch=0,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        answer = connection.ask(1, request, WriteTxnMarkersResponse)
        (result,) = answer.markers[0].topics[0].partitions
        if result.error_code == 0:
            values = self._open.pop(producer, [])
            self.outcome.update(dict.fromkeys(values, commit))
        return error_code(result.error_code)

    @property
    def committed(self) -> list[bytes]:
        """The values that a read_committed consumer reads: the values of committed transactions
        before the first value of an open transaction."""
        found = []
        for value in self.order:
            if value not in self.outcome:
                break
            if self.outcome[value]:
                found.append(value)
        return found
