"""Tests of the writes of a transaction's offsets to ZooKeeper: all offsets are written, in the
order of the log, even if the coordinator changes between two multis."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets import transaction_writes
from pybroker.coordinator.offsets.applied_marker import AppliedMarker
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import CheckOp, CoordOp, OpResult
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.offsets.offset_stage import FENCE, GROUP, Stage, kill_at, tp
from unit_tests.idle_loop import idle
from unit_tests.patience import until

NONE = ErrorCode.NONE
MARKER = paths.applied_marker(0)
P = 7
"""A producer id."""


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
