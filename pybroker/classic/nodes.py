"""The ZooKeeper nodes of a group below /consumers/<group>: the members, and the owners of
partitions. Both are ephemeral."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pybroker.classic.assignment import Streams, ThreadId
from pybroker.classic.errors import ConsumerIdTaken, GroupIsCoordinated
from pybroker.classic.subscription import Subscription, as_registered
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.errors import MultiFailed, NodeExists, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import Coord, CreateOp, Watch

CLAIMS_OF_A_MULTI_MAX: Final = 500
_ATTEMPTS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic: its partition numbers, ascending, and the czxid of its node. A recreated topic has
    another czxid."""

    partitions: tuple[int, ...]
    czxid: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """The members of a group, and the subscribed topics that exist. `has_brokers` says whether a
    broker is registered."""

    streams: Streams
    topics: Mapping[str, TopicFacts]
    has_brokers: bool


class GroupNodes:
    """Reads the ZooKeeper nodes of one group. Creates and removes the nodes of one member of the
    group. All methods may raise CoordError and MalformedNode."""

    def __init__(self, coord: Coord, group_id: str, *, exclude_internal: bool) -> None:
        self._coord = coord
        self._group_id = group_id
        self._exclude_internal = exclude_internal

    # ---- members

    async def register(self, consumer_id: str, data: bytes) -> None:
        """Register as a member until the end of the session. Raises ConsumerIdTaken."""
        path = paths.group_member(self._group_id, consumer_id)
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._coord.create(path, data, ephemeral=True)
            except NoNode:
                await ensure(self._coord, paths.parent(path))
            except NodeExists:
                stat = await self._coord.exists(path)
                if stat is not None and stat.ephemeral_owner == self._coord.session_id:
                    return
                if stat is not None:
                    break
            else:
                return
        raise ConsumerIdTaken(
            f"group {self._group_id} already has a consumer with the id {consumer_id}: stop that"
            " consumer, set another consumer.id, or wait until its session has expired"
        )

    async def unregister(self, consumer_id: str) -> None:
        await self._delete_own(paths.group_member(self._group_id, consumer_id))

    async def look(self, consumer_id: str, watch: Watch, *, all_topics: bool) -> GroupView:
        """Return the group's members and topics, and set `watch` for their changes. Unless
        `all_topics`, return only topics to which this member subscribes. Raises
        GroupIsCoordinated."""
        members = await self._members(watch)
        names: list[str] = []
        if any(member.is_pattern for member in members.values()):
            names = await self._coord.children(paths.TOPICS, watch)
            names = [paths.decode_name(name) for name in names]
        streams = {
            name: member.streams(names, exclude_internal=self._exclude_internal)
            for name, member in members.items()
        }
        wanted = chain(*streams.values()) if all_topics else streams.get(consumer_id, {})
        asked = sorted(set(wanted))
        facts = await asyncio.gather(*(self._topic(topic, watch) for topic in asked))
        return GroupView(
            streams=streams,
            topics={
                topic: found for topic, found in zip(asked, facts, strict=True) if found is not None
            },
            has_brokers=bool(await self._coord.children(paths.BROKER_IDS))
            or bool(await self._coord.children(paths.BROKER_IDS, watch)),
        )

    async def broker_addresses(self) -> list[str]:
        """Return host:port of each PLAINTEXT listener of each live broker."""
        names = await self._coord.children(paths.BROKER_IDS)
        nodes = await asyncio.gather(*(self._data(f"{paths.BROKER_IDS}/{name}") for name in names))
        found = []
        for name, data in zip(names, nodes, strict=True):
            if data is not None:
                endpoints, _ = schemas.decode_broker(f"{paths.BROKER_IDS}/{name}", data)
                found += [
                    f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}"
                    for each in endpoints
                    if each.security_protocol == "PLAINTEXT"
                ]
        return found

    # ---- owners

    async def create_owners(self, wanted: Mapping[TopicPartition, ThreadId]) -> str | None:
        """Create the owner nodes of these partitions and return None. If one of these nodes exists
        already, create none and return the path of that node."""
        for topic in sorted({key.topic for key in wanted}):
            await ensure(self._coord, paths.group_owners(self._group_id, topic))
        done: list[TopicPartition] = []
        rows = list(wanted.items())
        for start in range(0, len(rows), CLAIMS_OF_A_MULTI_MAX):
            part = rows[start : start + CLAIMS_OF_A_MULTI_MAX]
            ops = [
                CreateOp(
                    paths.group_owner(self._group_id, key), str(thread).encode(), ephemeral=True
                )
                for key, thread in part
            ]
            try:
                await self._coord.multi(ops)
            except MultiFailed as error:
                if not isinstance(error.cause, NodeExists):
                    raise
                await self.release(done)
                return ops[error.index].path
            done += [key for key, _ in part]
        return None

    async def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove this member's owner nodes of these partitions."""
        owners = [paths.group_owner(self._group_id, key) for key in partitions]
        await asyncio.gather(*(self._delete_own(path) for path in owners))

    # ---- inside

    async def _members(self, watch: Watch) -> dict[str, Subscription]:
        parent = paths.group_members(self._group_id)
        names = await self._coord.children(parent, watch)
        nodes = await asyncio.gather(*(self._data(f"{parent}/{name}") for name in names))
        found = {}
        for name, data in zip(names, nodes, strict=True):
            if data is None:
                continue  # the member has left since; the watch fires
            if schemas.is_coordinated_member(f"{parent}/{name}", data):
                raise GroupIsCoordinated(self._group_id, paths.decode_name(name))
            registration = schemas.decode_consumer(f"{parent}/{name}", data)
            found[paths.decode_name(name)] = as_registered(registration)
        return found

    async def _topic(self, topic: str, watch: Watch) -> TopicFacts | None:
        """Return the topic, or None if it does not exist. Set `watch` for its changes or its
        creation."""
        path = paths.topic(topic)
        while True:
            try:
                data, stat = await self._coord.get(path, watch)
            except NoNode:
                if await self._coord.exists(path, watch) is None:
                    return None
                continue
            assignment = schemas.decode_topic(path, data)
            return TopicFacts(tuple(sorted(assignment.replicas)), stat.czxid)

    async def _data(self, path: str) -> bytes | None:
        try:
            return (await self._coord.get(path))[0]
        except NoNode:
            return None

    async def _delete_own(self, path: str) -> None:
        """Remove the node if this session created it."""
        stat = await self._coord.exists(path)
        if stat is not None and stat.ephemeral_owner == self._coord.session_id:
            try:
                await self._coord.delete(path)
            except NoNode:
                return
