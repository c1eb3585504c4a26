"""Nodes of a topic are changed on the condition that the topic still exists.

A node's version does not say that: the nodes of a recreated topic have the versions of those
before. So each topic has a node `/pybroker/topic_ids/<id>` that is created and removed in the multi
that creates and removes the topic, and a write to the topic's nodes checks it in its multi. A write
for a deleted topic is refused, also when it arrives late, after its reply was given up.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import decode_topic
from pybroker.errors import MalformedNode, MultiFailed
from pybroker.model import NO_TOPIC_ID
from pybroker.ports import CheckOp, Coord, CoordOp, OpResult

Topic = tuple[str, uuid.UUID]
"""Its name and its id."""

_ANY_VERSION = -1


async def stored_id(coord: Coord, name: str) -> uuid.UUID:
    """NO_TOPIC_ID of a node that does not say it. Raises NoNode if there is no such topic, or
    another CoordError."""
    path = paths.topic(name)
    data, _ = await coord.get(path)
    try:
        return decode_topic(path, data).topic_id or NO_TOPIC_ID
    except MalformedNode:
        return NO_TOPIC_ID


async def multi(coord: Coord, topics: Iterable[Topic], ops: Sequence[CoordOp]) -> list[OpResult]:
    """Apply `ops`, all or none, if these topics exist. The results of `ops` in this order.

    Raises MultiFailed: its index is that of the operation in `ops`, and below 0 if one of the
    topics is gone. Or another CoordError; after ConnectionLoss `ops` may be applied, for these
    topics only.
    """
    known = dict.fromkeys(topics)
    checks = [CheckOp(paths.topic_id(topic_id), _ANY_VERSION) for _, topic_id in known]
    try:
        return (await coord.multi([*checks, *ops]))[len(checks) :]
    except MultiFailed as error:
        refused = MultiFailed(error.index - len(checks), error.cause)
        if refused.index >= 0 or len(known) > 1:
            raise refused from error
    ((name, topic_id),) = known
    if await stored_id(coord, name) != topic_id:
        raise refused
    # An older version or another tool created the topic, and no controller has looked at it yet.
    return await coord.multi(ops)


async def apply(coord: Coord, topic: Topic, *ops: CoordOp) -> list[OpResult]:
    """As `multi`, of one topic. Raises what an operation was refused for, NoNode also if the topic
    is gone."""
    try:
        return await multi(coord, [topic], ops)
    except MultiFailed as error:
        raise error.cause from error
