"""Tests of the offsets of transactions in both stores: pending until the marker, deleted, and
migrated."""

from __future__ import annotations

import asyncio

import pytest

from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.offsets.log_store import LoggedOffsets
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.errors import BrokerError, ErrorCode
from unit_tests.coordinator.offsets.offset_stage import GROUP, Stage, kill_at, tp
from unit_tests.idle_loop import idle
from unit_tests.patience import until

NONE = ErrorCode.NONE
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
    """The marker of the first transaction is not committed yet when the second transaction
    begins."""
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


# ---- the migration between the storages


async def test_the_first_load_moves_committed_transactions_and_keeps_open_ones() -> None:
    """The log was written by Apache Kafka, or by pybroker with `offsets.storage=kafka`."""
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
