"""Leader discovery: a broker that gets no answers from ZooKeeper asks other brokers for the current
leaders. Otherwise a former leader would tell clients forever that it still leads its partitions.

An answer updates the broker's metadata. A higher leader epoch in an answer stops this broker from
appending to the partition. An answer never makes a replica a follower, and never truncates a log.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.client.connection import Connection
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import NO_LEADER, Broker, TopicPartition
from pybroker.ports import Clock
from pybroker.replication.authority import Authority
from pybroker.replication.manager import ReplicaManager
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)

log = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST: Final = 500
"""The number of partitions that one Metadata request asks about: topics are added to the request
until it has at least this many partitions. So no answer blocks the event loop for long."""
_ROUNDS_PER_SESSION: Final = 3
_PAUSE_PER_ROUND: Final = 10
"""The pause after a round of requests is at least this many times as long as the brokers took to
answer the requests."""

Ask = Callable[[Broker, Sequence[str]], Awaitable[MetadataResponse]]
"""Asks a broker for the metadata of the topics with these names. Raises PybrokerError or
OSError."""


class LeaderDiscovery:
    """Asks other brokers for the current leaders while ZooKeeper does not answer. The owner calls
    `changed` after each change of `ZooKeeperLease.level` (which requests the broker may answer)."""

    def __init__(
        self,
        *,
        broker_id: int,
        metadata: MetadataView,
        replicas: ReplicaManager,
        ask: Ask,
        session_s: float,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._ask = ask
        self._session_s = session_s
        self._clock = clock
        self._is_wanted = asyncio.Event()
        self._task = BackgroundTask("discovery")
        self._turn = 0
        """Which of the other brokers, sorted by id, is asked first in the next round. It changes
        each round, since the broker that is asked first may itself be cut off."""

    def start(self) -> None:
        self._task.start(self._run)

    async def stop(self) -> None:
        """Stop asking other brokers. Idempotent."""
        await self._task.stop()

    def changed(self, lease: Authority) -> None:
        """Stop asking other brokers for the current leaders if `lease` is ALL, that is, if the
        ZooKeeper session is alive. Otherwise begin to ask."""
        if lease is Authority.ALL:
            self._is_wanted.clear()
        else:
            self._is_wanted.set()

    async def _run(self) -> None:
        while True:
            await self._is_wanted.wait()
            took_s = 0.0
            try:
                took_s = await self._round()
            except Exception:
                log.exception("asking other brokers for leaders failed, trying again after a pause")
            pause_s = self._session_s / _ROUNDS_PER_SESSION
            await asyncio.sleep(max(pause_s, took_s * _PAUSE_PER_ROUND))

    async def _round(self) -> float:
        """Ask other brokers once about all topics, in several requests. Return the total time (s)
        of the requests that were answered."""
        me, brokers = self._broker_id, self._metadata.brokers
        others = [brokers[each] for each in sorted(brokers) if each != me]
        if not others:
            return 0.0
        took_s = 0.0
        first = self._turn % len(others)
        self._turn += 1
        order = others[first:] + others[:first]
        for names in list(_shares(self._metadata)):
            while order:
                began = self._clock.monotonic()
                try:
                    answer = await self._ask(order[0], names)
                except (PybrokerError, OSError) as error:
                    text = "no answer about leaders, asking the next broker broker=%d error=%r"
                    log.debug(text, order[0].id, error)
                    del order[0]
                else:
                    self._apply(order[0].id, answer)
                    took_s += self._clock.monotonic() - began
                    break
        return took_s

    def _apply(self, neighbour: int, answer: MetadataResponse) -> None:
        if answer.controller_id != self._broker_id:
            self._metadata.apply_discovered_controller(answer.controller_id)
        lost: list[TopicPartition] = []
        for topic in answer.topics:
            for each in topic.partitions:
                key = TopicPartition(topic.name or "", each.partition_index)
                if each.leader_id in (NO_LEADER, self._broker_id):
                    continue
                isr = tuple(each.isr_nodes)
                is_same_topic = self._metadata.apply_discovered_leader(
                    key, topic.topic_id, each.leader_id, each.leader_epoch, isr
                )
                if is_same_topic and self._mark_if_replaced(key, topic.topic_id, each.leader_epoch):
                    lost.append(key)
        if lost:
            log.warning(
                "replaced as leader, accepting no more records partitions=%d first=%s"
                " reported_by=broker-%d",
                len(lost),
                lost[0],
                neighbour,
            )

    def _mark_if_replaced(
        self, key: TopicPartition, topic_id: uuid.UUID, leader_epoch: int
    ) -> bool:
        """If the local replica of the topic `topic_id` is the leader in an epoch before
        `leader_epoch`, make the replica accept no more records and return True. Otherwise return
        False."""
        replicas = self._replicas
        partition = replicas.partitions.get(key)
        if (
            partition is None
            or partition.granted is not Authority.ALL
            or partition.topic_id != topic_id
            or partition.leader_epoch >= leader_epoch
        ):
            return False
        partition.superseded(is_replaced=True)
        for waiting in (replicas.produces, replicas.fetches):
            waiting.disturbed(key)
        return True


def _shares(metadata: MetadataView) -> Iterator[list[str]]:
    names: list[str] = []
    partitions = 0
    for topic in metadata.topics.values():
        names.append(topic.name)
        partitions += len(topic.partitions)
        if partitions >= PARTITIONS_PER_REQUEST:
            yield names
            names, partitions = [], 0
    if names:
        yield names


def new_discovery(
    config: BrokerConfig,
    broker_id: int,
    metadata: MetadataView,
    replicas: ReplicaManager,
    clock: Clock,
) -> LeaderDiscovery:
    """Return a LeaderDiscovery that sends its requests over the network, to inter-broker
    listeners."""
    session_s = config.zookeeper_session_timeout_ms / 1000
    ask = partial(
        ask_neighbour,
        broker_id=broker_id,
        listener=config.inter_broker_listener,
        timeout_s=session_s / _ROUNDS_PER_SESSION,
    )
    return LeaderDiscovery(
        broker_id=broker_id,
        metadata=metadata,
        replicas=replicas,
        ask=ask,
        session_s=session_s,
        clock=clock,
    )


async def ask_neighbour(
    neighbour: Broker, names: Sequence[str], *, broker_id: int, listener: str, timeout_s: float
) -> MetadataResponse:
    """Send a Metadata request for the topics `names` to the broker `neighbour`. `broker_id` is this
    broker's id. Raise BrokerError, ClientError or OSError."""
    endpoint = neighbour.endpoint(listener)
    if endpoint is None:
        raise BrokerError(
            ErrorCode.LISTENER_NOT_FOUND,
            f"broker {neighbour.id} has no listener {listener}; set inter.broker.listener.name to a"
            " listener that every broker has",
        )
    connection = await Connection.open(
        endpoint.host, endpoint.port, client_id=f"discovery-{broker_id}", timeout_s=timeout_s
    )
    try:
        topics = [MetadataRequestTopic(name=name) for name in names]
        return await connection.send(
            ApiKey.METADATA,
            MetadataRequest(topics=topics, allow_auto_topic_creation=False),
            MetadataResponse,
            timeout_s=timeout_s,
        )
    finally:
        await connection.close()
