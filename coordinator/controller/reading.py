"""Reads brokers, topics and partition states from ZooKeeper. A malformed node must not stop the
controller."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.controller.partitions import StateNode
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import MalformedNode, NoNode
from pybroker.model import Broker, TopicPartition, topic_name_fault
from pybroker.ports import Coord, Watch

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class TopicNode:
    """The content of the node /brokers/topics/<topic>, and its version."""

    name: str
    assignment: TopicAssignment
    version: int


async def read_each(read: Callable[[K], Awaitable[V | None]], keys: Iterable[K]) -> dict[K, V]:
    """Return key -> `read(key)`, without the keys whose read returns None."""
    wanted = list(keys)
    values = await bounded_gather(read, wanted)
    return {key: each for key, each in zip(wanted, values, strict=True) if each is not None}


async def read_brokers(coord: Coord, watch: Watch | None = None) -> dict[int, Broker]:
    """Return the registered brokers by id. `watch` fires at any change of the registrations. A
    broker's epoch is the czxid of its registration (KIP-380)."""

    async def one(name: str) -> Broker | None:
        path = f"{paths.BROKER_IDS}/{name}"
        broker_id = paths.parse_broker(path)
        try:
            data, stat = await coord.get(path, watch)
            endpoints, rack = schemas.decode_broker(path, data)
        except NoNode:
            return None
        except MalformedNode as error:
            log.error("broker ignored reason=%s", error)
            return None
        if broker_id is None:
            log.error("broker ignored node=%s reason=not_a_number", path)
            return None
        return Broker(broker_id, endpoints, rack, epoch=stat.czxid)

    names = await coord.children(paths.BROKER_IDS, watch)
    brokers = await read_each(one, names)
    return {broker.id: broker for broker in brokers.values()}


async def read_topic_names(coord: Coord, watch: Watch | None = None) -> set[str]:
    """Return the names of the topics that have a node. Illegal topic names are ignored."""
    faults = {
        name: topic_name_fault(name)
        for name in await _names(coord, paths.TOPICS, paths.parse_topic, watch)
    }
    for name, fault in sorted(faults.items()):
        if fault is not None:
            log.error("topic ignored node=%s/%.100s reason=%s", paths.TOPICS, name, fault)
    return {name for name, fault in faults.items() if fault is None}


async def read_deletion_requests(coord: Coord, watch: Watch | None = None) -> set[str]:
    return await _names(coord, paths.DELETE_TOPICS, paths.parse_delete_topic, watch)


async def read_topics(
    coord: Coord, names: Iterable[str], watch: Watch | None = None
) -> tuple[dict[str, TopicNode], set[str]]:
    """Return (name -> topic node, names of the topics whose node cannot be parsed). `watch` fires
    when one of these nodes changes."""
    damaged: set[str] = set()

    async def one(name: str) -> TopicNode | None:
        path = paths.topic(name)
        try:
            data, stat = await coord.get(path, watch)
            return TopicNode(name, schemas.decode_topic(path, data), stat.version)
        except NoNode:
            return None
        except MalformedNode as error:
            log.error("topic ignored reason=%s", error)
            damaged.add(name)
            return None

    return await read_each(one, sorted(names)), damaged


async def read_states(
    coord: Coord, topic_partitions: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, StateNode], set[TopicPartition]]:
    """Return (partition -> state node, partitions whose state node cannot be parsed). The caller
    must not overwrite a state node that cannot be parsed."""
    damaged: set[TopicPartition] = set()

    async def one(topic_partition: TopicPartition) -> StateNode | None:
        path = paths.partition_state(topic_partition)
        try:
            data, stat = await coord.get(path)
            state = schemas.decode_state(path, data)
        except NoNode:
            return None
        except MalformedNode as error:
            log.error("partition ignored reason=%s", error)
            damaged.add(topic_partition)
            return None
        return StateNode(state, stat.version, stat.mzxid, data)

    return await read_each(one, topic_partitions), damaged


async def _names(
    coord: Coord, path: str, parse: Callable[[str], str | None], watch: Watch | None
) -> set[str]:
    found = (parse(f"{path}/{child}") for child in await coord.children(path, watch))
    return {name for name in found if name is not None}
