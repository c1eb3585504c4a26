"""Tests that each planted bug removes its rule from the real code, for the duration of a run."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import pytest

from pybroker.coordinator.controller.writes import ControllerMoved, FencedWriter, Write
from pybroker.coordinator.groups import heartbeat
from pybroker.coordinator.groups.calls import Identity
from pybroker.coordinator.groups.group import from_record
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import RecordedGroup, RecordedMember
from pybroker.coordinator.offsets.zookeeper_store import ZookeeperOffsets
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.registry import create_parents, ensure
from pybroker.coordinator.zookeeper.schemas import TopicAssignment, encode_topic
from pybroker.errors import ErrorCode, NoNode
from pybroker.model import TopicPartition
from pybroker.ports import CreateOp
from pybroker.records.batch import read_header
from pybroker.records.builder import BatchBuilder
from pybroker.storage.manager import LogManager
from pybroker.storage.moves import ReplicaMove
from pybroker.testing.simulation.memory_tree import MemoryTree
from pybroker.wire.api import ApiKey
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.coordinator.offsets.offset_stage import Stage as OffsetStage
from unit_tests.handlers.bench import BROKER_ID, NOW_MS, Bench, batch, code, produce_request
from unit_tests.handlers.test_produce import shared
from unit_tests.handlers.test_replica_fetch import follow, lead
from unit_tests.patience import until
from unit_tests.replication.copying import Group
from unit_tests.replication.leading import LAG_S, Leading
from unit_tests.replication.test_copying import behind, failed
from unit_tests.replication.test_leader_state import Stage
from unit_tests.replication.test_truncation_receipts import killed_before_a_checkpoint
from unit_tests.replication.vocabulary import ME, T0, Replicas, facts
from unit_tests.simulation.mutants import BY_NAME, PLANTED, planted
from unit_tests.storage.test_manager import A, Host, existing, fill, make

pytestmark = pytest.mark.mutants


async def epochs_decide_where_a_log_is_cut(home: Path) -> bool:
    group = Group(home)
    await group.lead(1, 0)
    group[1].append(b"first")
    await group.copied(1)
    group.high_watermark_max = 1
    group[1].append(b"second")
    await group.until(lambda: group[1].partition().high_watermark == 2)
    group.cut.add((2, 1))
    await group.lead(1, 1)
    end = group[2].partition().log.log_end_offset
    await group.close()
    return end == 2


async def a_commit_of_an_earlier_generation_is_refused(home: Path) -> bool:
    member = RecordedMember("m", "client", "host", 1000, 1000, b"", b"")
    group = from_record("g", RecordedGroup("consumer", 3, "range", "m", members=(member,)), 0.0)
    codes = {
        check(group, Identity("m"), generation, 0.0)
        for check in (heartbeat.heartbeat, heartbeat.commit)
        for generation in (2, 4)
    }
    return codes == {ErrorCode.ILLEGAL_GENERATION}


async def a_fetch_of_an_earlier_epoch_is_refused(home: Path) -> bool:
    async with Bench(home) as bench:
        await bench.create("t", 2)
        await lead(bench)
        answer = await follow(bench, 0, current_leader_epoch=0)
        return code(answer) is ErrorCode.FENCED_LEADER_EPOCH


async def what_another_has_stored_is_not_overwritten(home: Path) -> bool:
    scene = Leading(home)
    await scene.start()
    await scene.lead()
    scene.replicas.append()
    scene.fetch(2, 1)
    await scene.meddle(leader=2, leader_epoch=1, isr=(2, ME))
    await scene.pass_time(LAG_S + 1, 2)
    await until(lambda: scene.metrics.isr_update_failures or scene.metrics.isr_shrinks)
    leader = scene.node.leader
    await scene.stop()
    return leader == 2


async def acks_all_waits_for_the_isr(home: Path) -> bool:
    async with Bench(home) as bench:
        await bench.create("t", 2)
        await bench.app.replicas.leader_and_isr(shared(bench, (BROKER_ID, 2), 1))
        request = produce_request("t", {0: batch()}, timeout_ms=60_000)
        task = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
        waits = bench.app.replicas.produces
        await until(lambda: len(waits) or task.done())
        was_done = task.done()
        if was_done:
            (topic,) = task.result().responses
            assert [code(each) for each in topic.partition_responses] == [ErrorCode.NONE]
        task.cancel()
        await asyncio.wait([task])
        return not was_done


async def who_joins_has_all_from_before_the_epoch(_home: Path) -> bool:
    stage = Stage((ME, 2), required=2, end=10, hw=0)
    stage.do(0, "fetch", 3, 9)
    return stage.leader.pending is None


async def who_may_have_joined_is_waited_for(_home: Path) -> bool:
    stage = Stage((ME,), required=1, end=0, hw=0)
    stage.do(0, "fetch", 2, 0)
    assert stage.leader.pending is not None
    stage.do(0, "append", 10)
    return stage.hw == 0


async def who_was_started_anew_does_not_join(home: Path) -> bool:
    scene = Leading(home)
    await scene.start()
    await scene.lead(isr=(ME,))
    scene.coord.suspend()
    scene.fetch(2, 0, incarnation=0)
    scene.coord.resume()
    await scene.register(2)
    await until(lambda: scene.metrics.isr_update_failures or scene.metrics.isr_expands)
    isr = scene.node.isr
    await scene.stop()
    return isr == (ME,)


async def what_is_committed_is_kept(home: Path) -> bool:
    group = Group(home)
    await behind(group)
    log = group[1].partition().log
    await group.until(lambda: failed(group) or log.log_end_offset < 2)
    was_kept = failed(group)
    await group.close()
    return was_kept


async def what_was_acknowledged_after_a_checkpoint_is_named(home: Path) -> bool:
    group = Group(home)
    group.receipts[1].last_epoch = 2
    await killed_before_a_checkpoint(group)
    log = group[1].partition().log
    await group.until(lambda: log.log_end_offset < 2)
    named = group.receipts[1].given_up
    await group.close()
    return named == [(T0, 1, 2)]


async def a_new_leader_knows_the_producers(home: Path) -> bool:
    replicas = Replicas(home)
    await replicas.told(facts(leader=2, isr=(ME, 2)))
    builder = BatchBuilder()
    builder.append(NOW_MS, None, b"value")
    data = bytearray(builder.build(producer_id=7, producer_epoch=0, base_sequence=0))
    replicas.partition().append_replicated(
        data, leader_high_watermark=1, leader_log_start=0, now_ms=NOW_MS
    )
    await replicas.told(facts(epoch=1, isr=(ME, 2)))
    result = replicas.partition().append(memoryview(data), read_header(data), acks=1, now_ms=NOW_MS)
    replicas.logs.shutdown({})
    return result.first_offset == 0


async def a_deposed_controller_writes_nothing(_home: Path) -> bool:
    coord = MemoryCoord(MemoryTree(), name="controller")
    await coord.start()
    await coord.create(paths.CONTROLLER_EPOCH, b"1")
    await coord.set(paths.CONTROLLER_EPOCH, b"2")
    try:
        outcomes = await FencedWriter(coord, 0).write_all([Write((CreateOp("/a"),))])
    except ControllerMoved:
        return True
    finally:
        await coord.close()
    assert outcomes == [["/a"]]
    return False


async def what_a_deposed_coordinator_asks_for_is_refused(_home: Path) -> bool:
    stage = await OffsetStage.begin(ZookeeperOffsets)
    await stage.commit("g", t=5)
    old = stage.store
    await stage.take_over()
    await stage.commit("g", t=8)
    late = {TopicPartition("t", 0): CommittedOffset(6)}
    codes = await old.commit("g", late)
    assert stage.node("t-0") in (b"6", b"8")
    return [*codes.values()] == [ErrorCode.NOT_COORDINATOR] and stage.node("t-0") == b"8"


async def a_write_for_a_deleted_topic_is_refused(_home: Path) -> bool:
    coord = MemoryCoord(MemoryTree())
    await coord.start()
    try:
        await create_parents(coord)
        deleted, recreated = uuid.UUID(int=1), uuid.UUID(int=2)
        await coord.create(paths.topic("t"), encode_topic(TopicAssignment({0: (1,)}, recreated)))
        await coord.create(paths.topic_id(recreated))
        write = CreateOp(paths.loss(TopicPartition("t", 0)), b"")
        await ensure(coord, paths.parent(write.path))
        with contextlib.suppress(NoNode):
            await topic_nodes.apply(coord, ("t", deleted), write)
            return False
        await topic_nodes.apply(coord, ("t", recreated), write)
    finally:
        await coord.close()
    return True


def between_two_directories(home: Path) -> tuple[Host, LogManager, ReplicaMove]:
    """Return a log of three records and the incomplete copy of a move that has taken the log's
    name.
    """
    host = Host(home)
    host.directories = [str(home / name) for name in ("data", "more")]
    manager = host.start()
    make(manager, count=3)
    move = manager.moves.begin(A, host.directories[1])
    assert move is not None
    assert move.copy()
    move.rename()
    return host, manager, move


async def a_copy_takes_over_with_all_records(home: Path) -> bool:
    host, manager, move = between_two_directories(home)
    fill(existing(manager), 2)
    assert manager.moves.swap(move)
    end = existing(manager).log_end_offset
    host.release()
    return end == 5


async def the_longer_log_is_kept(home: Path) -> bool:
    host, manager, _ = between_two_directories(home)
    fill(existing(manager), 2)
    end = existing(host.kill()).log_end_offset
    host.release()
    return end == 5


RULES: Final[dict[str, Callable[[Path], Awaitable[bool]]]] = {
    "no-epoch-truncation": epochs_decide_where_a_log_is_cut,
    "no-fetch-fencing": a_fetch_of_an_earlier_epoch_is_refused,
    "isr-without-compare-and-set": what_another_has_stored_is_not_overwritten,
    "ack-before-high-watermark": acks_all_waits_for_the_isr,
    "join-without-epoch-start": who_joins_has_all_from_before_the_epoch,
    "pending-isr-ignored": who_may_have_joined_is_waited_for,
    "stale-incarnation-joins": who_was_started_anew_does_not_join,
    "truncation-below-high-watermark": what_is_committed_is_kept,
    "loss-above-high-watermark-untold": what_was_acknowledged_after_a_checkpoint_is_named,
    "duplicate-after-fail-over": a_new_leader_knows_the_producers,
    "controller-without-epoch-check": a_deposed_controller_writes_nothing,
    "old-coordinator-commits": what_a_deposed_coordinator_asks_for_is_refused,
    "earlier-generation-commits": a_commit_of_an_earlier_generation_is_refused,
    "offset-write-without-fence": what_a_deposed_coordinator_asks_for_is_refused,
    "write-to-recreated-topic": a_write_for_a_deleted_topic_is_refused,
    "copy-takes-over-early": a_copy_takes_over_with_all_records,
    "copy-always-kept": the_longer_log_is_kept,
}


IN_RUNS: Final = frozenset(
    {
        "markers-before-decision",
        "no-epoch-fence",
        "stable-offset-past-open-transaction",
        "offsets-before-marker",
        "applied-before-written",
        "no-verification",
        "completion-forgotten",
        "tombstone-dropped-early",
        "uncommitted-record-replaces",
        "aborted-record-replaces",
        "cleaned-past-open-transaction",
        "cleaned-before-swap",
        "retention-past-high-watermark",
        "commit-before-delivery",
    }
)
"""The bugs of transactions, cleaning and retention. Their rules need leaders and clients, so only
the runs of test_mutants.py try them: with the bug a run breaks a rule, without it the same run
breaks none.
"""


def test_every_planted_bug_is_tried() -> None:
    assert RULES.keys() | IN_RUNS == BY_NAME.keys()
    assert not RULES.keys() & IN_RUNS
    assert len(PLANTED) == len(BY_NAME), "each name is used once"


@pytest.mark.parametrize("name", RULES)
async def test_a_planted_bug_removes_its_rule_and_restores_it(name: str, tmp_path: Path) -> None:
    with planted(name):
        assert not await RULES[name](tmp_path / "without")
    assert await RULES[name](tmp_path / "with")


def test_the_original_code_is_restored_after_a_failure() -> None:
    before = [each.owner.__dict__[each.name] for bug in PLANTED for each in bug.replacements]
    for bug in PLANTED:
        with pytest.raises(ZeroDivisionError), planted(bug.name):
            _ = 1 // 0
    after = [each.owner.__dict__[each.name] for bug in PLANTED for each in bug.replacements]
    assert all(was is now for was, now in zip(before, after, strict=True))


def test_an_empty_name_plants_no_bug_and_an_unknown_name_is_refused() -> None:
    with planted(""):
        pass
    with pytest.raises(KeyError), planted("no-such-bug"):
        pass
