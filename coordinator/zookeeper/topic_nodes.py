"""Nodes of a topic are changed on the condition that the topic still exists.

A node's version does not say that: the nodes of a recreated topic have the versions of those
before. So each topic has a node `/pybroker/topic_ids/<id>` that is created and removed in the multi
that creates and removes the topic, and a write to the topic's nodes checks it in its multi. A write
for a deleted topic is refused, also when it arrives late, after its reply was given up.
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
"""Its name and its id."""
Send = Callable[[Sequence[CheckOp], Sequence[CoordOp]], Awaitable[list[OpResult]]]
"""Sends operations under checks, as `multi_under`."""

_ANY_VERSION: Final = -1


async def stored_id(coord: Coord, name: str) -> uuid.UUID:
    """Return the topic's id, NO_TOPIC_ID if its node does not say it. Raises NoNode if there is no
    such topic, or another CoordError."""
    path = paths.topic(name)
    data, _ = await coord.get(path)
    try:
        return decode_topic(path, data).topic_id or NO_TOPIC_ID
    except MalformedNode:
        return NO_TOPIC_ID


async def multi(
    coord: Coord, topic: Topic | None, ops: Sequence[CoordOp], send: Send | None = None
) -> list[OpResult]:
    """Apply `ops`, all or none, if the topic exists; None: they belong to no topic. Return their
    results in this order. `send` sends them, by default in a multi of their own.

    Raises MultiFailed: its index is that of the operation in `ops`, and below 0 if the topic is
    gone. Or another CoordError; after ConnectionLoss `ops` may be applied, for this topic only.
    """
    send = send or partial(multi_under, coord)
    if topic is None:
        return await send((), ops)
    try:
        return await send((CheckOp(paths.topic_id(topic[1]), _ANY_VERSION),), ops)
    except MultiFailed as error:
        if error.index >= 0 or not await _is_stored(coord, topic):
            raise
    # An older version or another tool created the topic, and no controller has looked at it yet.
    return await send((), ops)


async def apply(coord: Coord, topic: Topic, *ops: CoordOp) -> list[OpResult]:
    """As `multi`, but raises the error of the operation that was refused; NoNode if the topic is
    gone."""
    try:
        return await multi(coord, topic, ops)
    except MultiFailed as error:
        raise error.cause from error


async def _is_stored(coord: Coord, topic: Topic) -> bool:
    try:
        return await stored_id(coord, topic[0]) == topic[1]
    except NoNode:
        return False
