"""Tests of the event loops of unit tests."""

from __future__ import annotations

import asyncio
import time

import pytest

from unit_tests.idle_loop import JumpingLoop, idle, loop_turns
from unit_tests.patience import MOMENT_S

FAR_S = 3600.0


async def test_idle_waits_until_all_ready_callbacks_have_run() -> None:
    steps: list[int] = []
    gate = asyncio.Event()

    async def work() -> None:
        for step in range(1_000):
            await asyncio.sleep(0)
            steps.append(step)
        await gate.wait()
        steps.append(-1)

    async def later() -> None:
        await asyncio.sleep(FAR_S)
        steps.append(-2)

    tasks = [asyncio.create_task(work()), asyncio.create_task(later())]
    await idle()
    assert steps == [*range(1_000)]
    gate.set()
    await idle()
    assert steps == [*range(1_000), -1]
    for task in tasks:
        task.cancel()


async def test_idle_returns_in_several_tasks() -> None:
    await asyncio.gather(*(idle() for _ in range(3)))


async def test_a_stalled_machine_expires_no_time_limit() -> None:
    async with asyncio.timeout(MOMENT_S):
        time.sleep(2 * MOMENT_S)  # noqa: ASYNC251
        await loop_turns(3)


@pytest.mark.jumping_clock
async def test_a_jumping_clock_rings_timers_in_order_and_at_once() -> None:
    rung: list[float] = []

    async def ring(after_s: float) -> None:
        await asyncio.sleep(after_s)
        rung.append(asyncio.get_running_loop().time())

    await asyncio.gather(*(ring(each * FAR_S) for each in (3, 1, 2)))
    assert rung == [FAR_S, 2 * FAR_S, 3 * FAR_S]


@pytest.mark.jumping_clock
async def test_idle_comes_before_the_clock_jumps() -> None:
    timer = asyncio.create_task(asyncio.sleep(FAR_S))
    await idle()
    assert not timer.done()
    await timer


def test_a_jumping_loop_reports_a_deadlock() -> None:
    with (
        asyncio.Runner(loop_factory=JumpingLoop) as runner,
        pytest.raises(RuntimeError, match="no timer is set"),
    ):
        runner.run(asyncio.Event().wait())
