"""Tests of the nodes of coordinated groups in the format of classic consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from pybroker.coordinator.groups.calls import GroupView, MemberView
from pybroker.coordinator.groups.mirror import PLACEHOLDER_ID, PLACEHOLDER_KEPT_S, GroupMirror
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.coordinator.zookeeper.schemas import (
    ConsumerRegistration,
    decode_consumer,
    encode_consumer,
)
from pybroker.errors import BrokerError, ErrorCode
from pybroker.ports import CoordOp, OpResult, Watch
from pybroker.testing.simulation.memory_tree import MemoryTree
from pybroker.wire.consumer_protocol import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, tp
from unit_tests.coordinator.runtime.vocabulary import MemoryShard
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import until

NONE = ErrorCode.NONE


class Stage:
    """A mirror with a ZooKeeper in memory."""

    def __init__(self) -> None:
        self.shard = MemoryShard(fence_version=0)
        self.tree = MemoryTree(self.shard.clock)
        self.coord = MemoryCoord(self.tree, name="offsets")
        self.tool = MemoryCoord(self.tree, name="tool")
        self.mirror = GroupMirror(self.shard, self.coord, timeout_s=5.0)

    @classmethod
    async def begin(cls) -> Stage:
        stage = cls()
        await stage.coord.start()
        await stage.tool.start()
        await ensure(stage.tool, FENCE)
        await ensure(stage.tool, paths.CONSUMERS)
        return stage

    async def show(self, view: GroupView) -> None:
        self.mirror.members_changed(view)
        await self.mirror.settled()

    def names(self, path: str) -> list[str]:
        return [each[len(path) + 1 :] for each in self.tree.paths() if each.startswith(f"{path}/")]

    def members(self) -> dict[str, list[str]]:
        root = paths.group_members(GROUP)
        found = {}
        for name in self.names(root):
            node = self.tree.node(f"{root}/{name}")
            assert node is not None
            registration = decode_consumer(root, node[0])
            assert registration.is_coordinated
            found[paths.decode_name(name)] = list(registration.subscription)
        return found

    def owners(self) -> dict[str, bytes]:
        root = f"{paths.group(GROUP)}/owners"
        nodes = {name: self.tree.node(f"{root}/{name}") for name in self.names(root)}
        return {name: node[0] for name, node in nodes.items() if node is not None and node[0]}

    async def register_classic(self, name: str = "g_host-1-abcd") -> None:
        await ensure(self.tool, paths.group_members(GROUP))
        content = encode_consumer(ConsumerRegistration({"a": 1}, "static", 1))
        await self.tool.create(paths.group_member(GROUP, name), content, ephemeral=True)


def view(
    assigned: Mapping[str, Sequence[str]],
    state: GroupState = GroupState.STABLE,
    kind: str = "consumer",
) -> GroupView:
    """Return a group. `assigned`: member id -> its partitions. The members subscribe to the topics
    of these partitions."""
    members = []
    for member_id, keys in assigned.items():
        topics = tuple(dict.fromkeys(tp(key).topic for key in keys))
        known = state is GroupState.STABLE
        members.append(
            MemberView(
                member_id,
                None,
                "client",
                "/127.0.0.1",
                encode_subscription(Subscription(topics)) if known else b"",
                encode_assignment(Assignment(tuple(map(tp, keys)))) if known else b"",
            )
        )
    return GroupView(GROUP, state, kind, "range", 1, tuple(members))


EMPTY = view({}, GroupState.EMPTY)
OVER = view({}, GroupState.DEAD)


async def test_members_and_owners_are_written_and_removed() -> None:
    stage = await Stage.begin()
    await stage.show(view({"m1": ["a-0", "b-0"], "m/2": ["a-1"]}))
    assert stage.members() == {"m1": ["a", "b"], "m/2": ["a"]}
    assert stage.owners() == {"a/0": b"m1-0", "a/1": b"m/2-0", "b/0": b"m1-0"}
    await stage.show(view({"m/2": ["a-0", "a-1"]}))
    assert stage.members() == {"m/2": ["a"]}
    assert stage.owners() == {"a/0": b"m/2-0", "a/1": b"m/2-0"}
    assert "/consumers/g/owners/b" not in stage.tree.paths()
    await stage.show(EMPTY)
    assert stage.members() == {} and stage.owners() == {}


async def test_members_that_are_shown_already_are_not_written_again() -> None:
    stage = await Stage.begin()
    await stage.show(view({"m1": ["a-0"]}))
    stage.shard.clock.advance(10)
    before = stage.tree.zxid
    await stage.show(view({"m1": ["a-0"]}))
    assert stage.tree.zxid == before


async def test_during_a_rebalance_only_members_that_left_are_removed() -> None:
    stage = await Stage.begin()
    await stage.show(view({"m1": ["a-0"], "m2": ["a-1"]}))
    await stage.show(view({"m1": [], "m3": []}, GroupState.PREPARING_REBALANCE))
    assert stage.members() == {"m1": ["a"]}
    assert stage.owners() == {"a/0": b"m1-0"}


async def test_members_of_other_protocols_have_no_topics() -> None:
    stage = await Stage.begin()
    await stage.show(view({"worker": ["a-0"]}, kind="connect"))
    assert stage.members() == {"worker": []}
    assert stage.owners() == {}


async def test_the_next_coordinator_corrects_the_nodes() -> None:
    stage = await Stage.begin()
    await stage.show(view({"m1": ["a-0"], "m2": ["a-1"]}))
    old = stage.mirror
    await stage.tool.set(FENCE, b"")
    shard = stage.shard.fail_over()
    stage.mirror = GroupMirror(shard, stage.coord, timeout_s=5.0)
    await stage.show(view({"m1": ["a-0", "a-1"]}))
    assert stage.members() == {"m1": ["a"]}
    assert stage.owners() == {"a/0": b"m1-0", "a/1": b"m1-0"}
    old.members_changed(EMPTY)
    await old.settled()
    assert stage.members() == {"m1": ["a"]}


async def test_members_are_written_later_if_zookeeper_does_not_answer() -> None:
    stage = await Stage.begin()
    stage.coord.suspend()
    stage.mirror.members_changed(view({"m1": ["a-0"]}))
    await stage.mirror.settled()
    stage.mirror.members_changed(view({"m2": ["a-0"]}))
    stage.coord.resume()
    await idle()
    stage.shard.advance(60)
    await stage.mirror.settled()
    assert stage.members() == {"m2": ["a"]}


async def test_a_group_with_classic_consumers_accepts_no_first_member() -> None:
    stage = await Stage.begin()
    await stage.register_classic()
    assert await stage.mirror.may_begin(GROUP) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    await stage.mirror.settled()
    assert stage.names(paths.group_members(GROUP)) == ["g_host-1-abcd"]
    await stage.tool.delete(paths.group_member(GROUP, "g_host-1-abcd"))
    assert await stage.mirror.may_begin(GROUP) is NONE


async def test_a_classic_consumer_sees_a_group_whose_first_member_is_joining() -> None:
    stage = await Stage.begin()
    assert await stage.mirror.may_begin(GROUP) is NONE
    assert stage.members() == {PLACEHOLDER_ID: []}
    await stage.show(view({"m1": []}, GroupState.PREPARING_REBALANCE))
    assert stage.members() == {PLACEHOLDER_ID: []}
    await stage.show(view({"m1": ["a-0"]}))
    assert stage.members() == {"m1": ["a"]}
    await stage.show(EMPTY)
    assert await stage.mirror.may_begin(GROUP) is NONE
    await stage.show(EMPTY)
    assert stage.members() == {PLACEHOLDER_ID: []}
    stage.shard.advance(PLACEHOLDER_KEPT_S + 1)
    await stage.mirror.settled()
    assert stage.members() == {}
    assert paths.group(GROUP) not in stage.tree.paths()


async def test_all_nodes_of_a_deleted_group_are_removed() -> None:
    stage = await Stage.begin()
    await stage.show(view({"m1": ["a-0"]}))
    await stage.show(EMPTY)
    await stage.show(OVER)
    assert [each for each in stage.tree.paths() if GROUP in each] == []


async def test_offsets_and_classic_consumers_outlive_a_coordinated_group() -> None:
    stage = await Stage.begin()
    await ensure(stage.tool, paths.offset(GROUP, tp("a-0")))
    await stage.show(view({"m1": ["a-0"]}))
    await stage.show(EMPTY)
    await stage.register_classic()
    await stage.show(OVER)
    left = {path for path in stage.tree.paths() if path.startswith(f"{paths.group(GROUP)}/")}
    assert paths.offset(GROUP, tp("a-0")) in left
    assert paths.group_member(GROUP, "g_host-1-abcd") in left


async def test_a_member_that_joins_during_a_deletion_keeps_the_placeholder() -> None:
    stage = await Stage.begin()
    await stage.show(view({"m1": ["a-0"]}))
    await stage.show(EMPTY)
    joining = asyncio.create_task(stage.mirror.may_begin(GROUP))
    await loop_turns(1)
    await stage.show(OVER)
    assert await joining is NONE
    assert stage.members() == {PLACEHOLDER_ID: []}
    await stage.show(OVER)
    assert stage.members() == {} and paths.group(GROUP) not in stage.tree.paths()


async def test_all_members_that_join_at_once_share_one_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When each of fifty members made its own search, they joined three times slower than in Apache
    Kafka."""
    stage = await Stage.begin()
    looks = []
    children = stage.coord.children

    async def look(path: str, watch: Watch | None = None) -> list[str]:
        looks.append(path)
        return await children(path, watch)

    monkeypatch.setattr(stage.coord, "children", look)
    waiting = [asyncio.create_task(stage.mirror.may_begin(GROUP)) for _ in range(50)]
    await loop_turns(1)
    waiting.pop(0).cancel()
    assert set(await asyncio.gather(*waiting)) == {NONE}
    assert looks == [paths.group_members(GROUP)]
    await stage.register_classic()
    assert await stage.mirror.may_begin(GROUP) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_the_first_member_of_a_group_waits_for_one_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper syncs every write to disk, even a refused write: six writes took 6 to 40 ms of a
    join."""
    stage = await Stage.begin()
    writes: list[int] = []
    multi = stage.coord.multi

    async def write(ops: Sequence[CoordOp]) -> list[OpResult]:
        writes.append(len(ops))
        return await multi(ops)

    monkeypatch.setattr(stage.coord, "multi", write)
    assert await stage.mirror.may_begin(GROUP) is NONE
    assert writes == [4], "the fence check, the group, its parent of members, the placeholder"
    assert stage.members() == {PLACEHOLDER_ID: []}
    await stage.mirror.may_begin(GROUP)
    assert len(writes) == 2, "the placeholder exists already"


async def test_nodes_that_change_during_a_write_are_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await Stage.begin()
    multi = stage.coord.multi

    async def all_go() -> None:
        members = paths.group_members(GROUP)
        for path in (paths.group_member(GROUP, "g_host-1-abcd"), members, paths.parent(members)):
            await stage.tool.delete(path)

    steps = [stage.register_classic, all_go]

    async def write(ops: Sequence[CoordOp]) -> list[OpResult]:
        if steps:
            await steps.pop(0)()
        return await multi(ops)

    monkeypatch.setattr(stage.coord, "multi", write)
    assert await stage.mirror.may_begin(GROUP) is NONE
    assert stage.members() == {PLACEHOLDER_ID: []}


async def test_the_end_of_a_shard_answers_a_waiting_join() -> None:
    stage = await Stage.begin()
    waiting = asyncio.create_task(stage.mirror.may_begin(GROUP))
    await loop_turns(1)
    stage.mirror.end()
    with pytest.raises(BrokerError) as caught:
        await waiting
    assert caught.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_placeholder_is_removed_with_its_broker() -> None:
    stage = await Stage.begin()
    assert await stage.mirror.may_begin(GROUP) is NONE
    stage.coord.expire()
    await until(lambda: stage.members() == {})


async def test_without_zookeeper_no_first_member_joins() -> None:
    stage = await Stage.begin()
    stage.coord.suspend()
    with pytest.raises(BrokerError) as caught:
        await stage.mirror.may_begin(GROUP)
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_the_end_of_a_shard_ends_its_mirror() -> None:
    stage = await Stage.begin()
    stage.mirror.members_changed(view({"m1": ["a-0"]}))
    stage.mirror.end()
    await stage.mirror.settled()
    assert stage.members() == {}
