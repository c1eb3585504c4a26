"""Creates and reads topics, and requests their deletion, in ZooKeeper. Any broker can do this, not
only the controller.

The functions write the same nodes as Kafka's own tools. Like these tools, they do not check the
controller epoch.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pybroker.coordinator.controller.placement import assign_replicas
from pybroker.coordinator.zookeeper import paths, schemas, topic_nodes
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import (
    BrokerError,
    ConnectionLoss,
    ErrorCode,
    MultiFailed,
    NodeExists,
    NoNode,
    RequestTooLarge,
)
from pybroker.model import (
    NO_TOPIC_ID,
    Broker,
    TopicDescription,
    collides,
    encode_uuid,
    topic_name_fault,
)
from pybroker.ports import Coord, CoordOp, CreateOp, Rng, SetOp

log = logging.getLogger(__name__)

PARTITIONS_PER_TOPIC_MAX: Final = 10_000
"""The maximum number of partitions that Kafka 3.9 creates in one request. An assignment of that
size fits into a node."""
ATTEMPTS_MAX: Final = 3

Assignment = Mapping[int, Sequence[int]]
"""Partition -> broker ids, the preferred replica first."""


def random_topic_id(rng: Rng) -> uuid.UUID:
    """Return a random topic id whose text does not begin with a dash, as in Kafka."""
    while True:
        topic_id = uuid.UUID(bytes=rng.randbytes(16), version=4)
        if not encode_uuid(topic_id).startswith("-"):
            return topic_id


def plan_assignment(
    brokers: Sequence[Broker], partitions: int, replication_factor: int, rng: Rng
) -> dict[int, tuple[int, ...]]:
    """Return partition -> replicas for a new topic on the live brokers. Raises BrokerError:
    INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR."""
    if partitions < 1:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
        )
    check_partition_count(partitions)
    if replication_factor < 1:
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."
        )
    check_factor(replication_factor, brokers)
    return assign_replicas(brokers, partitions, replication_factor, rng)


def check_factor(replication_factor: int, brokers: Sequence[Broker]) -> None:
    """Raise BrokerError INVALID_REPLICATION_FACTOR if the factor exceeds the number of brokers."""
    if replication_factor > len(brokers):
        raise BrokerError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers:"
            f" {len(brokers)}.",
        )


def check_partition_count(partitions: int) -> None:
    """Raise BrokerError INVALID_PARTITIONS for more than PARTITIONS_PER_TOPIC_MAX partitions."""
    if partitions > PARTITIONS_PER_TOPIC_MAX:
        raise BrokerError(
            ErrorCode.INVALID_PARTITIONS,
            f"a topic with {partitions} partitions is too large: the maximum is"
            f" {PARTITIONS_PER_TOPIC_MAX}",
        )


def check_assignment(assignment: Assignment, live: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Check a client's replica assignment for a new topic, and return it in order of the
    partitions. Raises BrokerError: INVALID_REPLICA_ASSIGNMENT, INVALID_PARTITIONS."""
    fault = _assignment_fault(assignment, live)
    if fault is not None:
        raise BrokerError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, fault)
    check_partition_count(len(assignment))
    return {partition: tuple(assignment[partition]) for partition in sorted(assignment)}


def check_new_name(name: str, existing: Collection[str]) -> None:
    """Raise BrokerError TOPIC_ALREADY_EXISTS if the topic exists. Raise INVALID_TOPIC_EXCEPTION if
    the name is invalid, or differs from the name of an existing topic only in '.' and '_'."""
    fault = topic_name_fault(name)
    if fault is not None:
        raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")
    if name in existing:
        raise already_exists(name)
    if "." in name or "_" in name:
        alike = sorted(other for other in existing if collides(name, other))
        if alike:
            raise BrokerError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topics: {', '.join(alike)}",
            )


async def check_new_topic(coord: Coord, name: str) -> None:
    """Check the name of a new topic against the existing topics. Raises the errors of
    `check_new_name`, and CoordError."""
    check_new_name(name, await topic_names(coord))


async def create_topic(
    coord: Coord,
    name: str,
    assignment: Assignment,
    configs: Mapping[str, str],
    topic_id: uuid.UUID,
) -> None:
    """Store a new topic and its configuration in one multi. The caller has checked `assignment` and
    `configs`.

    Raises CoordError, or BrokerError with one of these codes: INVALID_TOPIC_EXCEPTION,
    TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS (the multi is too large), UNKNOWN_SERVER_ERROR (other
    clients kept changing the configuration node).
    """
    await check_new_topic(coord, name)
    replicas = {partition: tuple(brokers) for partition, brokers in assignment.items()}
    topic = CreateOp(paths.topic(name), schemas.encode_topic(TopicAssignment(replicas, topic_id)))
    identity = CreateOp(paths.topic_id(topic_id))
    config_path, config = paths.topic_config(name), schemas.encode_config(configs)
    for attempt in range(ATTEMPTS_MAX):
        leftover = await coord.exists(config_path) is not None
        settings: CoordOp = (
            SetOp(config_path, config) if leftover else CreateOp(config_path, config)
        )
        try:
            await coord.multi([identity, topic, settings])
        except MultiFailed as error:
            if error.index == 2:
                continue
            if not isinstance(error.cause, NodeExists):
                raise error.cause from error
            if error.index == 0:
                return  # an earlier attempt was applied and its reply lost
            raise already_exists(name) from error
        except ConnectionLoss:
            if attempt == ATTEMPTS_MAX - 1:
                raise
            await coord.sync(paths.TOPICS)
        except RequestTooLarge as error:
            raise BrokerError(ErrorCode.INVALID_PARTITIONS, str(error)) from error
        else:
            log.info("topic created topic=%s partitions=%d", name, len(replicas))
            return
    raise BrokerError(
        ErrorCode.UNKNOWN_SERVER_ERROR,
        f"the node {config_path} could not be written in {ATTEMPTS_MAX} attempts, because other"
        " clients kept changing it; try again",
    )


async def request_deletion(coord: Coord, name: str) -> None:
    """Ask the controller to delete the topic. Do nothing if the deletion is already requested. The
    caller must first check delete.topic.enable. Raises BrokerError UNKNOWN_TOPIC_OR_PARTITION if
    the topic is missing. Raises CoordError."""
    if topic_name_fault(name) is not None or await coord.exists(paths.topic(name)) is None:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    try:
        await coord.create(paths.delete_topic(name))
    except NodeExists:
        log.debug("topic deletion already requested topic=%s", name)


async def topic_names(coord: Coord) -> set[str]:
    """Return the names of all topics, including those that are being deleted."""
    children = await coord.children(paths.TOPICS)
    return {paths.decode_name(child) for child in children}


async def request_deletion_of(coord: Coord, name: str, topic_id: uuid.UUID) -> None:
    """Ask the controller to delete the topic `name`. Raises CoordError. Raises BrokerError
    UNKNOWN_TOPIC_ID if no topic `name` has the id `topic_id`."""
    try:
        await topic_nodes.apply(coord, (name, topic_id), CreateOp(paths.delete_topic(name)))
    except NoNode as error:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the topic id {topic_id}"
        ) from error
    except NodeExists:
        log.debug("topic deletion already requested topic=%s", name)


async def read_topic(coord: Coord, name: str) -> TopicDescription:
    """Return the topic, with NO_TOPIC_ID if the topic's node has no topic id. Raises BrokerError
    UNKNOWN_TOPIC_OR_PARTITION, MalformedNode, CoordError."""
    path = paths.topic(name)
    try:
        data, _ = await coord.get(path)
    except NoNode as error:
        raise BrokerError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        ) from error
    found = schemas.decode_topic(path, data)
    return TopicDescription(name, found.topic_id or NO_TOPIC_ID, dict(found.replicas))


async def topic_configs(coord: Coord, name: str) -> dict[str, str]:
    """Return the topic's own configuration; empty without a configuration node. Raises
    MalformedNode, CoordError."""
    path = paths.topic_config(name)
    try:
        data, _ = await coord.get(path)
    except NoNode:
        return {}
    return schemas.decode_config(path, data)


def already_exists(name: str) -> BrokerError:
    return BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def _assignment_fault(assignment: Assignment, live: Collection[int]) -> str | None:
    if not assignment:
        return "The assignment names no partition."
    if sorted(assignment) != list(range(len(assignment))):
        return "Partitions should be a consecutive 0-based integer sequence."
    factor = len(assignment[0])
    for partition, replicas in sorted(assignment.items()):
        if not replicas:
            return f"Partition {partition} has no replica."
        if len(set(replicas)) != len(replicas):
            return f"Partition {partition} names a broker twice: {list(replicas)}."
        if len(replicas) != factor:
            return (
                f"Partition {partition} has {len(replicas)} replicas, partition 0 has {factor};"
                " all must have the same number."
            )
        unknown = sorted(set(replicas) - set(live))
        if unknown:
            return f"Partition {partition} names brokers that are not alive: {unknown}."
    return None
