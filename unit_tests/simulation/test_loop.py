"""The simulated event loop: asyncio as it is, over time that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pybroker.testing.simulation.links import Links, Pipe
from pybroker.testing.simulation.loop import LoopBlocking, ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World
from unit_tests.simulation.processes import outputs_of


def run(main: Callable[[], Coroutine[Any, Any, None]], seconds: float = 100.0) -> World:
    world = World("1")
    machine = Machine(world, "m")
    loop = machine.start(lambda _: main(), None)
    world.run(seconds)
    assert loop.failures == []
    machine.bury()
    return world


def test_asyncio_runs_as_it_is_and_time_jumps() -> None:
    heard: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        event = asyncio.Event()

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            heard.append(name)
            event.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(wait("late", 30))
            group.create_task(wait("early", 10))
            await event.wait()
            heard.append("woken")
            try:
                async with asyncio.timeout(5):
                    await asyncio.Event().wait()
            except TimeoutError:
                heard.append("given up")
        assert 29.9 < loop.time() - begun < 30.5

    run(main)
    assert heard == ["early", "woken", "given up", "late"]


def test_work_that_blocks_happens_while_the_loop_goes_on() -> None:
    done: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        blocking = LoopBlocking(loop, loop.world.rng("work"), threads=2)
        results = await asyncio.gather(*(blocking.run(pow, each, 2) for each in range(8)))
        assert results == [each**2 for each in range(8)]
        done.extend(results)

    run(main)
    assert len(done) == 8


def test_a_killed_process_does_nothing_more_not_even_what_cleans_up() -> None:
    world, heard = World("1"), list[str]()
    machine = Machine(world, "m")

    async def main(_loop: ProcessLoop) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            heard.append("last words")

    machine.start(main, None)
    world.run(5)
    machine.kill()
    world.run(100)
    assert heard == []
    machine.bury()


def test_a_process_that_is_killed_before_its_first_turn_never_was(
    recwarn: pytest.WarningsRecorder,
) -> None:
    world = World("seed")
    machine = Machine(world, "machine")
    ran: list[str] = []

    async def main(loop: ProcessLoop) -> None:
        ran.append(loop.name)

    machine.start(main, None)
    machine.kill()
    machine.start(main, None)
    world.run(1)
    assert ran == ["machine.2"]
    assert not recwarn.list, "a coroutine that nobody awaits"


def test_a_process_that_fails_is_told_of() -> None:
    world = World("1")
    machine = Machine(world, "m")

    async def main(_loop: ProcessLoop) -> None:
        await asyncio.sleep(1)
        raise ValueError("a mistake")

    loop = machine.start(main, None)
    world.run(5)
    assert loop.failures == ["the process failed: ValueError('a mistake')"]
    machine.bury()


def test_a_paused_process_goes_on_where_it_was() -> None:
    world, heard = World("1"), list[float]()
    machine = Machine(world, "m")

    async def main(loop: ProcessLoop) -> None:
        await asyncio.sleep(10)
        heard.append(loop.world.now)

    loop = machine.start(main, None)
    world.run(5)
    loop.pause()
    world.run(20)
    assert heard == []
    loop.resume()
    world.run(21)
    assert 20 <= heard[0] < 20.1
    machine.bury()


def test_a_pipe_keeps_the_order_holds_what_meets_a_cut_and_goes_on_after_it() -> None:
    world, heard = World("1"), list[int]()
    links = Links(world)
    pipe = Pipe(links, "a", "b", world.rng("pipe"), heard.append)
    for number in range(50):
        pipe.send(number)
    world.run(1)
    assert heard == list(range(50))
    links.cut("a", ["b"])
    for number in range(50, 60):
        pipe.send(number)
    world.run(10)
    assert heard == list(range(50))
    links.heal("a", ["b"])
    world.run(11)
    assert heard == list(range(60))


def test_the_same_seed_gives_the_same_trace_again_in_one_process() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        tasks = {asyncio.create_task(asyncio.sleep(0.1), name=str(each)) for each in range(5)}
        for task in tasks:  # the order of a set is that of the hashes
            loop.world.note(task.get_name())
        await asyncio.wait(tasks)

    assert len({run(main).digest for _ in range(20)}) == 1


def test_what_a_pipe_holds_is_lost_once_nobody_would_send_it_again() -> None:
    world, heard = World("1"), list[int]()
    links = Links(world)
    pipes = [Pipe(links, "a", "b", world.rng(str(each)), heard.append) for each in range(3)]
    links.cut("a", ["b"])
    for number, pipe in enumerate(pipes):
        pipe.send(number)
    pipes[0].forget()
    world.run(1)
    pipes[1].forget()
    links.heal("a", ["b"])
    world.run(2)
    assert heard == [2]


PROGRAM = """
import asyncio
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World
world = World("7")
async def main(loop):
    rng = world.rng("main")
    async def one(name):
        for _ in range(20):
            await asyncio.sleep(rng.random())
            world.note(name)
    waiting = {asyncio.create_task(one(str(number))) for number in range(9)}
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            world.note("done")
machine = Machine(world, "m")
machine.start(main, None)
world.run(100)
print(world.digest)
"""


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    digests = outputs_of(PROGRAM)
    assert len(digests) == 1
