"""Tests of the offsets that expire, those that are removed with a topic, and those that are
kept."""

from __future__ import annotations

from unittest.mock import AsyncMock, patch

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.dependencies import GroupFacts
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.removal import OffsetRemoval, expired
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from unit_tests.coordinator.offsets.offset_stage import GROUP, Stage, Store, tp
from unit_tests.coordinator.runtime.vocabulary import NOW_MS
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import until

HOUR_MS = 3_600_000
INTERVAL_S = 600.0
OPTIONS = BrokerConfig(
    offsets_retention_minutes=60, offsets_retention_check_interval_ms=int(INTERVAL_S * 1000)
)
READ = frozenset({"read"})


def facts(
    state: GroupState,
    state_ms: int = NOW_MS,
    topics: frozenset[str] | None = None,
    kind: str = "consumer",
) -> GroupFacts:
    return GroupFacts(state, kind, state_ms, topics)


OLD = CommittedOffset(1, commit_ms=NOW_MS - HOUR_MS)
NEW = CommittedOffset(1, commit_ms=NOW_MS - HOUR_MS + 1)
SOON = CommittedOffset(1, commit_ms=0, expire_ms=NOW_MS + 1)
PAST = CommittedOffset(1, commit_ms=NOW_MS, expire_ms=NOW_MS)


@pytest.mark.parametrize(
    ("group", "gone"),
    [
        (None, ["old-0", "past-0", "read-0"]),
        (facts(GroupState.EMPTY, NOW_MS - HOUR_MS), ["old-0", "new-0", "past-0", "read-0"]),
        (facts(GroupState.EMPTY, NOW_MS - HOUR_MS + 1), ["past-0"]),
        (facts(GroupState.EMPTY, -1), ["old-0", "past-0", "read-0"]),
        (facts(GroupState.STABLE, 0, READ), ["old-0", "past-0"]),
        (facts(GroupState.STABLE, 0, None), []),
        (facts(GroupState.STABLE, 0, READ, "connect"), []),
        (facts(GroupState.PREPARING_REBALANCE, 0, READ), []),
        (facts(GroupState.COMPLETING_REBALANCE, 0, READ), []),
        (facts(GroupState.DEAD, 0, READ), []),
    ],
)
def test_offsets_expire_by_their_age_and_the_state_of_the_group(
    group: GroupFacts | None, gone: list[str]
) -> None:
    offsets = {
        tp("old-0"): OLD,
        tp("new-0"): NEW,
        tp("soon-0"): SOON,
        tp("past-0"): PAST,
        tp("read-0"): OLD,
    }
    assert list(map(str, expired(offsets, group, NOW_MS, HOUR_MS))) == gone


class Removing(Stage):
    """A stage with an `OffsetRemoval`. Every topic exists except those in `unknown`."""

    removal: OffsetRemoval

    @classmethod
    async def with_topics(cls, kind: type[Store], *names: str) -> Removing:
        stage = await cls.begin(kind)
        assert isinstance(stage, Removing)
        await ensure(stage.tool, paths.TOPICS)
        for name in names:
            await stage.tool.create(paths.topic(name))
        stage.removal = OffsetRemoval(stage.shard, stage.coord, stage.store, OPTIONS)
        stage.removal.begin(lambda _: None)
        return stage

    async def after(self, seconds: float) -> None:
        for _ in range(int(seconds / INTERVAL_S)):
            self.shard.advance(INTERVAL_S)
            await self.removal.settled()


@pytest.fixture(params=[ZookeeperOffsets, LoggedOffsets])
def kind(request: pytest.FixtureRequest) -> type[Store]:
    found: type[Store] = request.param
    return found


async def test_offsets_without_a_group_expire_after_their_commit(kind: type[Store]) -> None:
    stage = await Removing.with_topics(kind, "a", "b")
    await stage.store.commit(GROUP, {tp("a-0"): CommittedOffset(1, commit_ms=NOW_MS)})
    await stage.after(1800)
    half = NOW_MS + 1_800_000
    await stage.store.commit(GROUP, {tp("b-0"): CommittedOffset(2, commit_ms=half)})
    await stage.after(1800)
    assert await stage.fetch() == {"b-0": 2}
    await stage.after(1800)
    assert await stage.fetch() == {}
    assert not [path for path in stage.tree.paths() if "/g" in path]
    assert await stage.store.group_ids() in ([], set())


async def test_offsets_written_only_by_classic_consumers_never_expire() -> None:
    stage = await Removing.with_topics(ZookeeperOffsets, "a")
    await stage.edit("a-0", b"5")
    await stage.after(100_000)
    assert await stage.fetch() == {"a-0": 5}


@pytest.mark.parametrize("turns", range(0, 60, 2))
async def test_an_offset_committed_during_a_search_is_kept(kind: type[Store], turns: int) -> None:
    stage = await Removing.with_topics(kind, "a", "b")
    await stage.store.commit(GROUP, {tp("a-0"): OLD, tp("b-0"): OLD})
    stage.shard.advance(INTERVAL_S)
    now_ms = stage.shard.clock.wall_ms()
    await loop_turns(turns)
    await stage.store.commit(GROUP, {tp("a-0"): CommittedOffset(9, commit_ms=now_ms)})
    await stage.removal.settled()
    assert await stage.fetch() == {"a-0": 9}


async def test_an_offset_does_not_expire_while_a_transaction_is_open(kind: type[Store]) -> None:
    stage = await Removing.with_topics(kind, "a", "b")
    await stage.store.commit(GROUP, {tp("a-0"): OLD, tp("b-0"): OLD})
    await stage.commit_in(7, a=5)
    await stage.after(INTERVAL_S)
    assert await stage.fetch() == {"a-0": 1}
    assert stage.pending() == {"a-0"}
    stage.shard.end_transaction(7, is_commit=False)
    await idle()
    await stage.after(INTERVAL_S)
    assert await stage.fetch() == {}


@pytest.mark.parametrize("is_later", [False, True])
async def test_offsets_of_open_transactions_are_removed_with_their_topic(
    kind: type[Store], is_later: bool
) -> None:
    stage = await Removing.with_topics(kind, "a")
    await stage.commit_in(7, a=1, b=2)
    if not is_later:
        await stage.commit_in(8, "new", b=3)
    stage.removal.topics_deleted(["b"])
    if is_later:
        await stage.commit_in(8, "new", b=3)
    await stage.removal.settled()
    stage.shard.end_transaction(7)
    stage.shard.end_transaction(8)
    await until(lambda: not stage.pending() and not stage.pending("new"))
    assert await stage.fetch() == {"a-0": 1}
    assert await stage.fetch("new") == ({"b-0": 3} if is_later else {})


async def test_offsets_are_removed_with_their_topic(kind: type[Store]) -> None:
    stage = await Removing.with_topics(kind, "a")
    await stage.commit(GROUP, a=1, b=2)
    await stage.commit("h", b=3)
    await stage.edit("b-0", b"4", "classic")
    await stage.edit("a-0", b"4", "classic")
    stage.removal.topics_deleted(["b"])
    await stage.commit("new", b=5)
    await stage.removal.settled()
    assert await stage.fetch() == {"a-0": 1}
    assert await stage.fetch("h") == {}
    assert await stage.fetch("classic") == {"a-0": 4}
    assert await stage.fetch("new") == {"b-0": 5}


async def test_offsets_of_a_deleted_topic_are_removed_in_order(kind: type[Store]) -> None:
    """The order of a set differs between processes, but simulated runs must not differ."""
    stage = await Removing.with_topics(kind, "a")
    keys = [tp(f"b-{number}") for number in range(9)]
    await stage.store.commit(GROUP, dict.fromkeys(reversed(keys), CommittedOffset(1)))
    with patch.object(stage.store, "remove_without_recent_commit", AsyncMock()) as remove:
        stage.removal.topics_deleted(["b"])
        await stage.removal.settled()
    assert [call.args[1] for call in remove.await_args_list] == [keys]


async def test_the_periodic_check_removes_offsets_after_a_missed_deletion(
    kind: type[Store],
) -> None:
    stage = await Removing.with_topics(kind, "a")
    await stage.commit(GROUP, a=1, gone=2)
    await stage.after(INTERVAL_S)
    assert await stage.fetch() == {"a-0": 1}


async def test_without_zookeeper_nothing_is_removed(kind: type[Store]) -> None:
    stage = await Removing.with_topics(kind, "a")
    await stage.commit(GROUP, a=1)
    stage.coord.suspend()
    await stage.after(10_000)
    stage.coord.resume()
    await idle()
    assert await stage.fetch() == {"a-0": 1}
    await stage.after(INTERVAL_S)
    assert await stage.fetch() == {}


async def test_nothing_is_removed_after_the_end_of_the_shard(kind: type[Store]) -> None:
    stage = await Removing.with_topics(kind, "a")
    await stage.commit(GROUP, a=1)
    stage.removal.end()
    stage.removal.topics_deleted(["a"])
    await stage.removal.settled()
    assert await stage.fetch() == {"a-0": 1}
