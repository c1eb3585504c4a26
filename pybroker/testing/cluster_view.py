"""Queries to a test's cluster. The brokers answer Metadata requests. The controller and the
partition states are read from ZooKeeper. All queries run in one event loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.clock import SystemClock
from pybroker.coordinator.controller.reading import read_states, read_topic_names, read_topics
from pybroker.coordinator.zookeeper.paths import CONTROLLER, partition_state
from pybroker.coordinator.zookeeper.schemas import decode_controller, decode_state
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.errors import CoordError, MalformedNode, NoNode, StartupError
from pybroker.model import PartitionState, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_ANSWER_S: Final = 2.0
_CONNECT_S: Final = 10.0
_CLIENT_ID: Final = "pybroker-testing"

UNREACHABLE: Final = (CoordError, StartupError)
"""The exceptions that `ZooKeeperView` raises while ZooKeeper does not answer."""


async def metadata(host: str, port: int, topic: str | None = None) -> MetadataResponse | None:
    """Request the metadata of one topic from a broker and return the response. If `topic` is None,
    request all topics. Return None if the broker does not answer."""
    topics = None if topic is None else [MetadataRequestTopic(name=topic)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    try:
        connection = await Connection.open(host, port, client_id=_CLIENT_ID, timeout_s=_ANSWER_S)
        try:
            return await connection.send(
                ApiKey.METADATA, request, MetadataResponse, timeout_s=_ANSWER_S
            )
        finally:
            await connection.close()
    except ClientError:
        return None


def lagging(answer: MetadataResponse) -> list[str]:
    """Return the names of the partitions in a Metadata response that have no leader, or have a
    replica outside the ISR."""
    found = []
    for topic in answer.topics:
        if topic.error_code:
            found.append(f"{topic.name} (error {topic.error_code})")
        for each in topic.partitions:
            if each.leader_id < 0 or set(each.isr_nodes) != set(each.replica_nodes):
                found.append(f"{topic.name}-{each.partition_index}")
    return found


class ZooKeeperView:
    """The test's own ZooKeeper session, opened by the first query."""

    def __init__(self, connect: Callable[[], str]) -> None:
        self._connect = connect
        self._coord: KazooCoord | None = None

    async def close(self) -> None:
        """Close the ZooKeeper session. Idempotent."""
        coord, self._coord = self._coord, None
        if coord is not None:
            await coord.close()

    async def controller(self) -> int | None:
        """Return the broker id of the controller, or None if there is no controller. Raises one of
        the exceptions in UNREACHABLE."""
        coord = await self._session()
        with suppress(NoNode, MalformedNode):
            return decode_controller(CONTROLLER, (await coord.get(CONTROLLER))[0])
        return None

    async def state(self, key: TopicPartition) -> PartitionState | None:
        """Return the partition's state in ZooKeeper (leader, epochs, ISR), or None if the partition
        does not exist. Raises one of the exceptions in UNREACHABLE."""
        coord = await self._session()
        path = partition_state(key)
        with suppress(NoNode, MalformedNode):
            return decode_state(path, (await coord.get(path))[0])
        return None

    async def lagging(self, topic: str | None) -> list[str]:
        """Return the names of the partitions that have no leader, or have a replica outside the
        ISR. `topic` None means all topics. Raises one of the exceptions in UNREACHABLE."""
        coord = await self._session()
        names = await read_topic_names(coord) if topic is None else {topic}
        topics, _ = await read_topics(coord, names)
        if topic is not None and topic not in topics:
            return [f"{topic} (does not exist)"]
        replicas = {
            TopicPartition(name, number): set(ids)
            for name, node in topics.items()
            for number, ids in node.assignment.replicas.items()
        }
        states, _ = await read_states(coord, replicas)
        return sorted(
            str(key)
            for key, ids in replicas.items()
            if key not in states
            or states[key].state.leader < 0
            or set(states[key].state.isr) != ids
        )

    async def _session(self) -> KazooCoord:
        if self._coord is None:
            coord = KazooCoord(self._connect(), clock=SystemClock())
            await coord.start(_CONNECT_S)
            self._coord = coord
        return self._coord
