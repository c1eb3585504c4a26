"""The channel to another broker, for the controller's commands and other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeVar

from pybroker.client.connection import Connection
from pybroker.client.errors import ConnectFailed
from pybroker.client.metadata import error_code
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.control import SECURITY_PROTOCOLS
from pybroker.model import (
    Broker,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.messages.control import (
    FULL_TYPE,
    INCREMENTAL_TYPE,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from pybroker.wire.schema import Message

T = TypeVar("T", PartitionFacts, StopReplicaPartition)
AnswerT = TypeVar("AnswerT", bound=Message)

PARTITIONS_MAX: Final = 1_000
"""The maximum number of partitions in one request. The receiving broker does nothing else while it
decodes a request, so a request must not be too large."""


class RemoteBrokerChannel:
    """Sends requests to another broker on one connection. It connects at the first request, and
    again after every failure."""

    def __init__(
        self, broker: Broker, listener: str, *, client_id: str, timeout_s: float, connect_s: float
    ) -> None:
        """`listener` is the name of the inter-broker listener. `timeout_s` limits the wait for a
        response, `connect_s` the wait for a connection."""
        self._broker = broker
        self._listener = listener
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._connect_s = connect_s
        self._connection: Connection | None = None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close(flush=False)  # do not wait for a broker that reads nothing

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        answers: dict[TopicPartition, ErrorCode] = {}
        for some, extent in _portions(command.partitions, command.extent):
            request = LeaderAndIsrRequest(
                controller_id=command.controller_id,
                controller_epoch=command.controller_epoch,
                broker_epoch=command.broker_epoch,
                type=INCREMENTAL_TYPE if extent is Extent.SOME else FULL_TYPE,
                extent=extent,
                topic_states=[
                    LeaderAndIsrTopicState(
                        topic_name=name,
                        topic_id=states[0].topic_id,
                        partition_states=[_role(facts) for facts in states],
                    )
                    for name, states in _by_topic(some)
                ],
            )
            response = await self.ask(ApiKey.LEADER_AND_ISR, request, LeaderAndIsrResponse)
            _require_none(response.error_code)
            for topic, result in zip(request.topic_states, response.topics, strict=True):
                for each in result.partition_errors:
                    key = TopicPartition(topic.topic_name, each.partition_index)
                    answers[key] = error_code(each.error_code)
        return answers

    async def update_metadata(self, command: UpdateMetadata) -> None:
        brokers = [_described_broker(broker) for broker in command.brokers]
        for some, extent in _portions(command.partitions, command.extent, at_least_one=True):
            request = UpdateMetadataRequest(
                controller_id=command.controller_id,
                controller_epoch=command.controller_epoch,
                broker_epoch=command.broker_epoch,
                topic_states=[
                    UpdateMetadataTopicState(
                        topic_name=name,
                        topic_id=states[0].topic_id,
                        partition_states=[_described(facts) for facts in states],
                    )
                    for name, states in _by_topic(some)
                ],
                live_brokers=brokers,
                extent=extent,
            )
            response = await self.ask(ApiKey.UPDATE_METADATA, request, UpdateMetadataResponse)
            _require_none(response.error_code)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        answers: dict[TopicPartition, ErrorCode] = {}
        for some, _ in _portions(command.partitions):
            request = StopReplicaRequest(
                controller_id=command.controller_id,
                controller_epoch=command.controller_epoch,
                broker_epoch=command.broker_epoch,
                topic_states=[
                    StopReplicaTopicState(
                        topic_name=name,
                        partition_states=[
                            StopReplicaPartitionState(
                                partition_index=each.topic_partition.partition,
                                leader_epoch=each.leader_epoch,
                                delete_partition=each.delete,
                            )
                            for each in stops
                        ],
                    )
                    for name, stops in _by_topic(some)
                ],
            )
            response = await self.ask(ApiKey.STOP_REPLICA, request, StopReplicaResponse)
            _require_none(response.error_code)
            for result in response.partition_errors:
                key = TopicPartition(result.topic_name, result.partition_index)
                answers[key] = error_code(result.error_code)
        return answers

    async def ask(self, key: ApiKey, request: Message, answer: type[AnswerT]) -> AnswerT:
        """Send one request, and return the response. Raises PybrokerError, OSError or TimeoutError
        if no response arrives. Even then the other broker may have processed the request."""
        connection = await self._connected()
        version = APIS[key].max_version  # both brokers belong to the same cluster
        return await connection.send(
            key, request, answer, timeout_s=self._timeout_s, version=version
        )

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        await self.close()
        endpoint = self._broker.endpoint(self._listener)
        if endpoint is None:
            raise ConnectFailed(
                f"broker {self._broker.id}",
                f"it has no inter-broker listener {self._listener}; set inter.broker.listener.name"
                " to a listener that every broker has",
            )
        self._connection = await Connection.open(
            endpoint.host, endpoint.port, client_id=self._client_id, timeout_s=self._connect_s
        )
        return self._connection


def new_channel(config: BrokerConfig, controller: int, broker: Broker) -> RemoteBrokerChannel:
    """Return the channel from the controller, whose broker id is `controller`, to `broker`, with
    the time limits of `config`."""
    return RemoteBrokerChannel(
        broker,
        config.inter_broker_listener,
        client_id=f"controller-{controller}",
        timeout_s=config.controller_socket_timeout_ms / 1000,
        connect_s=config.socket_connection_setup_timeout_ms / 1000,
    )


def _require_none(number: int) -> None:
    if number:
        raise BrokerError(error_code(number))


def _portions(
    items: Sequence[T], extent: Extent = Extent.SOME, *, at_least_one: bool = False
) -> Iterator[tuple[Sequence[T], Extent]]:
    """Split `items`, the partitions of a command, into portions that each fit into one request.
    Yield each portion with the extent of its request (see `Extent`)."""
    count = max(-(-len(items) // PARTITIONS_MAX), at_least_one or extent is not Extent.SOME)
    for number in range(count):
        if extent is Extent.SOME or count == 1:
            part = extent
        elif number == 0:
            part = Extent.BEGINS
        else:
            part = Extent.ENDS if number == count - 1 else Extent.GOES_ON
        yield items[number * PARTITIONS_MAX : (number + 1) * PARTITIONS_MAX], part


def _by_topic(items: Iterable[T]) -> list[tuple[str, list[T]]]:
    topic_of: Callable[[T], str] = lambda item: item.topic_partition.topic  # noqa: E731
    ordered = sorted(items, key=lambda item: item.topic_partition)
    return [(name, list(group)) for name, group in groupby(ordered, topic_of)]


def _role(facts: PartitionFacts) -> LeaderAndIsrPartitionState:
    state = facts.state
    return LeaderAndIsrPartitionState(
        partition_index=facts.topic_partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=facts.partition_epoch,
        replicas=list(facts.replicas),
        is_new=facts.is_new,
        eligible=list(state.eligible),
    )


def _described(facts: PartitionFacts) -> UpdateMetadataPartitionState:
    state = facts.state
    return UpdateMetadataPartitionState(
        partition_index=facts.topic_partition.partition,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=facts.partition_epoch,
        replicas=list(facts.replicas),
        offline_replicas=list(facts.offline_replicas),
    )


def _described_broker(broker: Broker) -> UpdateMetadataBroker:
    return UpdateMetadataBroker(
        id=broker.id,
        endpoints=[
            UpdateMetadataEndpoint(
                port=each.port,
                host=each.host,
                listener=each.listener,
                security_protocol=SECURITY_PROTOCOLS.index(each.security_protocol),
            )
            for each in broker.endpoints
        ],
        rack=broker.rack,
    )
