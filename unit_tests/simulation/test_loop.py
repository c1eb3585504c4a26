"""Tests of the simulation's event loop: killed processes end at once, and failures are reported.

`test_transport.py` tests that the loop behaves like asyncio's loop.
"""

from __future__ import annotations

import asyncio

from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine


def test_a_killed_process_runs_no_code_not_even_cleanup() -> None:
    environment, heard = Environment("1"), list[str]()
    machine = Machine(environment, "m")

    async def main(_loop: ProcessLoop) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            heard.append("last words")

    machine.start(main, None)
    environment.run(5)
    machine.kill()
    environment.run(100)
    assert heard == []
    machine.bury()


def test_the_failure_of_a_process_is_reported() -> None:
    environment = Environment("1")
    machine = Machine(environment, "m")

    async def main(_loop: ProcessLoop) -> None:
        await asyncio.sleep(1)
        raise ValueError("a mistake")

    loop = machine.start(main, None)
    environment.run(5)
    assert loop.failures == ["the process failed: ValueError('a mistake')"]
    machine.bury()
