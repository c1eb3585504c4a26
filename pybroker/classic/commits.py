"""Offsets in the classic nodes: /consumers/<group>/offsets/<topic>/<partition>, decimal text.

A write is one multi with checks that the owner node and the topic are still there, sent in the
session that claimed the partition. So a member whose session has expired writes nothing, and a
deleted topic gets no offset back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pybroker.classic.claims import Claim
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import CoordError, MultiFailed, NodeExists, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, SetOp

_ATTEMPTS_MAX: Final = 10


class Offsets:
    """The committed offsets of one group, for the partitions that this member owns."""

    def __init__(self, coord: Coord, group_id: str, *, era: Callable[[], int]) -> None:
        """`era` counts the sessions that have ended."""
        self._coord = coord
        self._group_id = group_id
        self._era = era
        self._writing = asyncio.Lock()
        """Taken for a whole commit, so that an older offset never lands on a newer one. The only
        lock of the package; nothing else is waited for under it than ZooKeeper."""

    async def read(self, partition: TopicPartition) -> int | None:
        """None if there is none. Raises CoordError, MalformedNode."""
        path = paths.offset(self._group_id, partition)
        try:
            data, _ = await self._coord.get(path)
        except NoNode:
            return None
        offset = schemas.decode_number(path, data)
        return None if offset < 0 else offset

    async def write(
        self, claims: Iterable[Claim], exact: Mapping[TopicPartition, int] | None = None
    ) -> list[Claim]:
        """Store how far these were consumed, or what `exact` says, where that is news. Gives those
        that turned out not to be ours any more. Raises CoordError; the others were stored then, as
        far as they could be."""
        async with self._writing:
            outcomes = await asyncio.gather(
                *(self._write_one(claim, exact) for claim in claims), return_exceptions=True
            )
        lost = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                lost.append(outcome)
        return lost

    async def _write_one(
        self, claim: Claim, exact: Mapping[TopicPartition, int] | None
    ) -> Claim | None:
        """None when it is stored, else the claim, which is not ours."""
        key = claim.topic_partition
        offset = claim.consumed if exact is None else exact[key]
        if offset is None or offset == claim.stored:
            return None
        path = paths.offset(self._group_id, key)
        data = schemas.encode_number(offset)
        exists = claim.stored is not None
        for _ in range(_ATTEMPTS_MAX):
            if claim.released or claim.era != self._era():
                return claim
            ops: list[CoordOp] = [
                CheckOp(paths.group_owner(self._group_id, key), -1),
                CheckOp(paths.topic(key.topic), -1),
                SetOp(path, data) if exists else CreateOp(path, data),
            ]
            try:
                await self._coord.multi(ops)
            except MultiFailed as error:
                match error.index, error.cause:
                    case 0 | 1, NoNode():
                        return claim
                    case 2, NodeExists():
                        exists = True
                    case 2, NoNode():
                        # Somebody removed the offset: with the topic, or alone.
                        topic = await self._coord.exists(paths.topic(key.topic))
                        if topic is None or topic.czxid != claim.topic_czxid:
                            return claim
                        await ensure(self._coord, paths.parent(path))
                        exists = False
                    case _:
                        raise
            else:
                claim.stored = offset
                return None
        raise CoordError(f"{path} could not be written: it comes and goes")
