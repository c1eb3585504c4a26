"""Tests of the writes of ISR changes to ZooKeeper: conditions, lost replies and other writers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence

import pytest

from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.registry import ensure
from pybroker.coordinator.zookeeper.schemas import decode_state
from pybroker.errors import ErrorCode
from pybroker.model import PartitionFacts, TopicPartition
from pybroker.ports import CoordOp, NodeStat, OpResult, Watch
from pybroker.replication.authority import Authority
from unit_tests.idle_loop import idle
from unit_tests.patience import in_time, until
from unit_tests.replication.leading import ALL, LAG_S, Leading
from unit_tests.replication.vocabulary import ME, T0, TOPIC_ID

LATE_S = LAG_S + 1
MANY = [TopicPartition("t", number) for number in range(250)]


async def test_a_lagging_follower_leaves_the_isr_and_the_high_watermark_advances(
    leading: Leading,
) -> None:
    await leading.lead()
    leading.replicas.append()
    leading.fetch(2, 1)
    assert leading.hw == 0
    await leading.pass_time(LATE_S, 2)
    assert leading.hw == 0  # the change is not stored yet
    await leading.until_stored(ME, 2)
    assert leading.hw == 1
    assert (leading.metrics.isr_shrinks, leading.metrics.isr_expands) == (1, 0)


async def test_a_follower_at_the_log_end_stays_in_sync_without_fetching(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    leading.fetch(2, 1)
    leading.fetch(3, 1)
    await leading.look()
    leading.clock.advance(100 * LAG_S)
    await leading.look()
    assert leading.node.isr == ALL
    leading.replicas.append()
    await leading.pass_time(0)
    await leading.until_stored(ME)


async def test_a_follower_that_caught_up_joins_the_isr(leading: Leading) -> None:
    await leading.lead(isr=(ME,))
    leading.replicas.append()
    leading.fetch(2, 0)
    assert leading.replicas.manager.isr_changes == {}
    leading.fetch(2, 1)
    await leading.until_stored(ME, 2)
    assert (leading.metrics.isr_shrinks, leading.metrics.isr_expands) == (0, 1)
    leading.replicas.append()
    assert leading.hw == 1


async def test_keys_of_later_versions_are_kept(leading: Leading) -> None:
    await leading.lead(more=b'{"leader_recovery_state":1}')
    await leading.pass_time(LATE_S, 2)
    await leading.until_stored(ME, 2)
    found = leading.tree.node(paths.partition_state(T0))
    assert found is not None
    assert json.loads(found[0]) == {
        "controller_epoch": 1,
        "leader": ME,
        "version": 1,
        "leader_epoch": 0,
        "isr": [ME, 2],
        "leader_recovery_state": 1,
    }


async def test_a_replica_that_leaves_a_then_too_small_isr_stays_eligible(
    strict: Leading,
) -> None:
    await strict.lead(isr=(ME, 2))
    strict.replicas.append()
    strict.fetch(2, 1)
    assert strict.hw == 1
    strict.replicas.append()
    await strict.pass_time(LATE_S)
    await strict.until_stored(ME)
    eligible = strict.node.eligible
    assert eligible == (2,)
    assert strict.hw == 1
    strict.fetch(3, 2)
    await strict.until_stored(ME, 3)
    assert strict.node.eligible == ()
    assert strict.hw == 2


async def test_lowering_min_insync_replicas_ends_eligibility_before_the_high_watermark_advances(
    strict: Leading,
) -> None:
    await strict.lead(isr=(ME,), eligible=(2,))
    strict.replicas.append()
    log = strict.partition().log
    log.set_config(type(log.config)(min_insync_replicas=1))
    strict.replicas.append()
    assert strict.hw == 0
    await strict.changes.review_all()
    assert strict.hw == 0
    await until(lambda: strict.node.eligible == () and strict.hw == 2)
    strict.replicas.append()
    assert strict.hw == 3


@pytest.mark.parametrize("applied", [True, False])
async def test_a_lost_reply_proves_nothing(leading: Leading, applied: bool) -> None:
    await leading.lead(isr=(ME, 2))
    leading.replicas.append()
    leading.fetch(2, 1)
    leading.replicas.append()
    leading.clock.advance(LATE_S)
    write = leading.coord.multi

    async def lost(ops: Sequence[CoordOp]) -> list[OpResult]:
        leading.coord.multi = write  # type: ignore[method-assign]
        leading.coord.lose_reply(applied=applied)
        return await write(ops)

    leading.coord.multi = lost  # type: ignore[method-assign]
    leading.coord.suspend()
    leading.coord.resume()
    await leading.changes.review_all()
    await until(lambda: leading.coord.multi == write)
    assert (leading.believed, leading.hw) == ((ME, 2), 1)
    leading.coord.suspend()
    await idle()
    assert (leading.believed, leading.hw) == ((ME, 2), 1)
    leading.coord.resume()
    await leading.until_stored(ME)
    assert leading.hw == 2
    assert leading.metrics.isr_update_failures == 0


async def test_the_high_watermark_waits_for_a_join_of_unknown_outcome(leading: Leading) -> None:
    await leading.lead(isr=(ME,))
    leading.coord.suspend()
    leading.fetch(2, 0)
    leading.replicas.append()
    assert (leading.believed, leading.hw) == ((ME,), 0)
    leading.fetch(2, 1)
    assert leading.hw == 1


async def test_a_new_session_retries_the_pending_change(leading: Leading) -> None:
    await leading.lead(isr=(ME,))
    leading.coord.suspend()
    leading.fetch(2, 0)
    await idle()
    leading.coord.expire()
    leading.coord.resume()
    await until(lambda: leading.coord.session_id)
    leading.replicas.manager.broker_epoch = 5
    await leading.tell_again(broker_epoch=5)
    await leading.until_stored(ME, 2)


async def test_a_broker_that_registered_again_does_not_join(leading: Leading) -> None:
    await leading.lead(isr=(ME,))
    leading.coord.suspend()
    leading.fetch(2, 0, incarnation=0)
    leading.coord.resume()
    await leading.register(2)
    await until(lambda: leading.metrics.isr_update_failures == 1)
    assert leading.node.isr == leading.believed == (ME,)
    leading.fetch(2, 0, incarnation=0)  # with the old incarnation
    assert leading.replicas.manager.isr_changes == {}
    leading.replicas.append()
    assert leading.hw == 1  # the high watermark does not wait for broker 2
    leading.fetch(2, 1, incarnation=1)
    await leading.until_stored(ME, 2)


async def test_a_broker_that_is_not_registered_does_not_join(leading: Leading) -> None:
    """A broker without a ZooKeeper session may still fetch, even from a recreated topic. The
    controller would not see its failure."""
    await leading.lead(isr=(ME,))
    await leading.coord.delete(paths.broker(2))
    leading.fetch(2, 0)
    await until(lambda: leading.metrics.isr_update_failures == 1)
    assert leading.node.isr == leading.believed == (ME,)
    await ensure(leading.coord, paths.broker(2))
    incarnation = await leading.register(2)
    leading.fetch(2, 0, incarnation=incarnation)
    await leading.until_stored(ME, 2)


async def test_a_fetch_without_an_incarnation_does_not_expand_the_isr(leading: Leading) -> None:
    await leading.lead(isr=(ME,))
    leading.fetch(2, 0, incarnation=-1)
    assert leading.replicas.manager.isr_changes == {}


async def test_a_change_by_another_process_in_this_epoch_is_adopted(leading: Leading) -> None:
    """For example, a broker removes itself from the ISR after a power loss."""
    await leading.lead()
    leading.replicas.append()
    leading.fetch(2, 1)
    await leading.meddle(isr=(ME, 2))
    await leading.pass_time(LATE_S, 2)
    await until(lambda: leading.believed == (ME, 2))
    assert leading.hw == 1
    leading.replicas.append()
    await leading.pass_time(LATE_S)
    await leading.until_stored(ME)


async def test_a_later_leader_epoch_ends_the_isr_changes(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    leading.fetch(2, 1)
    await leading.meddle(leader=2, leader_epoch=1, isr=(2, ME))
    await leading.pass_time(LATE_S, 2)
    await until(lambda: leading.metrics.isr_update_failures == 1)
    assert leading.node.isr == (2, ME)
    assert (leading.believed, leading.hw) == (ALL, 0)
    assert leading.partition().granted is Authority.READ
    await leading.pass_time(LATE_S)
    assert leading.replicas.manager.isr_changes == {}
    await leading.lead(epoch=2)
    assert leading.partition().granted is Authority.ALL
    await leading.pass_time(LATE_S, 2)
    await leading.until_stored(ME, 2)


async def test_a_waiting_produce_ends_when_the_leader_is_replaced(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    produces = leading.replicas.manager.produces
    waiting = asyncio.ensure_future(produces.wait([T0], missing_bytes=1, timeout_s=math.inf))
    await until(lambda: len(produces))
    await leading.meddle(leader=2, leader_epoch=1, isr=(2, ME))
    await leading.pass_time(LATE_S, 2)
    await until(lambda: leading.partition().granted is Authority.READ)
    await until(waiting.done)


async def test_a_deleted_topic_ends_the_isr_changes(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    await leading.coord.delete(paths.partition_state(T0))
    await leading.pass_time(LATE_S)
    await until(lambda: leading.metrics.isr_update_failures == 1)


async def test_a_malformed_state_node_ends_the_isr_changes(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    await leading.coord.set(paths.partition_state(T0), b"{")
    await leading.pass_time(LATE_S)
    await until(lambda: leading.metrics.isr_update_failures == 1)


async def test_a_repeated_command_keeps_the_followers_progress(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    leading.fetch(2, 1)
    await leading.pass_time(LATE_S, 2)
    await leading.until_stored(ME, 2)
    await leading.tell_again()
    await leading.meddle(isr=(ME, 2, 3))
    leading.replicas.append()
    await leading.tell_again()
    assert leading.believed == ALL
    leading.fetch(2, 2)
    assert leading.hw == 1
    leading.fetch(3, 2)
    assert leading.hw == 2


async def test_a_refused_change_does_not_delay_other_partitions(leading: Leading) -> None:
    keys = MANY[:5]
    await leading.lead(*keys)
    for key in keys:
        leading.replicas.append(key=key)
    await leading.register(2)
    leading.clock.advance(LATE_S)
    await leading.changes.review_all()
    read = leading.coord.multi

    async def first_meddled(ops: Sequence[CoordOp]) -> list[OpResult]:
        leading.coord.multi = read  # type: ignore[method-assign]
        await leading.meddle(keys[2], leader=3, leader_epoch=1)
        return await read(ops)

    leading.coord.multi = first_meddled  # type: ignore[method-assign]
    others = [key for key in keys if key != keys[2]]
    await leading.until_stored(ME, keys=others)
    await until(lambda: leading.metrics.isr_update_failures == 1)
    assert leading.state_of(keys[2]).isr == ALL


async def test_a_failed_check_does_not_delay_other_partitions(strict: Leading) -> None:
    """The topic was recreated, and this broker has not received the controller's command. The new
    state node has a lower version than the known one."""
    keys, bad = MANY[:5], MANY[2]
    await strict.lead(*keys, isr=(ME,), eligible=(2,))
    await strict.lead(*keys, isr=(ME,), eligible=(2,), epoch=1)
    path = paths.partition_state(bad)
    data, _ = await strict.coord.get(path)
    await strict.coord.delete(path)
    await ensure(strict.coord, path)
    await strict.coord.set(path, data)
    now = strict.clock.monotonic() + LATE_S
    await strict.pass_time(LATE_S)
    others = [strict.partition(key) for key in keys if key != bad]
    await until(lambda: all(each.certainly_leads(now, LAG_S) for each in others))
    assert not strict.partition(bad).certainly_leads(now, LAG_S)


async def test_a_single_isr_change_is_notified_at_once(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    await leading.pass_time(LATE_S)
    await leading.until_stored(ME)
    await until(lambda: leading.told() == [{T0}])


async def test_a_waiting_produce_ends_when_the_isr_becomes_too_small(strict: Leading) -> None:
    await strict.lead(isr=(ME, 2))
    strict.replicas.append()
    waiting = asyncio.create_task(
        strict.replicas.manager.produces.wait([T0], missing_bytes=1, timeout_s=3600)
    )
    await strict.pass_time(LATE_S)
    await strict.until_stored(ME)
    await in_time(waiting)
    assert not strict.partition().may_have_enough_replicas()
    assert strict.replicas.refusal() is ErrorCode.NONE


async def test_a_change_is_retried_after_an_unexpected_exception(
    leading: Leading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    multi, failures = leading.coord.multi, [ZeroDivisionError()]

    async def fail_once(ops: Sequence[CoordOp]) -> list[OpResult]:
        if failures:
            raise failures.pop()
        return await multi(ops)

    monkeypatch.setattr(leading.coord, "multi", fail_once)
    await leading.lead()
    leading.replicas.append()
    await leading.pass_time(LATE_S)
    await leading.until_stored(ME)
    assert [each.message for each in caplog.records if each.exc_info] == [
        "isr changes failed, trying again partitions=1"
    ]


async def test_the_leader_finds_that_a_restarted_follower_left_the_isr(leading: Leading) -> None:
    """After a power loss a broker removes itself from the stored ISR, and the leader may not be
    notified. Without the check the leader would treat the broker as in sync, and never add it
    again."""
    await leading.lead()
    for broker in (2, 3):
        leading.fetch(broker, 0)
    await leading.look()
    await leading.meddle(isr=(ME, 2))
    leading.fetch(3, 0, incarnation=-1)  # without an incarnation, as before its first command
    await leading.pass_time(0)
    assert leading.believed == ALL
    leading.fetch(3, 0, incarnation=await leading.register(3))
    await leading.pass_time(0)
    await until(lambda: leading.believed == (ME, 2))
    leading.fetch(3, 0, incarnation=1)
    await leading.until_stored(ME, 2, 3)


async def test_a_leader_whose_follower_stops_fetching_finds_that_it_was_replaced(
    leading: Leading,
) -> None:
    """The controller does not reach this leader. Without appends no follower lags, so the leader
    writes no ISR change that would fail."""
    await leading.lead()
    for broker in (2, 3):
        leading.fetch(broker, 0)
    await leading.look()
    partition = leading.partition()
    for _ in range(20):
        await leading.pass_time(1, 2, 3)
        assert leading.replicas.manager.isr_changes == {}
    await leading.meddle(leader=2, leader_epoch=1)
    await leading.pass_time(LAG_S / 2, 3)
    assert partition.granted is Authority.ALL
    await until(lambda: partition.granted is Authority.READ)
    assert partition.certainly_leads(leading.clock.monotonic(), LAG_S)


async def test_a_leader_without_zookeeper_is_not_certain_to_lead(leading: Leading) -> None:
    await leading.lead()
    leading.coord.suspend()
    partition = leading.partition()
    for seconds, is_certain in ((LAG_S, True), (0.1, False)):
        await leading.pass_time(seconds, 3)
        assert partition.certainly_leads(leading.clock.monotonic(), LAG_S) is is_certain
    leading.coord.resume()
    await until(lambda: partition.certainly_leads(leading.clock.monotonic(), LAG_S))


async def test_a_restarted_follower_in_sync_causes_no_write(leading: Leading) -> None:
    await leading.lead()
    leading.replicas.append()
    for broker in (2, 3):
        leading.fetch(broker, 1)
    for incarnation in (0, 1):
        leading.fetch(3, 1, incarnation=incarnation)
        version = leading.version
        await leading.look()
        assert leading.version == version
    before = leading.tree.zxid
    leading.replicas.append()
    leading.fetch(2, 2)
    await leading.pass_time(LATE_S, 2)
    await leading.until_stored(ME, 2)
    assert leading.tree.zxid <= before + 3  # the shrink of the ISR, and its notification


async def test_the_leader_finds_that_a_follower_left_before_the_epoch(leading: Leading) -> None:
    """The controller had read the older state, so its command did not contain the change."""
    await leading.lead()
    await leading.meddle(isr=(ME, 2))
    leading.fetch(2, 0)
    leading.fetch(3, 0, incarnation=await leading.register(3))
    await leading.look()
    assert leading.believed == (ME, 2)
    leading.fetch(3, 0, incarnation=1)
    await leading.until_stored(ME, 2, 3)


async def test_a_leader_in_a_later_epoch_checks_only_for_new_incarnations(leading: Leading) -> None:
    await leading.lead()
    for broker in (2, 3):
        leading.fetch(broker, 0)
    await leading.look()
    await leading.lead(isr=(ME, 2), epoch=1)
    leading.fetch(2, 0)
    await leading.pass_time(0)
    assert leading.replicas.manager.isr_changes == {}
    await leading.lead(isr=(ME, 2), epoch=2)
    leading.fetch(2, 0, incarnation=await leading.register(2))
    await leading.lead(isr=(ME, 2), epoch=3)
    leading.fetch(2, 0, incarnation=1)
    await leading.look()


async def test_a_read_from_a_lagging_zookeeper_server_proves_nothing(
    leading: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leading.lead()
    path = paths.partition_state(T0)
    old = await leading.coord.get(path)
    await leading.meddle(isr=(ME, 2))
    get, answers = leading.coord.get, [old, old]

    async def late(path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        return answers.pop() if answers else await get(path, watch)

    monkeypatch.setattr(leading.coord, "get", late)
    monkeypatch.setattr("pybroker.replication.isr_changes._RETRY_S", 0)
    for broker in (2, 3):
        leading.fetch(broker, 0)
    await leading.look()
    assert (leading.believed, answers) == ((ME, 2), [])


async def test_an_older_state_from_the_controller_does_not_replace_the_check(
    leading: Leading,
) -> None:
    await leading.lead()
    for broker in (2, 3):
        leading.fetch(broker, 0)
    await leading.look()
    await leading.meddle(controller_epoch=2)
    path = paths.partition_state(T0)
    data, stat = await leading.coord.get(path)
    state = decode_state(path, data)
    await leading.meddle(isr=(ME, 2))
    leading.fetch(3, 0, incarnation=await leading.register(3))
    leading.coord.suspend()
    await leading.pass_time(0)
    told = PartitionFacts(T0, TOPIC_ID, state, stat.version, ALL)
    assert await leading.replicas.told(told) == [0]
    leading.coord.resume()
    await leading.look()
    await leading.until_stored(ME, 2)
