"""Tests of waiting requests: each is completed once, when enough bytes have arrived, when its
partition changes its leader, or at its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pybroker.aligned_timers import EARLY_S, TICK_S
from pybroker.model import TopicPartition
from pybroker.replication.purgatory import KEYS_PER_TURN_MAX, Purgatory, Wait
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import in_time, until

A = TopicPartition("a", 0)
B = TopicPartition("b", 0)
FOREVER_S = 3600.0


def waiting(purgatory: Purgatory, *keys: TopicPartition, missing: int) -> asyncio.Task[None]:
    return asyncio.create_task(purgatory.wait(keys, missing_bytes=missing, timeout_s=FOREVER_S))


async def test_a_wait_counts_the_bytes_of_all_its_partitions() -> None:
    purgatory = Purgatory()
    task = waiting(purgatory, A, B, missing=100)
    await idle()
    purgatory.progressed(A, 60)
    await idle()
    assert not task.done()
    purgatory.progressed(B, 40)
    await task
    assert len(purgatory) == purgatory.watched == 0


async def test_a_disturbance_completes_at_once() -> None:
    purgatory = Purgatory()
    touched, untouched = waiting(purgatory, A, missing=1), waiting(purgatory, B, missing=1)
    await idle()
    purgatory.disturbed(A)
    await touched
    assert not untouched.done()
    untouched.cancel()
    await idle()
    assert len(purgatory) == purgatory.watched == 0


async def test_the_deadline_completes() -> None:
    purgatory = Purgatory()
    await in_time(purgatory.wait([A], missing_bytes=1, timeout_s=0.01))
    await purgatory.wait([A], missing_bytes=1, timeout_s=0)
    assert len(purgatory) == purgatory.watched == 0


async def test_progress_and_disturbance_in_one_tick_complete_once() -> None:
    purgatory = Purgatory()
    task = waiting(purgatory, A, missing=1)
    await idle()
    purgatory.progressed(A, 5)
    purgatory.progressed(A, 5)
    purgatory.disturbed(A)
    await task


MANY = [TopicPartition("many", number) for number in range(10 * KEYS_PER_TURN_MAX)]


async def until_watched(purgatory: Purgatory, count: int) -> None:
    await until(lambda: purgatory.watched == count)


async def test_very_many_partitions_are_watched_and_forgotten_in_turns() -> None:
    purgatory = Purgatory()
    task = waiting(purgatory, *MANY, missing=1)
    await loop_turns(1)
    assert purgatory.watched == KEYS_PER_TURN_MAX
    await until_watched(purgatory, len(MANY))
    purgatory.progressed(MANY[-1], 1)
    await task
    assert 0 < purgatory.watched < len(MANY)
    await until_watched(purgatory, 0)


@pytest.mark.parametrize("disturbs", [False, True])
async def test_a_change_before_its_partition_is_watched_completes_the_request(
    disturbs: bool,
) -> None:
    purgatory = Purgatory()
    task = waiting(purgatory, *MANY, missing=100)
    await loop_turns(1)
    if disturbs:
        purgatory.disturbed(MANY[-1])
    else:
        purgatory.progressed(MANY[-1], 1)
    await in_time(task)
    await until_watched(purgatory, 0)
    assert not purgatory._entering


async def test_a_change_of_another_partition_completes_no_request() -> None:
    purgatory = Purgatory()
    task = waiting(purgatory, *MANY, missing=1)
    await loop_turns(1)
    purgatory.progressed(A, 1)
    await until_watched(purgatory, len(MANY))
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until_watched(purgatory, 0)


class Counted:
    """A waiting request without a task. `calls` counts its completions."""

    def __init__(self, purgatory: Purgatory, *keys: TopicPartition, timeout_s: float) -> None:
        self.calls = 0
        self.wait = purgatory.begin(keys, missing_bytes=10, timeout_s=timeout_s, on_over=self._over)

    def _over(self) -> None:
        self.calls += 1


async def test_a_wait_without_a_task_is_over_once_at_the_progress() -> None:
    purgatory = Purgatory()
    counted = Counted(purgatory, A, B, timeout_s=FOREVER_S)
    purgatory.progressed(A, 9)
    assert counted.calls == 0
    purgatory.progressed(B, 1)
    purgatory.disturbed(A)
    assert counted.calls == 1 and len(purgatory) == 1
    counted.wait.end()
    assert len(purgatory) == purgatory.watched == 0


async def test_a_wait_without_a_task_is_over_at_its_deadline() -> None:
    purgatory = Purgatory()
    counted = Counted(purgatory, A, timeout_s=0.01)
    await until(lambda: counted.calls == 1)
    counted.wait.end()
    assert len(purgatory) == purgatory.watched == 0


async def test_waits_that_share_a_timer_end_together() -> None:
    purgatory, loop = Purgatory(), asyncio.get_running_loop()
    over: dict[str, float] = {}

    def begin(name: str, timeout_s: float) -> Wait:
        return purgatory.begin(
            [A],
            missing_bytes=1,
            timeout_s=timeout_s,
            on_over=lambda: over.update({name: loop.time()}),
            shares_timer=True,
        )

    first, given_up = begin("first", 0.3), begin("given up", 0.3)
    (due,) = purgatory._due
    longer, shorter = begin("longer", 0.5), begin("shorter", 0.05)
    given_up.end()
    assert longer.shared_due == due and shorter.shared_due != due
    await until(lambda: len(over) == 3)
    assert over["first"] == over["longer"] >= over["shorter"]
    assert first.timed_out and longer.timed_out and shorter.timed_out and not given_up.timed_out
    for wait in (first, longer, shorter):
        wait.end()
    assert len(purgatory) == purgatory.watched == 0 and not purgatory._due


async def test_a_long_wait_that_shares_a_timer_ends_at_a_whole_second() -> None:
    purgatory, loop = Purgatory(), asyncio.get_running_loop()
    waits = [
        purgatory.begin(
            [A], missing_bytes=1, timeout_s=timeout_s, on_over=lambda: None, shares_timer=True
        )
        for timeout_s in (4.0, 60.0)
    ]
    for wait in waits:
        assert wait.shared_due is not None and wait.shared_due % TICK_S == 0
        assert loop.time() < wait.shared_due <= wait.due + EARLY_S
        wait.end()


class Added:
    """A set of partitions to which `on_pending` adds one."""

    on_pending: Callable[[TopicPartition], None] | None = None


@pytest.mark.parametrize("shares_timer", [False, True])
async def test_an_added_partition_shortens_the_wait(shares_timer: bool) -> None:
    purgatory, added, over = Purgatory(), Added(), asyncio.Event()
    wait = purgatory.begin(
        [],
        missing_bytes=1,
        timeout_s=FOREVER_S,
        on_over=over.set,
        more=added,
        more_within_s=0.01,
        shares_timer=shares_timer,
    )
    assert added.on_pending is not None
    added.on_pending(A)
    added.on_pending(B)
    await in_time(over.wait())
    assert wait.timed_out and purgatory.watched == 2
    assert not any(purgatory._due.values())
    wait.end()
    assert len(purgatory) == purgatory.watched == 0 and added.on_pending is None


async def test_an_added_partition_does_not_make_the_wait_longer() -> None:
    purgatory, added, over = Purgatory(), Added(), asyncio.Event()
    wait = purgatory.begin(
        [], missing_bytes=1, timeout_s=0.01, on_over=over.set, more=added, more_within_s=FOREVER_S
    )
    assert added.on_pending is not None
    added.on_pending(A)
    await in_time(over.wait())
    wait.end()


async def test_all_waits_time_out_together() -> None:
    purgatory = Purgatory()
    counted = [Counted(purgatory, key, timeout_s=FOREVER_S) for key in (A, B)]
    purgatory.progressed(A, 10)
    purgatory.time_out_all()
    assert [each.calls for each in counted] == [1, 1]
    assert [each.wait.timed_out for each in counted] == [False, True]
    for each in counted:
        each.wait.end()


async def test_progress_is_no_time_out() -> None:
    purgatory = Purgatory()
    wait = purgatory.begin(
        [A], missing_bytes=1, timeout_s=FOREVER_S, on_over=lambda: None, shares_timer=True
    )
    purgatory.progressed(A, 1)
    assert wait.is_over and not wait.timed_out
    wait.end()


async def test_a_wait_that_is_given_up_is_never_over(caplog: pytest.LogCaptureFixture) -> None:
    purgatory = Purgatory()
    few, many = (Counted(purgatory, *keys, timeout_s=0.01) for keys in ([A], MANY))
    for counted in (few, many):
        counted.wait.end()
    purgatory.disturbed(A)
    purgatory.disturbed(MANY[0])
    await purgatory.wait([B], missing_bytes=1, timeout_s=0.05)
    assert few.calls == many.calls == 0
    await until_watched(purgatory, 0)
    assert not purgatory._entering and not caplog.records
    assert few.wait.timer is not None and few.wait.timer.cancelled()
