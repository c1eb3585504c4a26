"""Finds out from ZooKeeper which partitions were deleted. A broker's metadata does not suffice: it
may lack partitions that were just created."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_topic
from pybroker.errors import NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord


async def deleted_partitions(
    coord: Coord, partitions: Collection[TopicPartition]
) -> Collection[TopicPartition]:
    """Return those of the partitions that do not exist in ZooKeeper, or whose topic is being
    deleted. Raises CoordError, MalformedNode."""
    await coord.sync(paths.TOPICS)
    deleting = set(await coord.children(paths.DELETE_TOPICS))
    gone: set[TopicPartition] = set()
    for name, keys in groupby(sorted(partitions), lambda key: key.topic):
        path = paths.topic(name)
        try:
            data, _ = await coord.get(path)
        except NoNode:
            gone.update(keys)
            continue
        existing = decode_topic(path, data).replicas
        is_deleted = name in deleting
        gone.update(key for key in keys if is_deleted or key.partition not in existing)
    return gone
