"""Writes the members of the group coordinator's groups to ZooKeeper, in the format of Kafka 0.8
consumers. No response to a client waits until the members are written.

A group must not have both Kafka 0.8 consumers and members that joined through the coordinator. So
before the first member joins, the coordinator creates a placeholder node, which Kafka 0.8 consumers
see, and then looks for Kafka 0.8 consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.groups.calls import GroupView
from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.groups.group_nodes import (
    children_of,
    classic_members,
    remove_empty_topics,
)
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.runtime.shard import ShardContext, Timer
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.multi_batcher import Multis
from pybroker.coordinator.zookeeper.schemas import (
    ConsumerRegistration,
    decode_consumer,
    encode_consumer,
)
from pybroker.errors import (
    BrokerError,
    CoordError,
    ErrorCode,
    MalformedInput,
    MalformedNode,
    NoNode,
)
from pybroker.model import TopicPartition
from pybroker.ports import Coord
from pybroker.wire.consumer_protocol import decode_assignment, decode_subscription

log = logging.getLogger(__name__)

PLACEHOLDER_ID: Final = "pybroker-coordinator"
"""The member id of the placeholder node. This ephemeral node shows consumers of Kafka 0.8 that the
first coordinated members of the group are joining."""
PLACEHOLDER_KEPT_S: Final = 600.0
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
_CONSUMER: Final = "consumer"
_THREAD: Final = "-0"
"""The suffix of an owner: in the nodes of Kafka 0.8 the owner of a partition is a thread of a
consumer."""


@dataclass(frozen=True, slots=True)
class WantedNodes:
    """The nodes that a group shall have in ZooKeeper. `is_whole`: False during a rebalance, when
    only the member ids are known. `is_deleted`: True if the group is gone, so its empty parent
    nodes are removed too."""

    members: Mapping[str, tuple[str, ...]]
    """Member id -> topics."""
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)
    is_whole: bool = True
    is_deleted: bool = False


def wanted_nodes_of(group: GroupView) -> WantedNodes:
    """Return the ZooKeeper nodes that the group shall have. They contain owners and the members'
    topics only if the group is Stable and has the protocol type `consumer`."""
    members: dict[str, tuple[str, ...]] = {}
    owners: dict[TopicPartition, str] = {}
    is_consumers = group.protocol_type == _CONSUMER
    for member in group.members:
        members[member.member_id] = ()
        if group.state is not GroupState.STABLE or not is_consumers:
            continue
        with suppress(MalformedInput):
            members[member.member_id] = tuple(decode_subscription(member.metadata).topics)
        with suppress(MalformedInput):
            if member.assignment:
                for key in decode_assignment(member.assignment).partitions:
                    owners[key] = f"{member.member_id}{_THREAD}"
    is_whole = group.state in (GroupState.STABLE, GroupState.EMPTY, GroupState.DEAD)
    return WantedNodes(members, owners, is_whole, is_deleted=group.state is GroupState.DEAD)


class GroupMirror:
    """Writes members and assignments to ZooKeeper, for the groups in one partition of
    `__consumer_offsets`. Owns one task while nodes have to be written; `end` ends the task."""

    def __init__(
        self,
        shard: ShardContext,
        coord: Coord,
        *,
        timeout_s: float,
        joint: Multis | None = None,
    ) -> None:
        self._shard = shard
        self._coord = coord
        self._timeout_s = timeout_s
        self._writes = FencedWrites(coord, shard, timeout_s=timeout_s, joint=joint)
        self._wanted: dict[str, WantedNodes] = {}
        self._populated: set[str] = set()
        """The groups that had members at their last change."""
        self._placeholders: set[str] = set()
        """The groups with a placeholder node: their first members may be joining."""
        self._asking: dict[str, asyncio.Task[ErrorCode]] = {}
        """Group -> the task that looks for consumers of Kafka 0.8 for `may_begin`."""
        self._beginning: Counter[str] = Counter()
        """Group -> the number of `may_begin` callers that wait for the task in `_asking`. A caller
        becomes a member in the same step of the event loop in which it gets the answer."""
        self._task = BackgroundTask("group-mirror")
        self._timer: Timer | None = None
        self._retry_s = RETRY_S
        self._has_ended = False

    # ---- the membership

    def members_changed(self, group: GroupView) -> None:
        wanted_nodes = wanted_nodes_of(group)
        no_member_joins = wanted_nodes.is_deleted and not self._beginning[group.group_id]
        if no_member_joins or (wanted_nodes.members and wanted_nodes.is_whole):
            self._placeholders.discard(group.group_id)
        if wanted_nodes.members:
            self._populated.add(group.group_id)
        else:
            self._populated.discard(group.group_id)
        self._schedule(group.group_id, wanted_nodes)

    async def may_begin(self, group_id: str) -> ErrorCode:
        """Return NONE if a first member may join (see `Membership.may_begin`). This broker creates
        a placeholder node, then searches for Kafka 0.8 consumers. Such a consumer registers, then
        looks for members. So the broker sees the consumer, or the consumer sees the placeholder.
        Raises BrokerError."""
        asking = self._asking.get(group_id)
        if asking is None:
            asking = self._asking[group_id] = asyncio.ensure_future(self._ask(group_id))
            asking.add_done_callback(lambda done: self._asked(group_id, done))
        self._beginning[group_id] += 1
        try:
            await asyncio.wait([asking])
        finally:
            self._beginning[group_id] -= 1
            if not self._beginning[group_id]:
                del self._beginning[group_id]
        if asking.cancelled():
            raise BrokerError(
                ErrorCode.NOT_COORDINATOR,
                f"the group {group_id} has another coordinator now",
            )
        return asking.result()

    def _asked(self, group_id: str, asking: asyncio.Task[ErrorCode]) -> None:
        del self._asking[group_id]
        if not asking.cancelled():
            asking.exception()  # retrieved here, because all callers may be cancelled

    async def _ask(self, group_id: str) -> ErrorCode:
        self._placeholders.add(group_id)
        try:
            await self._create_placeholder(group_id)
            async with asyncio.timeout(self._timeout_s):
                members = await classic_members(self._coord, group_id)
        except (CoordError, TimeoutError) as error:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "the coordinator could not read from ZooKeeper whether the group"
                f" {group_id} has consumers of Kafka 0.8; retry ({error!r})",
            ) from error
        if not members:
            self._shard.call_later(PLACEHOLDER_KEPT_S, lambda: self._drop_placeholder(group_id))
            return ErrorCode.NONE
        log.info("group is classic group=%s members=%d", group_id, len(members))
        self._drop_placeholder(group_id)
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def end(self) -> None:
        """Stop writing nodes. Idempotent."""
        self._has_ended = True
        self._writes.end()
        self._wanted.clear()
        for asking in self._asking.values():
            asking.cancel()
        self._task.cancel()

    async def settled(self) -> None:
        """Wait for the end of the running task, if any, that writes the groups' ZooKeeper nodes.
        The task ends after all pending writes, or at the first failed write."""
        await self._task.finish()

    # ---- private: scheduling

    def _drop_placeholder(self, group_id: str) -> None:
        self._placeholders.discard(group_id)
        if group_id not in self._populated:
            self._schedule(group_id, WantedNodes({}, is_deleted=True))

    def _schedule(self, group_id: str, wanted_nodes: WantedNodes) -> None:
        if self._has_ended:
            return
        self._wanted[group_id] = wanted_nodes
        if self._timer is None:
            self._task.start(self._run)

    async def _run(self) -> None:
        try:
            while self._wanted:
                group_id, wanted_nodes = next(iter(self._wanted.items()))
                await self._write_nodes(group_id, wanted_nodes)
                if self._wanted.get(group_id) is wanted_nodes:
                    del self._wanted[group_id]
            self._retry_s = RETRY_S
        except (CoordError, BrokerError) as error:
            log.info(
                "group nodes not written partition=%d reason=%r: the coordinator tries again after"
                " a pause",
                self._shard.partition,
                error,
            )
            self._again_later()
        except Exception:
            log.exception("group nodes not written partition=%d", self._shard.partition)
            self._again_later()

    def _again_later(self) -> None:
        if self._has_ended:
            return
        self._timer = self._shard.call_later(self._retry_s, self._again)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _again(self) -> None:
        self._timer = None
        if self._wanted and not self._has_ended:
            self._task.start(self._run)

    # ---- private: nodes

    async def _create_placeholder(self, group_id: str) -> None:
        """Create the node of the member PLACEHOLDER_ID, and its missing parents. Raises
        BrokerError."""
        path = paths.group_member(group_id, PLACEHOLDER_ID)
        data = encode_consumer(
            ConsumerRegistration({}, "static", self._shard.clock.wall_ms(), is_coordinated=True)
        )
        placeholder = Change(group_id, path, ((path, data),), is_ephemeral=True)
        await self._write(group_id, [placeholder])

    async def _write_nodes(self, group_id: str, wanted_nodes: WantedNodes) -> None:
        """Write and remove nodes until the group has the wanted ones. Raises CoordError,
        BrokerError."""
        changes = await self._member_changes(group_id, wanted_nodes)
        changes += await self._owner_changes(group_id, wanted_nodes)
        await self._write(group_id, changes)
        if wanted_nodes.is_deleted and self._wanted.get(group_id) is wanted_nodes:
            await remove_empty_topics(self._coord, self._writes, group_id, ())

    async def _write(self, group_id: str, changes: Sequence[Change]) -> None:
        """Write the changes to the group's nodes in ZooKeeper. Raises BrokerError if a change
        fails."""
        codes = await self._writes.write(changes)
        failed = next((code for code in codes if code is not ErrorCode.NONE), None)
        if failed is not None:
            raise BrokerError(
                failed,
                f"the nodes of group {group_id} below /consumers cannot be written to ZooKeeper",
            )

    async def _member_changes(self, group_id: str, wanted_nodes: WantedNodes) -> list[Change]:
        root = paths.group_members(group_id)
        names = await children_of(self._coord, root)
        found = await bounded_gather(lambda name: self._registration(f"{root}/{name}"), names)
        shown = {
            paths.decode_name(name): registration
            for name, registration in zip(names, found, strict=True)
            if registration is not None and registration.is_coordinated
        }
        changes = [
            _change(group_id, paths.group_member(group_id, member_id), None)
            for member_id in shown
            if member_id not in wanted_nodes.members
            and not (member_id == PLACEHOLDER_ID and group_id in self._placeholders)
        ]
        for member_id, topics in wanted_nodes.members.items() if wanted_nodes.is_whole else ():
            subscription = dict.fromkeys(topics, 1)
            before = shown.get(member_id)
            if before is None or before.subscription != subscription:
                registration = ConsumerRegistration(
                    subscription, "static", self._shard.clock.wall_ms(), is_coordinated=True
                )
                path = paths.group_member(group_id, member_id)
                changes.append(_change(group_id, path, encode_consumer(registration)))
        return changes

    async def _registration(self, path: str) -> ConsumerRegistration | None:
        """Return the registration in a member's ZooKeeper node; None if the node is missing or its
        content is malformed."""
        try:
            return decode_consumer(path, (await self._coord.get(path))[0])
        except (NoNode, MalformedNode):
            return None

    async def _owner_changes(self, group_id: str, wanted_nodes: WantedNodes) -> list[Change]:
        """Return the changes that write `wanted_nodes.owners` and that delete owner nodes whose
        owner is not a member. If `wanted_nodes.is_whole`, the changes also delete owner nodes that
        are not in `wanted_nodes.owners`."""
        shown = await self._owners(group_id)
        wanted = {key: owner.encode() for key, owner in wanted_nodes.owners.items()}
        members = {f"{member_id}{_THREAD}".encode() for member_id in wanted_nodes.members}
        gone = [
            key
            for key, owner in shown.items()
            if owner not in members or (wanted_nodes.is_whole and key not in wanted)
        ]
        changes = [_change(group_id, paths.group_owner(group_id, key), None) for key in gone]
        kept = {key.topic for key in shown.keys() - set(gone)} | {key.topic for key in wanted}
        changes += [
            _change(group_id, paths.group_owners(group_id, topic), None)
            for topic in sorted({key.topic for key in gone} - kept)
        ]
        changes += [
            _change(group_id, paths.group_owner(group_id, key), owner)
            for key, owner in wanted.items()
            if shown.get(key) != owner
        ]
        return changes

    async def _owners(self, group_id: str) -> dict[TopicPartition, bytes]:
        root = f"{paths.group(group_id)}/owners"
        topics = await children_of(self._coord, root)
        names = await bounded_gather(
            lambda topic: children_of(self._coord, f"{root}/{topic}"), topics
        )
        keys = [
            TopicPartition(paths.decode_name(topic), int(name))
            for topic, numbers in zip(topics, names, strict=True)
            for name in numbers
            if name.isascii() and name.isdigit()
        ]
        return dict(await self._contents(group_id, keys))

    async def _contents(
        self, group_id: str, keys: Sequence[TopicPartition]
    ) -> list[tuple[TopicPartition, bytes]]:
        async def content(key: TopicPartition) -> bytes | None:
            try:
                return (await self._coord.get(paths.group_owner(group_id, key)))[0]
            except NoNode:
                return None

        found = await bounded_gather(content, keys)
        return [(key, data) for key, data in zip(keys, found, strict=True) if data is not None]


def _change(group_id: str, path: str, data: bytes | None) -> Change:
    return Change(group_id, path, ((path, data),))
