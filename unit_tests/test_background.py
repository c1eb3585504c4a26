"""Tests of background tasks with an owner: each is started once and stopped once, and failures are
logged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from pybroker.background import (
    BackgroundTask,
    RetryLoop,
    TaskOwner,
    cancel_and_wait,
    on_this_loop,
)
from unit_tests.idle_loop import idle
from unit_tests.patience import MOMENT_S, in_time, until


class Work:
    """A task that waits until it is cancelled, and then until the test lets its clean-up end."""

    def __init__(self, *, cleans_up: bool = False) -> None:
        self.begun = 0
        self.cancelled = asyncio.Event()
        self.may_end = asyncio.Event()
        self.has_ended = False
        if not cleans_up:
            self.may_end.set()

    async def run(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
            await self.may_end.wait()
            self.has_ended = True


async def fail() -> None:
    raise RuntimeError("a defect")


async def test_stop_returns_when_the_task_has_ended() -> None:
    task, work = BackgroundTask("work"), Work(cleans_up=True)
    task.start(work.run)
    await idle()
    stopping = asyncio.ensure_future(task.stop())
    await in_time(work.cancelled.wait())
    assert task.runs and not stopping.done()
    work.may_end.set()
    await in_time(stopping)
    assert work.has_ended and not task.runs


async def test_stop_without_start_does_nothing() -> None:
    task = BackgroundTask("work")
    await task.stop()
    assert not task.runs


async def test_stop_is_idempotent() -> None:
    task, work = BackgroundTask("work"), Work()
    task.start(work.run)
    await idle()
    await task.stop()
    await task.stop()
    assert not task.runs


def test_stop_of_an_ended_task_does_not_need_its_event_loop() -> None:
    """A component that is stopped a second time may have started in an event loop that is closed by
    now.
    """
    task, work = BackgroundTask("work"), Work()

    async def live() -> None:
        task.start(work.run)
        await task.stop()

    asyncio.run(live())
    asyncio.run(task.stop())
    assert not task.runs


async def test_task_that_never_ran_is_stopped() -> None:
    task, work = BackgroundTask("work"), Work()
    task.start(work.run)
    await task.stop()
    assert work.begun == 0 and not task.runs


async def test_start_does_nothing_while_the_task_runs() -> None:
    task, work = BackgroundTask("work"), Work()
    task.start(work.run)
    task.start(work.run)
    await idle()
    assert work.begun == 1
    await task.stop()


async def test_stopped_task_can_be_started_again() -> None:
    task, work = BackgroundTask("work"), Work()
    for _ in range(2):
        task.start(work.run)
        await idle()
        await task.stop()
    assert work.begun == 2 and not task.runs


async def test_caller_cancelled_in_stop_is_cancelled_after_the_task() -> None:
    task, work = BackgroundTask("work"), Work(cleans_up=True)
    task.start(work.run)
    await idle()
    stopping = asyncio.ensure_future(task.stop())
    await in_time(work.cancelled.wait())
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await in_time(stopping)
    assert task.runs
    work.may_end.set()
    await in_time(task.finish())
    assert work.has_ended


class Rounds:
    """Work that is complete after `left` rounds."""

    def __init__(self, pause_s: float) -> None:
        self.left = 0
        self.begun = 0
        self.loop = RetryLoop("rounds", self._work, pause_s)

    async def _work(self) -> bool:
        self.begun += 1
        self.left -= 1
        return self.left > 0


async def test_retry_loop_works_only_when_it_is_woken() -> None:
    rounds = Rounds(pause_s=0)
    rounds.loop.start()
    await idle()
    assert rounds.begun == 0
    for begun in (1, 2):
        rounds.loop.wake()
        await idle()
        assert rounds.begun == begun
    await rounds.loop.stop()
    assert not rounds.loop.runs


async def test_retry_loop_is_woken_before_its_start() -> None:
    rounds = Rounds(pause_s=0)
    rounds.loop.wake()
    rounds.loop.start()
    await until(lambda: rounds.begun)
    await rounds.loop.stop()


async def test_retry_loop_works_again_while_something_is_left() -> None:
    rounds = Rounds(pause_s=0)
    rounds.left = 3
    rounds.loop.start()
    rounds.loop.wake()
    await until(lambda: rounds.left == 0)
    await idle()
    assert rounds.begun == 3
    await rounds.loop.stop()


async def test_retry_loop_does_not_pause_when_it_is_woken() -> None:
    rounds = Rounds(pause_s=1e6)
    rounds.left = 2
    rounds.loop.start()
    for begun in (1, 2):
        rounds.loop.wake()
        await until(lambda begun=begun: rounds.begun == begun)  # type: ignore[misc]
    await rounds.loop.stop()


async def test_call_from_another_thread_is_made_on_the_loop() -> None:
    made: list[tuple[threading.Thread, str, int]] = []
    call = on_this_loop(
        lambda name, number: made.append((threading.current_thread(), name, number))
    )
    await asyncio.to_thread(call, "a", 1)
    await until(lambda: made)
    assert made == [(threading.current_thread(), "a", 1)]


def test_call_for_a_closed_loop_is_dropped() -> None:
    made: list[int] = []

    async def live() -> Callable[[int], None]:
        return on_this_loop(made.append)

    call = asyncio.run(live())
    call(1)
    assert not made


async def test_second_stop_waits_and_does_not_interrupt_the_clean_up() -> None:
    task, work = BackgroundTask("work"), Work(cleans_up=True)
    task.start(work.run)
    await idle()
    stopping = [asyncio.ensure_future(task.stop()) for _ in range(2)]
    await in_time(work.cancelled.wait())
    await idle()
    assert not any(each.done() for each in stopping)
    work.may_end.set()
    await in_time(asyncio.gather(*stopping))
    assert work.has_ended


async def test_task_with_a_timeout_that_just_expired_is_stopped() -> None:
    """asyncio.timeout cancels its task and then revokes the cancellation, so the owner must not
    rely on the cancellation count.
    """
    task, loop = BackgroundTask("work"), asyncio.get_running_loop()
    limits: list[float] = []

    async def run() -> None:
        while True:
            try:
                async with asyncio.timeout(MOMENT_S) as limit:
                    limits.append(limit.when() or 0.0)
                    await asyncio.Event().wait()
            except TimeoutError:
                pass

    task.start(run)
    await idle()
    loop.call_at(limits[-1], task.cancel)
    await in_time(task.finish())
    assert not task.runs


async def test_task_that_stops_itself_does_not_wait_for_itself() -> None:
    task, ended = BackgroundTask("work"), asyncio.Event()

    async def run() -> None:
        await task.stop()
        ended.set()

    task.start(run)
    await in_time(ended.wait())
    await task.stop()


async def test_failure_is_logged_once_when_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    task = BackgroundTask("work")
    task.start(fail)
    await task.finish()
    (told,) = caplog.records
    assert told.getMessage() == "background task failed name=work"
    assert told.exc_info is not None and str(told.exc_info[1]) == "a defect"
    await task.stop()
    await task.stop()
    assert caplog.records == [told]


async def test_failure_after_the_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    task = BackgroundTask("work")

    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await fail()

    task.start(run)
    await idle()
    await task.stop()
    assert len(caplog.records) == 1


async def test_finish_waits_no_longer_than_its_limit() -> None:
    task, work = BackgroundTask("work"), Work()
    task.start(work.run)
    await in_time(task.finish(0))
    assert task.runs
    await task.stop()


async def test_owner_ends_all_of_its_tasks() -> None:
    owner, works = TaskOwner(), [Work(), Work()]
    tasks = [owner.start(work.run(), "work") for work in works]
    await idle()
    await owner.close()
    assert all(task.done() for task in tasks) and all(work.has_ended for work in works)
    await owner.close()


async def test_owner_reports_a_failed_task(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []
    owner = TaskOwner(failures.append)
    owner.start(fail(), "work")
    await idle()
    assert [str(each) for each in failures] == ["a defect"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("end", [fail, Work().run])
async def test_cancel_and_wait_does_not_raise_errors_of_the_tasks(
    end: Callable[[], Awaitable[None]],
) -> None:
    tasks = [asyncio.ensure_future(end()) for _ in range(2)]
    await idle()
    await cancel_and_wait(*tasks)
    assert all(task.done() for task in tasks)
    await cancel_and_wait()


def test_owner_reports_a_failed_call(caplog: pytest.LogCaptureFixture) -> None:
    failures: list[BaseException] = []
    owner, done = TaskOwner(failures.append), list[str]()
    owner.guarded(done.append, "work")("a")
    assert done == ["a"] and not failures
    owner.guarded(done.remove, "work")("b")
    TaskOwner().guarded(done.remove, "work")("b")
    assert [type(failure) for failure in failures] == [ValueError]
    assert [told.getMessage() for told in caplog.records] == [
        "background task failed name=work"
    ] * 2
