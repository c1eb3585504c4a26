"""Tests that followers copy their leaders' logs with the same bytes and leader epochs, despite
failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.errors import ErrorCode
from pybroker.ports import FetchedPartition
from unit_tests.idle_loop import idle
from unit_tests.replication.copying import Group
from unit_tests.replication.vocabulary import T0, T1


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    await group.close()


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path, 3)
    yield group
    await group.close()


def same(group: Group, *members: int) -> None:
    first, *others = members
    for other in others:
        assert group[other].bytes_of() == group[first].bytes_of() != b""
        assert group[other].epochs() == group[first].epochs()


async def test_a_follower_copies_the_leaders_records(pair: Group) -> None:
    await pair.lead(1, 0)
    for value in (b"a", b"b", b"c"):
        pair[1].append(value)
    await pair.copied(1)
    same(pair, 1, 2)
    assert pair[2].epochs() == [(0, 0)]


async def test_the_high_watermark_of_the_leader_waits_for_the_follower(pair: Group) -> None:
    pair.cut.add((2, 1))
    await pair.lead(1, 0)
    pair[1].append(b"a")
    assert pair[1].partition().high_watermark == 0
    pair.cut.clear()
    await pair.copied(1)


async def test_an_added_partition_does_not_wait_for_the_end_of_a_waiting_fetch(pair: Group) -> None:
    pair.options = replace(pair.options, replica_fetch_wait_max_ms=3_600_000)
    await pair.reopen(2)
    await pair.lead(1, 0)
    await pair.until(lambda: pair.questions(2, T0) > 0)
    await pair.lead(1, 0, keys=[T1])
    await pair.until(lambda: pair.questions(2, T1) > 0)
    assert T0 in pair.asked[-1][1]


async def test_a_repeated_command_does_not_restart_the_copying(pair: Group) -> None:
    await pair.lead(1, 0)
    await pair.copied(1)
    (before,) = pair[2].fetchers.copies.values()
    await pair.lead(1, 0)
    assert list(pair[2].fetchers.copies.values()) == [before]


async def test_a_stopping_broker_does_not_rejoin_an_isr_that_it_has_left(trio: Group) -> None:
    await trio.lead(3, 0, keys=[T0, T1])
    trio[3].manager.leadership_yield.leaves = True
    await trio.lead(1, 1, keys=[T0], isr=(1, 2))
    await trio.lead(1, 1, keys=[T1])
    assert list(trio[3].fetchers.copies) == [T1]
    assert set(trio[2].fetchers.copies) == {T0, T1}


# diverging logs


async def test_a_follower_that_lags_with_its_high_watermark_loses_nothing(pair: Group) -> None:
    """The first scenario of KIP-101: a truncation to the high watermark lost committed records."""
    await pair.lead(1, 0)
    pair[1].append(b"first")
    await pair.copied(1)
    pair.high_watermark_max = 1
    pair[1].append(b"second")
    await pair.until(lambda: pair[1].partition().high_watermark == 2)
    assert pair[2].partition().high_watermark == 1
    await pair.reopen(2, clean=False)
    await pair[1].close(clean=False)
    await pair.lead(2, 1, isr=(2,))
    assert pair[2].partition().high_watermark == 2
    pair.high_watermark_max = None
    pair[2].append(b"third")
    await pair.reopen(1)
    await pair.lead(2, 1, isr=(2,), to=[1])
    await pair.copied(2)
    same(pair, 1, 2)


async def test_two_logs_do_not_differ_at_one_offset(pair: Group) -> None:
    """The second scenario of KIP-101: both brokers fail, and the one with fewer records restarts
    first."""
    await pair.lead(1, 0)
    pair[1].append(b"first")
    await pair.copied(1)
    pair.cut.add((2, 1))
    await pair.until(lambda: pair.refused(2))
    pair[1].append(b"only here")
    await pair[1].close(clean=False)
    await pair.lead(2, 1, isr=(2,))
    pair[2].append(b"second")
    pair.cut.clear()
    await pair.reopen(1)
    await pair.lead(2, 1, isr=(2,), to=[1])
    await pair.copied(2)
    same(pair, 1, 2)
    assert b"only here" not in pair[1].bytes_of()
    assert pair[1].epochs() == [(0, 0), (1, 1)]


async def test_a_follower_truncates_if_its_leader_lacks_its_last_epoch(trio: Group) -> None:
    """KIP-279: after fast changes of leaders each log has epochs that the other lacks."""
    await trio.lead(1, 0)
    trio[1].append(b"common")
    await trio.copied(1)
    trio.cut = {(follower, leader) for follower in (1, 2, 3) for leader in (1, 2, 3)}
    for leader, epoch, count in ((2, 1, 3), (1, 2, 2), (2, 3, 1), (1, 4, 4), (3, 5, 1), (2, 6, 2)):
        await trio.lead(leader, epoch, isr=(leader,), to=[leader])
        for number in range(count):
            trio[leader].append(b"%d in %d" % (number, epoch))
    assert [len(trio[each].epochs()) for each in (1, 2, 3)] == [3, 4, 2]
    trio.forget_high_watermarks()
    trio.cut.clear()
    await trio.lead(1, 7)
    trio[1].append(b"last")
    await trio.copied(1)
    same(trio, 1, 2, 3)


async def test_an_epoch_without_records_causes_no_endless_truncation(pair: Group) -> None:
    await pair.lead(1, 0)
    pair[1].append(b"a")
    await pair.copied(1)
    pair.cut.add((1, 2))
    await pair.lead(2, 1, isr=(1, 2))
    assert pair[2].epochs() == [(0, 0), (1, 1)]
    await pair.lead(1, 2)
    pair[1].append(b"b")
    await pair.copied(1)
    same(pair, 1, 2)
    assert pair[2].epochs() == [(0, 0), (2, 1)]


# committed records


async def behind(pair: Group) -> None:
    """Broker 1 has two committed records. Broker 2, the leader now, has one of them."""
    await pair.lead(1, 0)
    pair[1].append(b"first")
    await pair.copied(1)
    pair.cut.add((2, 1))
    await pair.until(lambda: pair.refused(2))
    await pair.lead(1, 1, isr=(1,))
    pair[1].append(b"committed")
    assert pair[1].partition().high_watermark == 2
    await pair.lead(2, 2, isr=(2,))


def failed(pair: Group) -> bool:
    return T0 in pair[1].manager.not_opened


async def test_committed_records_are_not_truncated(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    await behind(pair)
    await pair.until(lambda: failed(pair))
    assert pair[1].refusal() is ErrorCode.KAFKA_STORAGE_ERROR
    log = pair[1].logs.log(T0)
    assert log is not None and log.log_end_offset == 2
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "t-0" in line.message and "below the high watermark 2" in line.message
    assert "truncation to offset 1" in line.message and str(pair[1].home) in line.message
    assert not pair[1].fetchers.copies


async def test_committed_records_are_not_truncated_at_the_next_command_either(pair: Group) -> None:
    """The checkpoint of the high watermark is older than the replica that has failed."""
    await behind(pair)
    await pair.until(lambda: failed(pair))
    assert await pair.lead(2, 3, isr=(2,), to=[1]) == [ErrorCode.NONE]
    await pair.lead(2, 3, isr=(2,), to=[2])
    await pair.until(lambda: failed(pair))
    log = pair[1].logs.log(T0)
    assert log is not None and log.log_end_offset == 2


async def test_copying_goes_on_after_an_unexpected_answer(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(answers: Sequence[FetchedPartition]) -> Sequence[FetchedPartition]:
        pair.bent = list
        raise ZeroDivisionError

    pair.bent = fail
    await pair.lead(1, 0)
    pair[1].append(b"a")
    await pair.copied(1)
    assert [each.message for each in caplog.records if each.exc_info] == [
        "copying failed, trying again leader=1"
    ]


# leaders whose logs begin later


async def test_a_follower_adopts_the_leaders_log_start(pair: Group) -> None:
    await pair.lead(1, 0)
    pair[1].append(b"a")
    pair[1].append(b"b")
    await pair.copied(1)
    pair[1].partition().log.advance_log_start(1)
    pair[1].append(b"c")
    await pair.copied(1)
    assert pair[2].partition().log.log_start_offset == 1
    same(pair, 1, 2)


async def test_an_answer_is_applied_after_retention_moved_the_log_start(pair: Group) -> None:
    """The leader has returned its log start, and does not repeat it."""
    await pair.lead(1, 0)
    for value in (b"a", b"b", b"c"):
        pair[1].append(value)
    await pair.copied(1)
    held = pair.hold_answer(2)
    pair[1].partition().log.advance_log_start(2)
    pair[1].append(b"d")
    await held.reached.wait()
    follower = pair[2].partition().log
    follower.advance_log_start(1)
    pair.cut.add((2, 1))
    held.open.set()
    await pair.until(lambda: (follower.log_start_offset, follower.log_end_offset) == (2, 4))


async def test_a_follower_behind_the_log_start_begins_there(pair: Group) -> None:
    pair.cut.add((2, 1))
    await pair.lead(1, 0, isr=(1,))
    for value in (b"a", b"b", b"c"):
        pair[1].append(value)
    pair[1].partition().log.advance_log_start(2)
    pair.cut.clear()
    await pair.copied(1)
    assert pair[2].partition().log.log_start_offset == 2
    assert pair[2].partition().log.first_base_offset == 2


async def test_a_copy_begins_with_the_batch_that_contains_the_log_start(pair: Group) -> None:
    pair.cut.add((2, 1))
    await pair.lead(1, 0, isr=(1,))
    pair[1].append(b"a", b"b", b"c")
    pair[1].append(b"d")
    pair[1].partition().log.advance_log_start(2)
    pair.cut.clear()
    await pair.copied(1)
    same(pair, 1, 2)
    assert pair[2].partition().log.log_start_offset == 2
    assert pair[2].partition().log.first_base_offset == 0


async def test_a_diverged_tail_is_replaced_by_the_batch_that_contains_the_log_start(
    pair: Group,
) -> None:
    """The follower's tail diverges from the leader's log, but the leader has deleted that range."""
    await pair.lead(1, 0)
    pair[1].append(b"common")
    await pair.copied(1)
    pair.cut.add((2, 1))
    await pair.until(lambda: pair.refused(2))
    await pair.lead(2, 1, isr=(2,), to=[2])
    pair[2].append(b"only here")
    await pair.lead(1, 2, isr=(1,), to=[1])
    pair[1].append(b"a", b"b", b"c")
    pair[1].partition().log.advance_log_start(2)
    pair[2].partition()._high_watermark = 1
    pair.cut.clear()
    await pair.lead(1, 3, isr=(1, 2))
    pair[1].append(b"last")
    await pair.copied(1)
    same(pair, 1, 2)
    assert pair[2].partition().log.first_base_offset == 1


# logs that are gone


async def test_a_lost_log_is_copied_anew_from_another_leader(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await pair.lead(1, 0)
    pair[1].append(b"a")
    await pair.copied(1)
    await pair[2].close()
    pair[2].lose()
    pair[2].open()
    assert await pair.lead(2, 1, to=[2]) == [ErrorCode.KAFKA_STORAGE_ERROR]
    pair.cut.add((2, 1))
    assert await pair.lead(1, 2) == [ErrorCode.NONE, ErrorCode.NONE]
    await pair.until(lambda: pair.refused(2))
    assert await pair.lead(2, 3, to=[2]) == [ErrorCode.KAFKA_STORAGE_ERROR]
    await pair.reopen(2)
    assert await pair.lead(2, 3, to=[2]) == [ErrorCode.KAFKA_STORAGE_ERROR]
    pair.cut.clear()
    await pair.lead(1, 4)
    pair[1].append(b"b")
    await pair.copied(1)
    same(pair, 1, 2)
    await pair.until(
        lambda: any("copy complete partition=t-0 log_end=2:" in each for each in caplog.messages)
    )
    assert await pair.lead(2, 5) == [ErrorCode.NONE, ErrorCode.NONE]
    assert pair[2].partition().is_leader


async def test_a_damaged_replica_neither_leads_nor_appends(pair: Group) -> None:
    await pair.lead(1, 0)
    for value in (b"a", b"b", b"c"):
        pair[1].append(value)
    await pair.copied(1)
    await pair[2].close(clean=False)
    (path,) = (pair[2].home / "t-0").glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    pair[2].open()
    assert await pair.lead(1, 1, to=[2]) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert await pair.lead(2, 2, to=[2]) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert "copies the whole log again" in pair[2].manager.not_opened[T0]
    assert path.read_bytes() == data


# faults


@pytest.mark.parametrize(("times", "levels"), [(3, ["WARNING"]), (5, ["WARNING", "ERROR"])])
async def test_a_corrupt_batch_is_not_appended(
    pair: Group, caplog: pytest.LogCaptureFixture, times: int, levels: list[str]
) -> None:
    """A repeated failure is logged as an error. At the second fetch the leader checks its own
    batch, reports it, and resigns if another replica can lead."""
    bent = 0

    def bend(answers: Sequence[FetchedPartition]) -> Sequence[FetchedPartition]:
        nonlocal bent
        if bent == times or not any(answer.records for answer in answers):
            return answers
        bent += 1
        (answer,) = answers
        return [answer._replace(records=bytes(answer.records[:-1]) + b"\xff")]

    pair.bent = bend
    await pair.lead(1, 0)
    pair[1].append(b"a")
    await pair.copied(1)
    same(pair, 1, 2)
    assert bent == times
    told = [each for each in caplog.records if each.message.startswith("copying pauses")]
    assert [each.levelname for each in told] == levels
    line = told[-1].message
    assert "t-0" in line and "CORRUPT_MESSAGE" in line and "offset=0" in line


async def test_an_answer_to_an_earlier_fetch_is_ignored(pair: Group) -> None:
    await pair.lead(1, 0)
    await pair.copied(1)
    held = pair.hold_answer(2)
    pair[1].append(b"a")
    await held.reached.wait()
    await pair.lead(1, 1)
    held.open.set()
    pair[1].append(b"b")
    await pair.copied(1)
    same(pair, 1, 2)


async def test_copying_continues_once_the_leader_can_be_reached_again(pair: Group) -> None:
    await pair.lead(1, 0)
    await pair.copied(1)
    await pair[1].close(clean=False)
    await pair.until(lambda: pair.refused(2))
    pair[1].open()
    await pair.lead(1, 1)
    pair[1].append(b"a")
    await pair.copied(1)
    same(pair, 1, 2)


async def test_fetches_to_an_unreachable_leader_pause(pair: Group) -> None:
    loop = asyncio.get_running_loop()
    pair.cut.add((2, 1))
    begun = loop.time()
    await pair.lead(1, 0)
    await pair.until(lambda: pair.questions(2, T0) == 4)
    assert loop.time() - begun >= 0.02 + 0.04 + 0.08


async def test_a_failed_replica_does_not_delay_the_others(pair: Group) -> None:
    await pair.lead(1, 0, keys=[T0, T1])
    await pair.copied(1, T1)
    log = pair[2].partition(T0).log
    log.release("for the test")
    pair[1].append(b"a")
    pair[1].append(b"b", key=T1)
    await pair.copied(1, T1)
    assert log.log_end_offset == 0


# the controller's commands


async def test_without_a_leader_nothing_is_copied(pair: Group) -> None:
    await pair.lead(1, 0)
    await pair.lead(-1, 1, isr=(1,), to=[2])
    assert not pair[2].fetchers.copies


async def test_a_stopped_replica_is_not_copied(pair: Group) -> None:
    await pair.lead(1, 0, keys=[T0, T1])
    await pair.stop_replica(2, T0)
    assert list(pair[2].fetchers.copies) == [T1]
    pair[1].append(b"a", key=T1)
    await pair.copied(1, T1)


async def test_a_command_waits_for_the_end_of_a_truncation(pair: Group) -> None:
    await pair.lead(1, 0)
    pair[1].append(b"first")
    await pair.copied(1)
    pair.cut.add((2, 1))
    await pair.until(lambda: pair.refused(2))
    pair[1].append(b"only here")
    await pair.lead(2, 1, isr=(2,), to=[2])
    gate = pair[1].blocking.hold_named("truncate_to")
    await pair.lead(2, 1, isr=(2,), to=[1])
    await gate.reached.wait()
    assert pair[1].manager.busy == {T0}
    command = asyncio.create_task(pair.lead(1, 2, to=[1]))
    await idle()
    assert not pair[1].partition().is_leader
    gate.open.set()
    await command
    assert pair[1].partition().is_leader
    assert pair[1].partition().log.log_end_offset == 1
