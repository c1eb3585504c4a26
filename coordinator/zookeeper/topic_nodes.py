"""Changes of a topic's nodes on the condition that the topic still exists.

The nodes of a recreated topic may have the same versions as those of the deleted topic. So each
topic has a node `/pybroker/topic_ids/<id>`, created and removed in the same multis as the topic's
own node. Every write to the topic's nodes checks in its multi that the `topic_ids` node exists.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.multi_batcher import multi_under
from pybroker.coordinator.zookeeper.schemas import decode_topic
from pybroker.errors import MalformedNode, MultiFailed, NoNode
from pybroker.model import NO_TOPIC_ID
from pybroker.ports import CheckOp, Coord, CoordOp, OpResult

Topic = tuple[str, uuid.UUID]
"""(name, topic id) of a topic."""
Send = Callable[[Sequence[CheckOp], Sequence[CoordOp]], Awaitable[list[OpResult]]]
"""A function that applies operations if all checks succeed, and returns their results (see
`multi_under`)."""

_ANY_VERSION: Final = -1


async def stored_id(coord: Coord, name: str) -> uuid.UUID:
    """Return the topic's id; NO_TOPIC_ID if the node has none. Raises NoNode if the topic does not
    exist. Raises other CoordErrors if ZooKeeper fails."""
    path = paths.topic(name)
    data, _ = await coord.get(path)
    try:
        return decode_topic(path, data).topic_id or NO_TOPIC_ID
    except MalformedNode:
        return NO_TOPIC_ID


async def multi(
    coord: Coord, topic: Topic | None, ops: Sequence[CoordOp], send: Send | None = None
) -> list[OpResult]:
    """Apply `ops`, all or none, if the topic still exists (`topic` None: without this condition).
    Return the results of `ops`. `send` sends the condition and `ops` to ZooKeeper. The default
    sends both in one separate multi.

    Raises MultiFailed or another CoordError. The index of MultiFailed counts `ops` from 0, and is
    negative if the topic is deleted.
    """
    send = send or partial(multi_under, coord)
    if topic is None:
        return await send((), ops)
    try:
        return await send((CheckOp(paths.topic_id(topic[1]), _ANY_VERSION),), ops)
    except MultiFailed as error:
        if error.index >= 0 or not await _is_stored(coord, topic):
            raise
    # An older version or another tool created the topic, and the controller has not yet created the
    # node for its topic id.
    return await send((), ops)


async def apply(coord: Coord, topic: Topic, *ops: CoordOp) -> list[OpResult]:
    """Apply `ops` as `multi` does, but in place of MultiFailed raise the error of the refused
    operation. If the topic is deleted, raise NoNode."""
    try:
        return await multi(coord, topic, ops)
    except MultiFailed as error:
        raise error.cause from error


async def _is_stored(coord: Coord, topic: Topic) -> bool:
    try:
        return await stored_id(coord, topic[0]) == topic[1]
    except NoNode:
        return False
