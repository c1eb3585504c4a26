"""The channels on which a transaction coordinator sends markers to the partition leaders: to
another broker by WriteTxnMarkers requests, to its own broker by a direct call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import Final

from pybroker.client.metadata import error_code
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import Broker, TopicPartition, TransactionMarker
from pybroker.peers.broker_channel import RemoteBrokerChannel
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from pybroker.wire.schema import Message

_ANSWER_S: Final = 5.0
"""How much longer (s) the coordinator waits for the leader's response than the leader waits for the
in-sync replicas."""

Results = Sequence[Mapping[TopicPartition, ErrorCode]]


class RemoteMarkers:
    """A `MarkerChannel` to another broker."""

    def __init__(self, channel: RemoteBrokerChannel) -> None:
        self._channel = channel
        self.close = channel.close

    async def write_markers(self, markers: Sequence[TransactionMarker]) -> Results:
        request = markers_request(markers)
        answer = await self._channel.ask(ApiKey.WRITE_TXN_MARKERS, request, WriteTxnMarkersResponse)
        return results(markers, answer)


class LocalMarkers:
    """A `MarkerChannel` to this broker. `write` is the broker's handler of WriteTxnMarkers."""

    def __init__(self, write: Callable[[WriteTxnMarkersRequest], Awaitable[Message]]) -> None:
        self._write = write

    async def write_markers(self, markers: Sequence[TransactionMarker]) -> Results:
        answer = await self._write(markers_request(markers))
        assert isinstance(answer, WriteTxnMarkersResponse)
        return results(markers, answer)


def new_remote_markers(config: BrokerConfig, sender: int, broker: Broker) -> RemoteMarkers:
    """Return the channel to `broker` for the markers of the transaction coordinator on broker
    `sender`."""
    return RemoteMarkers(
        RemoteBrokerChannel(
            broker,
            config.inter_broker_listener,
            client_id=f"transactions-{sender}",
            timeout_s=config.request_timeout_ms / 1000 + _ANSWER_S,
            connect_s=config.socket_connection_setup_timeout_ms / 1000,
        )
    )


def markers_request(markers: Sequence[TransactionMarker]) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.is_commit,
                coordinator_epoch=marker.coordinator_epoch,
                topics=[
                    WritableTxnMarkerTopic(
                        name=topic, partition_indexes=[key.partition for key in keys]
                    )
                    for topic, keys in groupby(sorted(marker.partitions), lambda key: key.topic)
                ],
            )
            for marker in markers
        ]
    )


def results(markers: Sequence[TransactionMarker], answer: WriteTxnMarkersResponse) -> Results:
    """Return, for each marker, the error codes of its partitions. The response identifies a marker
    by its producer id. Raises BrokerError if a marker has no result."""
    by_producer = {
        found.producer_id: {
            TopicPartition(topic.name, part.partition_index): error_code(part.error_code)
            for topic in found.topics
            for part in topic.partitions
        }
        for found in answer.markers
    }
    missing = {marker.producer_id for marker in markers} - by_producer.keys()
    if missing:
        raise BrokerError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the response to WriteTxnMarkers lacks the producer ids {sorted(missing)}",
        )
    return [by_producer[marker.producer_id] for marker in markers]
