"""Tests of `offsets.storage=kafka`: the records in the log, and the import of offsets from
ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.schemas import ConsumerRegistration, encode_consumer
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from unit_tests.coordinator.offsets.offset_stage import GROUP, Stage, tp
from unit_tests.coordinator.runtime.vocabulary import NOW_MS
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import until

NONE = ErrorCode.NONE
FULL = CommittedOffset(5, 3, "text", NOW_MS)


async def begin(timeout_s: float = 5.0) -> Stage:
    return await Stage.begin(LoggedOffsets, timeout_s)


async def register_classic(stage: Stage) -> None:
    await stage.tool.create("/consumers/g/ids")
    content = encode_consumer(ConsumerRegistration({"a": 1}, "static", 1))
    await stage.tool.create("/consumers/g/ids/g_host-1-abcd", content, ephemeral=True)


async def test_a_commit_is_a_record_that_the_next_coordinator_has() -> None:
    stage = await begin()
    assert await stage.store.commit(GROUP, {tp("a-0"): FULL, tp("b-1"): FULL}) == {
        tp("a-0"): NONE,
        tp("b-1"): NONE,
    }
    assert stage.node("a-0") is None
    await stage.take_over()
    assert await stage.store.fetch(GROUP, [tp("a-0"), tp("c-0")]) == {tp("a-0"): FULL}
    assert await stage.fetch() == {"a-0": 5, "b-1": 5}
    assert await stage.store.group_ids() == [GROUP]


async def test_a_fetch_returns_an_offset_when_its_record_is_committed() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    stage.shard.log.holds = True
    waiting = [asyncio.ensure_future(stage.commit(GROUP, a=offset)) for offset in (2, 3)]
    await until(lambda: stage.shard.log.end_offset == 3)
    assert await stage.fetch() == {"a-0": 1}
    stage.shard.log.commit()
    assert await asyncio.gather(*waiting) == [[NONE], [NONE]]
    assert await stage.fetch() == {"a-0": 3}


async def test_a_fetch_returns_the_offset_of_a_cancelled_commit() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    stage.shard.log.holds = True
    waiting = asyncio.ensure_future(stage.commit(GROUP, a=2))
    await until(lambda: stage.shard.log.end_offset == 2)
    waiting.cancel()
    await asyncio.wait([waiting])
    stage.shard.log.commit()
    await idle()
    assert await stage.fetch() == {"a-0": 2}


async def test_a_commit_that_ends_with_its_process_starts_no_task() -> None:
    """The simulation ends the coroutines of a killed broker in this way."""
    stage = await begin()
    await stage.commit(GROUP, a=1)
    stage.shard.log.holds = True
    committing = stage.commit(GROUP, a=2)
    waiting = asyncio.ensure_future(committing)
    await until(lambda: stage.shard.log.end_offset == 2)
    before = asyncio.all_tasks()
    committing.close()
    assert asyncio.all_tasks() == before
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_no_task_is_started_after_the_end_of_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = await begin()
    stage.shard.log.holds = True
    asked: list[int] = []
    committed = stage.shard.committed

    async def noted(offset: int) -> None:
        asked.append(offset)
        await committed(offset)

    monkeypatch.setattr(stage.shard, "committed", noted)
    waiting = asyncio.ensure_future(stage.commit(GROUP, a=2))
    await until(lambda: stage.shard.log.end_offset == 1)
    stage.shard.end()
    with pytest.raises(BrokerError):
        await waiting
    await idle()
    assert asked == [1]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
async def test_a_refused_append_commits_no_offset(code: ErrorCode) -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    stage.shard.log.refuse(code)
    with pytest.raises(BrokerError):
        await stage.commit(GROUP, a=2)
    assert await stage.fetch() == {"a-0": 1}


async def test_text_too_long_for_a_record_is_refused_alone() -> None:
    stage = await begin()
    codes = await stage.store.commit(
        GROUP, {tp("a-0"): FULL, tp("b-0"): CommittedOffset(1, metadata="x" * 40_000)}
    )
    assert list(codes.values()) == [NONE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert await stage.fetch() == {"a-0": 5}


async def test_a_commit_larger_than_a_batch_is_split() -> None:
    stage = await begin()
    offsets = {TopicPartition("t", n): CommittedOffset(n, 1, "x" * 1000) for n in range(3000)}
    assert set((await stage.store.commit(GROUP, offsets)).values()) == {NONE}
    await stage.take_over()
    assert len(await stage.fetch()) == 3000


async def test_deleting_leaves_tombstones_and_no_nodes() -> None:
    stage = await begin()
    await stage.edit("a-0", b"1")
    await stage.commit(GROUP, a=2, b=3)
    await stage.store.delete(GROUP, [tp("a-0"), tp("zz-0")])
    assert await stage.fetch() == {"b-0": 3}
    assert stage.node("a-0") is None
    await stage.store.delete(GROUP, None)
    assert await stage.fetch() == {}
    assert "/consumers/g" not in stage.tree.paths()
    await stage.take_over()
    assert await stage.fetch() == {}


async def test_a_delete_after_an_uncommitted_commit_removes_the_offset() -> None:
    stage = await begin()
    await stage.commit(GROUP, b=1)
    stage.shard.log.holds = True
    commit = asyncio.ensure_future(stage.commit(GROUP, a=2))
    await until(lambda: stage.shard.log.end_offset == 2)
    delete = asyncio.ensure_future(stage.store.delete(GROUP, [tp("a-0")]))
    await until(lambda: stage.shard.log.end_offset == 3)
    stage.shard.log.commit()
    await asyncio.gather(commit, delete)
    assert await stage.fetch() == {"b-0": 1}


# ---- what is in ZooKeeper


async def test_switching_the_storage_keeps_all_offsets_in_both_directions() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.store.commit(GROUP, {tp("a-0"): FULL, tp("b-0"): FULL, tp("c-0"): FULL})
    await stage.take_over(LoggedOffsets)
    assert await stage.store.fetch(GROUP, None) == {
        tp("a-0"): FULL,
        tp("b-0"): FULL,
        tp("c-0"): FULL,
    }
    await stage.commit(GROUP, a=6)
    await stage.store.delete(GROUP, [tp("c-0")])
    await stage.take_over(LoggedOffsets)
    assert await stage.fetch() == {"a-0": 6, "b-0": 5}
    await stage.take_over(ZookeeperOffsets)
    assert await stage.fetch() == {"a-0": 6, "b-0": 5}
    await stage.commit(GROUP, b=9)
    await stage.take_over(LoggedOffsets)
    assert await stage.fetch() == {"a-0": 6, "b-0": 9}


async def test_all_groups_are_imported_at_loading() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    for number in range(30):
        await stage.commit(f"g{number}", t=number)
    await stage.take_over(LoggedOffsets)
    assert set(await stage.store.group_ids()) == {f"g{number}" for number in range(30)}
    end = stage.shard.log.end_offset
    await stage.take_over(LoggedOffsets)
    assert stage.shard.log.end_offset == end


async def test_a_malformed_node_delays_only_its_own_group() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit("good", t=1)
    await stage.edit("t-0", b"five", "bad")
    await stage.take_over(LoggedOffsets)
    assert await stage.fetch("good") == {"t-0": 1}
    with pytest.raises(BrokerError, match="/consumers/bad/offsets/t/0"):
        await stage.fetch("bad")


async def test_an_offset_too_large_for_a_record_does_not_stop_loading() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit("good", t=1)
    await stage.store.commit("long", {tp("t-0"): CommittedOffset(2, metadata="x" * 40_000)})
    await stage.edit("t-99999999999", b"3", "strange")
    await stage.edit("t-0", b"9999999999999999999", "strange")
    await stage.take_over(LoggedOffsets)
    assert await stage.fetch("good") == {"t-0": 1}
    assert await stage.fetch("long") == {"t-0": 2}
    with pytest.raises(BrokerError, match="/consumers/strange/offsets/t/0"):
        await stage.fetch("strange")


async def test_a_classic_group_is_imported_when_its_consumers_have_left() -> None:
    stage = await begin()
    await stage.edit("a-0", b"7")
    await register_classic(stage)
    assert await stage.fetch() == {"a-0": 7}
    assert await stage.store.group_ids() == []
    with pytest.raises(BrokerError) as caught:
        await stage.commit(GROUP, a=1)
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    await stage.edit("a-0", b"8")
    await stage.edit("b-0", b"9")
    await stage.remove("/consumers/g/ids")
    assert await stage.commit(GROUP, b=10) == [NONE]
    assert await stage.fetch() == {"a-0": 8, "b-0": 10}


async def test_first_commits_of_a_group_keep_their_order() -> None:
    stage = await begin()
    await stage.edit("b-0", b"9")
    commits = []
    for offset in range(1, 40):
        commits.append(asyncio.ensure_future(stage.commit(GROUP, a=offset)))
        await loop_turns(offset % 4)
    assert set(map(tuple, await asyncio.gather(*commits))) == {(NONE,)}
    assert await stage.fetch() == {"a-0": 39, "b-0": 9}


async def test_without_zookeeper_a_fetch_fails_and_does_not_return_no_offset() -> None:
    stage = await begin()
    await stage.commit("known", t=1)
    stage.coord.suspend()
    assert await stage.fetch("known") == {"t-0": 1}
    with pytest.raises(BrokerError) as caught:
        await stage.fetch("unknown")
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_an_old_coordinator_removes_no_nodes() -> None:
    stage = await begin()
    await stage.edit("a-0", b"7")
    old = stage.store
    await stage.take_over()
    codes = await old.delete(GROUP, [tp("a-0")])
    assert codes == {tp("a-0"): ErrorCode.NOT_COORDINATOR}
    assert stage.node("a-0") == b"7"
    assert paths.offsets_stored(0) in stage.tree.paths()
