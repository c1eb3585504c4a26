"""Offsets of transactions in both stores: pending until the marker, and written to ZooKeeper as a
whole even if coordinators change between two multis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets import transaction_writes
from pybroker.coordinator.offsets.applied_marker import AppliedMarker
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import CheckOp, CoordOp, OpResult
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, Stage, tp
from unit_tests.idle_loop import idle
from unit_tests.patience import until

NONE = ErrorCode.NONE
MARKER = paths.applied_marker(0)
P, Q = 7, 8
"""Producer ids."""
STORES = [ZookeeperOffsets, LoggedOffsets]


@pytest.fixture(params=STORES, ids=["zookeeper", "kafka"])
async def stage(request: pytest.FixtureRequest) -> Stage:
    return await Stage.begin(request.param)


# ---- the life of a transaction


async def test_offsets_are_pending_until_the_commit_marker(stage: Stage) -> None:
    await stage.commit(GROUP, a=1)
    assert await stage.commit_in(P, a=5, b=6) == [NONE, NONE]
    assert await stage.fetch() == {"a-0": 1}
    assert stage.pending() == {"a-0", "b-0"}
    assert stage.pending("other") == set()
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5, "b-0": 6}
    assert stage.store.undecided_bytes() == 0


async def test_offsets_of_an_aborted_transaction_vanish(stage: Stage) -> None:
    await stage.commit(GROUP, a=1)
    await stage.commit_in(P, a=5, b=6)
    stage.shard.end_transaction(P, is_commit=False)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 1}
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 1}
    assert stage.store.undecided_bytes() == 0


async def test_the_last_offset_of_a_partition_in_a_transaction_counts(stage: Stage) -> None:
    await stage.commit_in(P, a=5)
    await stage.commit_in(P, a=6)
    await stage.commit_in(Q, b=1)
    stage.shard.end_transaction(P)
    await until(lambda: stage.pending() == {"b-0"})
    assert await stage.fetch() == {"a-0": 6}


async def test_metadata_and_leader_epoch_survive_the_transaction(stage: Stage) -> None:
    full = CommittedOffset(5, 3, "half \u00e9", stage.shard.clock.wall_ms())
    await stage.commit_in_group(GROUP, P, {tp("a-0"): full})
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.store.fetch(GROUP, None) == {tp("a-0"): full}
    await stage.take_over()
    assert await stage.store.fetch(GROUP, None) == {tp("a-0"): full}


async def test_a_marker_takes_effect_when_it_is_committed(stage: Stage) -> None:
    await stage.commit_in(P, a=5)
    stage.shard.log.holds = True
    stage.shard.end_transaction(P)
    await idle()
    assert stage.pending() == {"a-0"}
    assert await stage.fetch() == {}
    stage.shard.log.commit()
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5}


async def test_a_producers_next_transaction_does_not_change_the_ended_one(stage: Stage) -> None:
    """The marker of the first transaction is still uncommitted here when the second begins."""
    await stage.commit_in(P, a=5, b=5)
    stage.shard.log.holds = True
    stage.shard.end_transaction(P)
    second = asyncio.ensure_future(stage.commit_in(P, a=6))
    await idle()
    stage.shard.log.holds = False
    stage.shard.log.commit()
    assert await second == [NONE]
    await until(lambda: stage.pending() == {"a-0"})
    await until(lambda: stage.shard.log.committed_end == stage.shard.log.end_offset)
    stage.shard.end_transaction(P, is_commit=False)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5, "b-0": 5}


async def test_a_marker_without_offsets_changes_nothing(stage: Stage) -> None:
    await stage.commit(GROUP, a=1)
    before = stage.tree.paths()
    stage.shard.end_transaction(P)
    stage.shard.end_transaction(Q, is_commit=False)
    await idle()
    assert await stage.fetch() == {"a-0": 1}
    assert stage.tree.paths() == before


async def test_a_new_coordinator_keeps_open_transactions(stage: Stage) -> None:
    await stage.commit_in(P, a=5)
    await stage.take_over()
    assert stage.pending() == {"a-0"}
    assert await stage.fetch() == {}
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5}


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE])
async def test_a_refused_append_leaves_no_pending_offset(stage: Stage, code: ErrorCode) -> None:
    stage.shard.log.refuse(code)
    with pytest.raises(BrokerError) as caught:
        await stage.commit_in(P, a=5)
    assert caught.value.code is code
    assert stage.pending() == set()
    assert stage.store.undecided_bytes() == 0


async def test_text_too_long_for_a_record_is_refused_alone(stage: Stage) -> None:
    offsets = {tp("a-0"): CommittedOffset(5), tp("b-0"): CommittedOffset(1, metadata="x" * 40_000)}
    codes = await stage.commit_in_group(GROUP, P, offsets)
    assert codes == {tp("a-0"): NONE, tp("b-0"): ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert stage.pending() == {"a-0"}


# ---- the order of commits of one partition: the newest record wins, wherever the markers are


async def test_a_later_plain_commit_wins_over_an_open_transaction(stage: Stage) -> None:
    await stage.commit_in(P, a=5, b=5)
    assert await stage.commit(GROUP, a=9) == [NONE]
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 9, "b-0": 5}
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 9, "b-0": 5}


async def test_a_transaction_wins_over_an_earlier_plain_commit(stage: Stage) -> None:
    await stage.commit(GROUP, a=9)
    await stage.commit_in(P, a=5)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5}
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 5}


async def test_the_later_record_wins_if_its_marker_comes_first(stage: Stage) -> None:
    await stage.commit_in(P, a=5)
    await stage.commit_in(Q, a=6)
    stage.shard.end_transaction(Q)
    await idle()
    assert await stage.fetch() == {"a-0": 6}
    await stage.take_over()
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 6}
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 6}


async def test_a_plain_commit_after_the_marker_is_never_replaced(stage: Stage) -> None:
    await stage.commit_in(P, a=5)
    stage.shard.end_transaction(P)
    assert await stage.commit(GROUP, a=9) == [NONE]
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 9}
    for _ in range(2):
        await stage.take_over()
        assert await stage.fetch() == {"a-0": 9}


# ---- deletion and expiry


async def test_a_deleted_offset_does_not_return_with_an_open_transaction(stage: Stage) -> None:
    await stage.commit(GROUP, a=1)
    await stage.commit_in(P, a=5, b=6)
    codes = await stage.store.delete(GROUP, [tp("a-0")])
    assert codes == {tp("a-0"): NONE}
    assert stage.pending() == {"b-0"}
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"b-0": 6}
    await stage.take_over()
    assert await stage.fetch() == {"b-0": 6}


async def test_a_deleted_group_does_not_return_with_an_open_transaction(stage: Stage) -> None:
    await stage.commit(GROUP, a=1)
    await stage.commit_in(P, a=5, b=6)
    await stage.commit_in(Q, "other", a=7)
    assert GROUP in await stage.store.group_ids()
    await stage.store.delete(GROUP, None)
    assert await stage.store.group_ids() in ({"other"}, ["other"])
    stage.shard.end_transaction(P)
    stage.shard.end_transaction(Q)
    await until(lambda: not stage.pending("other"))
    assert await stage.fetch() == {}
    assert await stage.fetch("other") == {"a-0": 7}
    await stage.take_over()
    assert await stage.fetch() == {}


async def test_an_offset_deleted_after_the_marker_does_not_return(stage: Stage) -> None:
    await stage.commit_in(P, a=5, b=6)
    stage.shard.end_transaction(P)
    await stage.store.delete(GROUP, [tp("a-0")])
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"b-0": 6}
    await stage.take_over()
    assert await stage.fetch() == {"b-0": 6}


async def test_offsets_of_a_deleted_topic_are_removed_from_open_transactions(stage: Stage) -> None:
    await stage.commit_in(P, a=5, b=6)
    recent = stage.store.watch()
    await stage.commit_in(Q, b=7)
    assert set(await stage.store.all_group_ids()) == {GROUP}
    assert set(await stage.store.names(GROUP)) == {tp("a-0"), tp("b-0")}
    await stage.store.remove_without_recent_commit(GROUP, [tp("a-0"), tp("b-0")], recent)
    assert stage.pending() == {"b-0"}, "the commit after the deletion stays"
    stage.shard.end_transaction(Q)
    await idle()
    assert await stage.fetch() == {"b-0": 7}
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"b-0": 7}


# ---- the writes to ZooKeeper


class Killed(Exception):
    """The process of the coordinator is killed."""


def kill_at(stage: Stage, monkeypatch: pytest.MonkeyPatch, count: int, *, applied: bool) -> None:
    """Let the coordinator's session send only `count` more multis. The next one is applied
    (`applied`) or not, and neither it nor a later one is answered."""
    multi = stage.coord.multi
    left = count

    async def cut(ops: Sequence[CoordOp]) -> list[OpResult]:
        nonlocal left
        left -= 1
        if left >= 0:
            return await multi(ops)
        if left == -1 and applied:
            await multi(ops)
        await asyncio.get_running_loop().create_future()
        raise Killed

    monkeypatch.setattr(stage.coord, "multi", cut)


@pytest.fixture
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write two offsets in a multi."""
    monkeypatch.setattr(transaction_writes, "OFFSETS_AT_A_TIME_MAX", 2)


@pytest.mark.usefixtures("small_multis")
@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("multis", range(5))
async def test_a_new_coordinator_completes_what_a_killed_one_has_begun(
    monkeypatch: pytest.MonkeyPatch, multis: int, applied: bool
) -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=1, b=1, c=1, d=1, e=1, f=1)
    await stage.commit_in(P, a=5, b=5, c=5, d=5, e=5, f=5)
    kill_at(stage, monkeypatch, multis, applied=applied)
    offset = stage.shard.end_transaction(P)
    await idle()
    changed = [key for key in "abcdef" if stage.node(f"{key}-0") == b"5"]
    assert len(changed) == min(2 * (multis + applied), 6)
    is_complete = multis + applied >= 4
    assert (stage.tree.node(MARKER) is not None) is is_complete
    assert bool(stage.pending()) is not (multis == 4), "undecided until ZooKeeper has answered"
    stage.shard.end()
    await stage.take_over()
    assert await stage.fetch() == {f"{key}-0": 5 for key in "abcdef"}
    assert stage.pending() == set()
    found = stage.tree.node(MARKER)
    assert found is not None and found[0] == b"%d" % offset


@pytest.mark.usefixtures("small_multis")
async def test_markers_that_are_applied_are_not_applied_again() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit_in(P, a=5)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    await stage.commit(GROUP, a=9)
    await stage.store.delete(GROUP, [tp("a-0")])
    await stage.take_over()
    assert await stage.fetch() == {}
    await stage.commit_in(P, a=6)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    await stage.edit("a-0", b"3")
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 3}, "an edit by a tool stays, too"


async def test_a_transaction_is_written_by_fenced_multis_of_limited_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    multi, seen = stage.coord.multi, list[Sequence[CoordOp]]()

    async def watched(ops: Sequence[CoordOp]) -> list[OpResult]:
        seen.append(ops)
        return await multi(ops)

    monkeypatch.setattr(stage.coord, "multi", watched)
    for name in ("create", "set", "delete"):
        monkeypatch.delattr(MemoryCoord, name)
    offsets = {TopicPartition("t", n): CommittedOffset(n, 1, "x" * 300) for n in range(2500)}
    assert set((await stage.commit_in_group(GROUP, P, offsets)).values()) == {NONE}
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert len(seen) > 5
    assert all(ops[0] == CheckOp(FENCE, 0) for ops in seen)
    assert max(map(len, seen)) <= 1000
    assert [any(getattr(op, "path", "") == MARKER for op in ops) for ops in seen] == [
        *[False] * (len(seen) - 1),
        True,
    ]
    found = await stage.store.fetch(GROUP, None)
    assert {key: each.offset for key, each in found.items()} == {
        key: each.offset for key, each in offsets.items()
    }


@pytest.mark.parametrize("applied", [True, False])
async def test_transactional_offsets_are_written_again_after_lost_replies(applied: bool) -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit_in(P, a=5, b=6)
    for _ in range(3):
        stage.coord.lose_reply(applied=applied)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5, "b-0": 6}


async def test_offsets_stay_undecided_while_zookeeper_is_silent() -> None:
    stage = await Stage.begin(ZookeeperOffsets, timeout_s=0.05)
    await stage.commit(GROUP, a=1)
    await stage.commit_in(P, a=5)
    stage.coord.suspend()
    stage.shard.end_transaction(P)
    assert await stage.commit_or_code(GROUP, a=9) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.pending() == {"a-0"}
    stage.coord.resume()
    await until(lambda: not stage.pending())
    assert stage.node("a-0") == b"5"


async def test_an_old_coordinator_writes_no_transaction_and_resigns() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit_in(P, a=5)
    old, coord = stage.shard, stage.coord
    coord.suspend()
    old.end_transaction(P)
    await idle()
    await stage.take_over()
    assert stage.node("a-0") == b"5"
    await stage.commit(GROUP, a=9)
    coord.resume()
    await until(lambda: bool(old.reasons))
    assert "version 1, expected 0" in old.reasons[0]
    assert stage.node("a-0") == b"9"


async def test_an_offset_that_zookeeper_refuses_is_kept_for_the_next_load() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.tool.create("/consumers/bad", ephemeral=True)  # cannot have children
    await stage.commit_in(P, "bad", a=5)
    await stage.commit_in(P, a=6)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending() and not stage.pending("bad"))
    assert await stage.fetch() == {"a-0": 6}
    await stage.take_over()
    assert await stage.fetch("bad") == {}
    await stage.tool.delete("/consumers/bad")
    await stage.take_over()
    assert await stage.fetch("bad") == {"a-0": 5}
    await stage.store.delete("bad", [tp("a-0")])
    await stage.take_over()
    assert await stage.fetch("bad") == {}


@pytest.mark.parametrize(
    ("stored", "last_marker", "log_end", "wanted"),
    [
        (None, -1, 0, None),
        (None, -1, 9, None),
        (None, 7, 9, 7),
        (7, 7, 9, None),
        (7, 5, 9, None),
        (5, 7, 9, 7),
        (9, 7, 9, 7),
        (20, 7, 9, 7),
        (20, -1, 9, -1),
        (20, -1, 0, -1),
    ],
)
def test_the_applied_marker_after_loading(
    stored: int | None, last_marker: int, log_end: int, wanted: int | None
) -> None:
    assert AppliedMarker.after_loading(stored, last_marker, log_end) == wanted


async def test_a_shorter_log_does_not_hide_later_markers() -> None:
    """As after an unclean election, or when `__consumer_offsets` was deleted and created again."""
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.tool.create("/pybroker/applied_markers")
    await stage.tool.create(MARKER, b"1000")
    await stage.commit_in(P, a=5)
    await stage.take_over()
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 5}
    found = stage.tree.node(MARKER)
    assert found is not None and int(found[0]) < stage.shard.log.end_offset


# ---- the migration between the storages


async def test_the_first_load_moves_committed_transactions_and_keeps_open_ones() -> None:
    """As after Apache Kafka, or after `offsets.storage=kafka`."""
    stage = await Stage.begin(LoggedOffsets)
    await stage.commit(GROUP, a=1, b=1)
    await stage.commit_in(P, b=5, c=5)
    stage.shard.end_transaction(P)
    await stage.commit_in(Q, a=7, c=7)
    await stage.take_over(ZookeeperOffsets)
    assert await stage.fetch() == {"a-0": 1, "b-0": 5, "c-0": 5}
    assert stage.pending() == {"a-0", "c-0"}
    stage.shard.end_transaction(Q)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 7, "b-0": 5, "c-0": 7}
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 7, "b-0": 5, "c-0": 7}


async def test_a_switch_to_the_log_takes_the_newer_of_record_and_node() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit_in(P, a=5, b=5, c=5)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    await stage.commit(GROUP, a=9)
    await stage.store.delete(GROUP, [tp("b-0")])
    for _ in range(2):
        await stage.take_over(LoggedOffsets)
        assert await stage.fetch() == {"a-0": 9, "c-0": 5}
    await stage.commit_in(P, c=6)
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    await stage.take_over(ZookeeperOffsets)
    assert await stage.fetch() == {"a-0": 9, "c-0": 6}


async def test_a_switch_to_the_log_applies_a_marker_that_is_not_in_zookeeper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=1)
    await stage.commit_in(P, a=5)
    kill_at(stage, monkeypatch, 0, applied=False)
    stage.shard.end_transaction(P)
    await idle()
    stage.shard.end()
    await stage.take_over(LoggedOffsets)
    assert await stage.fetch() == {"a-0": 5}


async def test_a_switch_to_the_log_waits_for_an_open_transaction() -> None:
    stage = await Stage.begin(ZookeeperOffsets)
    await stage.commit(GROUP, a=1, b=2)
    await stage.commit_in(P, a=5)
    with pytest.raises(BrokerError) as caught:
        await stage.take_over(LoggedOffsets)
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    stage.shard.end_transaction(P, is_commit=False)
    await until(lambda: not stage.pending())
    await stage.store.loaded()
    assert await stage.fetch() == {"a-0": 1, "b-0": 2}
    await stage.take_over()
    assert await stage.fetch() == {"a-0": 1, "b-0": 2}


async def test_the_node_is_returned_while_a_transaction_delays_its_import() -> None:
    stage = await Stage.begin(LoggedOffsets)
    await stage.commit_in(P, a=5)
    await stage.edit("a-0", b"3")
    assert await stage.fetch() == {"a-0": 3}
    stage.shard.end_transaction(P)
    await until(lambda: not stage.pending())
    assert await stage.fetch() == {"a-0": 5}
