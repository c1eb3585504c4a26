"""Tests of `offsets.storage=zookeeper`: the nodes of a commit, the brokers that may write them,
and the answers while ZooKeeper is silent."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeVar

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import (
    OffsetKey,
    encode_offset_key,
    encode_offset_value,
)
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper.schemas import ConsumerRegistration, encode_consumer
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import KeyValue
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, Stage, tp
from unit_tests.coordinator.runtime.vocabulary import NOW_MS, MemoryShard
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import until

NONE = ErrorCode.NONE
T = TypeVar("T")


async def begin(timeout_s: float = 5.0) -> Stage:
    return await Stage.begin(ZookeeperOffsets, timeout_s)


async def test_an_offset_is_decimal_text_in_the_classic_node() -> None:
    stage = await begin()
    assert await stage.commit(GROUP, a=5, b=7) == [NONE, NONE]
    assert stage.node("a-0") == b"5"
    assert stage.node("b-0") == b"7"
    assert stage.details("a-0") is None
    assert await stage.fetch() == {"a-0": 5, "b-0": 7}
    assert await stage.fetch(GROUP, "b-0", "c-0") == {"b-0": 7}
    assert await stage.fetch("nobody") == {}


async def test_metadata_and_epoch_are_stored_in_the_details_node_unless_empty() -> None:
    stage = await begin()
    full = CommittedOffset(5, 3, "half \u00e9", NOW_MS, NOW_MS + 1000)
    await stage.store.commit(GROUP, {tp("a-0"): full})
    assert json.loads(stage.details("a-0") or b"") == {
        "version": 1,
        "offset": "5",
        "leader_epoch": 3,
        "metadata": "half \u00e9",
        "expire_timestamp": str(NOW_MS + 1000),
    }
    assert await stage.store.fetch(GROUP, None) == {tp("a-0"): full}
    await stage.commit(GROUP, a=5)
    assert stage.details("a-0") is None
    assert await stage.store.fetch(GROUP, None) == {tp("a-0"): CommittedOffset(5, commit_ms=NOW_MS)}


async def test_an_edit_by_a_tool_invalidates_the_details() -> None:
    stage = await begin()
    await stage.store.commit(GROUP, {tp("a-0"): CommittedOffset(5, 3, "text")})
    await stage.edit("a-0", b"2")
    await stage.edit("new-1", b" 9\n")
    found = await stage.store.fetch(GROUP, None)
    assert found[tp("a-0")] == CommittedOffset(2, commit_ms=NOW_MS)
    assert found[tp("new-1")].offset == 9


async def test_a_node_that_is_not_a_number_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = await begin()
    await stage.edit("a-0", b"five")
    with pytest.raises(BrokerError, match="/consumers/g/offsets/a/0") as caught:
        await stage.fetch()
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "offset cannot be read group=g" in caplog.text
    assert "/consumers/g/offsets/a/0" in caplog.text


async def test_nodes_without_a_partition_number_are_ignored() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=5)
    for name in ("99999999999", "2147483648", "1" * 5000, "x", "-1"):
        await stage.tool.create(f"/consumers/g/offsets/a/{name}", b"3")
    assert await stage.fetch() == {"a-0": 5}
    assert await stage.fetch(GROUP, *(f"a-{number}" for number in range(20))) == {"a-0": 5}


async def test_names_with_special_characters_are_encoded_in_paths() -> None:
    stage = await begin()
    for group_id in ("a/b", "..", ".", "\u00fc %"):
        assert await stage.commit(group_id, t=1) == [NONE]
        assert await stage.fetch(group_id) == {"t-0": 1}
    assert "/consumers/a%2Fb/offsets/t/0" in stage.tree.paths()
    assert "/consumers/%2E%2E/offsets/t/0" in stage.tree.paths()
    assert set(await stage.store.group_ids()) == {"a/b", "..", ".", "\u00fc %"}


async def test_a_commit_larger_than_a_multi_is_split() -> None:
    stage = await begin()
    offsets = {TopicPartition("t", n): CommittedOffset(n, 1, "x" * 300) for n in range(2500)}
    codes = await stage.store.commit(GROUP, offsets)
    assert set(codes.values()) == {NONE}
    found = await stage.store.fetch(GROUP, None)
    assert {key: value.offset for key, value in found.items()} == {
        key: value.offset for key, value in offsets.items()
    }


async def test_an_old_coordinator_writes_nothing_and_resigns() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=5)
    old, old_shard = stage.store, stage.shard
    await stage.take_over()
    await stage.commit(GROUP, a=8)
    before = stage.tree.paths()
    late = {tp("a-0"): CommittedOffset(6), tp("new-0"): CommittedOffset(1)}
    codes = await old.commit(GROUP, late)
    assert set(codes.values()) == {ErrorCode.NOT_COORDINATOR}
    assert stage.node("a-0") == b"8"
    assert stage.tree.paths() == before
    assert "version 1, expected 0" in old_shard.reasons[0]
    assert set((await old.commit(GROUP, late)).values()) == {ErrorCode.NOT_COORDINATOR}


async def test_a_fence_that_was_deleted_is_lost_too() -> None:
    stage = await begin()
    await stage.tool.delete(FENCE)
    assert await stage.commit(GROUP, a=5) == [ErrorCode.NOT_COORDINATOR]
    assert "does not exist" in stage.shard.reasons[0]


@pytest.mark.parametrize("applied", [True, False])
async def test_a_commit_with_a_lost_reply_is_sent_again(applied: bool) -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    for _ in range(3):
        stage.coord.lose_reply(applied=applied)
    assert await stage.commit(GROUP, a=2, b=3) == [NONE, NONE]
    assert await stage.fetch() == {"a-0": 2, "b-0": 3}


async def test_a_commit_survives_an_expired_session() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    waiting = asyncio.ensure_future(stage.commit(GROUP, a=2))
    await loop_turns(1)
    stage.coord.expire()
    assert await waiting == [NONE]
    assert stage.node("a-0") == b"2"


async def test_a_node_that_another_client_removed_is_created_again() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1, b=1)
    await stage.remove("/consumers/g")
    await stage.remove("/pybroker/offsets/g")
    assert await stage.commit(GROUP, a=2, b=3) == [NONE, NONE]
    assert await stage.fetch() == {"a-0": 2, "b-0": 3}


async def test_one_bad_node_does_not_stop_the_others() -> None:
    stage = await begin()
    await stage.tool.create("/consumers/bad", ephemeral=True)  # cannot have children
    results = await asyncio.gather(
        stage.commit("one", t=1), stage.commit("bad", t=1), stage.commit("two", t=1)
    )
    assert list(results) == [[NONE], [ErrorCode.UNKNOWN_SERVER_ERROR], [NONE]]
    assert stage.node("t-0", "one") == stage.node("t-0", "two") == b"1"


async def test_unknown_partitions_in_a_fetch_cost_no_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1, b=2)
    asked: list[str] = []
    for name in ("get", "children", "exists"):
        method = getattr(stage.coord, name)

        async def noted(path: str, method: Any = method) -> object:
            asked.append(path)
            return await method(path)

        monkeypatch.setattr(stage.coord, name, noted)
    wanted = [TopicPartition(f"made-up-{number}", 0) for number in range(5000)]
    found = await stage.store.fetch(GROUP, [*wanted, tp("b-0"), tp("b-7"), tp("b-0")])
    assert {str(key): committed.offset for key, committed in found.items()} == {"b-0": 2}
    assert len(asked) < 6


async def test_a_commit_that_timed_out_is_not_written_later() -> None:
    stage = await begin(timeout_s=0.5)
    await stage.commit(GROUP, a=1)
    stage.coord.suspend()
    assert await stage.commit(GROUP, a=2) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    with pytest.raises(BrokerError) as caught:
        await stage.fetch()
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.coord.resume()
    while await stage.commit(GROUP, b=1) != [NONE]:
        pass
    assert stage.node("a-0") == b"1"


async def test_a_commit_is_written_after_its_client_disconnected() -> None:
    stage = await begin()
    waiting = asyncio.ensure_future(stage.commit(GROUP, a=2))
    await loop_turns(1)
    waiting.cancel()
    assert await stage.fetch() == {"a-0": 2}


async def test_a_fetch_waits_for_commits_before_it() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    commits = []
    for offset in range(2, 8):
        commits.append(asyncio.ensure_future(stage.commit(GROUP, a=offset)))
        await loop_turns(1)
    assert await stage.fetch() == {"a-0": 7}
    assert await asyncio.gather(*commits) == [[NONE]] * 6


async def test_a_server_catches_up_before_it_is_read_in_a_new_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await begin()
    asked: list[str] = []
    for name in ("sync", "get"):
        method = getattr(stage.coord, name)

        async def noted(path: str = "/", name: str = name, method: Any = method) -> object:
            asked.append(name)
            return await method(path)

        monkeypatch.setattr(stage.coord, name, noted)
    await stage.commit(GROUP, a=1)
    await stage.fetch()
    await stage.fetch()
    assert asked == ["sync", *["get"] * 4], "the offset and the details of each partition"
    stage.coord.expire()
    await until(lambda: stage.coord.session_id != 0)
    await stage.fetch()
    assert asked == ["sync", *["get"] * 4, "sync", *["get"] * 2]


async def test_too_much_metadata_for_zookeeper_has_its_own_code() -> None:
    stage = await begin()
    codes = await stage.store.commit(
        GROUP,
        {tp("a-0"): CommittedOffset(1), tp("b-0"): CommittedOffset(1, metadata="x" * 600_000)},
    )
    assert list(codes.values()) == [NONE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE]
    assert await stage.fetch() == {"a-0": 1}


async def test_the_end_of_a_shard_answers_waiting_callers() -> None:
    stage = await begin()
    waiting = asyncio.ensure_future(stage.commit(GROUP, a=1))
    await loop_turns(1)
    stage.shard.end()
    assert await waiting == [ErrorCode.NOT_COORDINATOR]


# ---- deletion


async def test_deleting_offsets_leaves_no_nodes_behind() -> None:
    stage = await begin()
    await stage.store.commit(
        GROUP, {tp("a-0"): CommittedOffset(1, 1), tp("a-1"): CommittedOffset(2)}
    )
    await stage.commit(GROUP, b=3)
    missing = tp("zz-9")
    codes = await stage.store.delete(GROUP, [tp("a-0"), missing])
    assert codes == {tp("a-0"): NONE, missing: NONE}
    assert await stage.fetch() == {"a-1": 2, "b-0": 3}
    await stage.store.delete(GROUP, [tp("a-1")])
    assert "/consumers/g/offsets/a" not in stage.tree.paths()
    assert "/pybroker/offsets/g/a" not in stage.tree.paths()
    assert await stage.commit(GROUP, a=4) == [NONE]
    assert await stage.fetch() == {"a-0": 4, "b-0": 3}


async def test_a_node_that_another_client_recreated_is_deleted() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    await stage.store.delete(GROUP, [tp("a-0")])
    await stage.edit("a-0", b"7")
    assert await stage.fetch() == {"a-0": 7}
    await stage.store.delete(GROUP, [tp("a-0")])
    assert await stage.fetch() == {}


async def test_deleting_a_group_removes_all_nodes_below_it() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1, b=2)
    await stage.commit("other", a=1)
    for path in ("/consumers/g/owners", "/consumers/g/ids"):
        await stage.tool.create(path)
    assert set((await stage.store.delete(GROUP, None)).values()) == {NONE}
    assert not [path for path in stage.tree.paths() if path.startswith("/consumers/g")]
    assert await stage.store.group_ids() == {"other"}
    assert await stage.commit(GROUP, a=5) == [NONE]


async def test_a_group_of_classic_consumers_is_not_deleted() -> None:
    stage = await begin()
    await stage.commit(GROUP, a=1)
    await stage.tool.create("/consumers/g/ids")
    content = encode_consumer(ConsumerRegistration({"a": 1}, "static", 1))
    await stage.tool.create("/consumers/g/ids/g_host-1-abcd", content, ephemeral=True)
    with pytest.raises(BrokerError) as caught:
        await stage.store.delete(GROUP, None)
    assert caught.value.code is ErrorCode.NON_EMPTY_GROUP
    assert stage.node("a-0") == b"1"


# ---- what the log still has


def record(key: str, offset: int | None, group_id: str = GROUP) -> KeyValue:
    value = None if offset is None else encode_offset_value(CommittedOffset(offset, 2, "m", NOW_MS))
    return KeyValue(encode_offset_key(OffsetKey(group_id, tp(key))), value)


async def test_records_are_moved_to_nodes_once() -> None:
    stage = await begin()
    await stage.edit("stale-0", b"1")
    stage.shard.log.append(
        [record("a-0", 5), record("gone-0", 3), record("gone-0", None), record("stale-0", 9)],
        NOW_MS,
    )
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 5, "stale-0": 9}
    assert (await stage.store.fetch(GROUP, None))[tp("a-0")].metadata == "m"
    await stage.store.delete(GROUP, [tp("a-0")])
    await stage.commit(GROUP, stale=10)
    await stage.take_over()
    assert await stage.fetch() == {"stale-0": 10}


async def test_a_move_that_was_interrupted_is_done_again() -> None:
    stage = await begin()
    stage.shard.log.append([record(f"t-{n}", n) for n in range(1200)], NOW_MS)
    await stage.tool.set(FENCE, b"")
    log = stage.shard.log.next_leader()
    shard = MemoryShard(log=log, clock=stage.shard.clock, fence_version=1)
    await stage.prepare(shard)
    loading = asyncio.ensure_future(shard.load())
    await until(lambda: stage.node("t-600") is not None)
    loading.cancel()
    await asyncio.wait([loading])
    shard.end()
    await stage.tool.set(FENCE, b"")
    successor = MemoryShard(log=log.next_leader(), clock=shard.clock, fence_version=2)
    await stage.prepare(successor)
    await successor.load()
    assert await stage.fetch() == {f"t-{n}": n for n in range(1200)}


async def test_only_committed_transactions_are_moved() -> None:
    stage = await begin()
    log = stage.shard.log
    log.append_transactional([record("yes-0", 1)], producer_id=1)
    log.append_transactional([record("no-0", 1)], producer_id=2)
    log.append_transactional([record("open-0", 1)], producer_id=3)
    log.append_marker(producer_id=1)
    log.append_marker(producer_id=2, is_commit=False)
    await stage.take_over()
    assert await stage.fetch() == {"yes-0": 1}


# ---- order and fencing, in whatever order things fail


class Storm:
    """Random commits of four partitions while connections break and coordinators change."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.random = stage.shard.rng
        self.topics = [TopicPartition(f"t{number}", 0) for number in range(4)]
        self.answered = dict.fromkeys(self.topics, -1)
        self.seen = dict.fromkeys(self.topics, -1)

    async def commit(self, topic: TopicPartition) -> None:
        for offset in range(1, 15):
            codes = await self.stage.store.commit(GROUP, {topic: CommittedOffset(offset)})
            if list(codes.values()) == [NONE]:
                self.answered[topic] = offset
            if self.random.random() < 0.3:
                await loop_turns(1)

    async def trouble(self) -> None:
        steps = [self.lose, self.suspend, self.expire, self.depose, self.wait]
        for _ in range(12):
            await self.random.choice(steps)()

    async def lose(self) -> None:
        self.stage.coord.lose_reply(applied=self.random.random() < 0.5)

    async def suspend(self) -> None:
        coord = self.stage.coord
        coord.suspend()
        await self.wait()
        coord.resume()

    async def expire(self) -> None:
        self.stage.coord.expire()

    async def depose(self) -> None:
        deposed = self.stage.store
        await self.take_over()
        late = {topic: CommittedOffset(0) for topic in self.topics}
        assert NONE not in (await deposed.commit(GROUP, late)).values()

    async def take_over(self) -> None:
        await self.stage.take_over()

    async def wait(self) -> None:
        await loop_turns(self.random.randrange(20))

    async def read(self) -> None:
        for _ in range(30):
            expected = {key: max(self.answered[key], self.seen[key]) for key in self.topics}
            try:
                found = await self.stage.store.fetch(GROUP, None)
            except BrokerError:
                continue
            for key, offset in expected.items():
                self.seen[key] = found[key].offset if key in found else -1
                assert self.seen[key] >= offset


@pytest.mark.parametrize("seed", range(40))
async def test_committed_offsets_never_decrease_after_any_loss(seed: int) -> None:
    storm = Storm(await begin(timeout_s=0.02))
    storm.random.seed(seed)
    commits = [storm.commit(topic) for topic in storm.topics]
    await asyncio.gather(*commits, storm.trouble(), storm.read())
    await storm.take_over()
    await storm.read()
    assert any(offset > 0 for offset in storm.seen.values())
