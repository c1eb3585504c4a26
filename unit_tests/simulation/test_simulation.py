"""Tests of `Simulation`, as users' tests of applications use it."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from pybroker.client import defaults
from pybroker.clock import SystemClock
from pybroker.testing.simulation import ZOOKEEPER, Simulation, SimulationError
from unit_tests.simulation.scenarios import create, produce, read_on


def orders_past_faults(seed: int) -> str:
    """Call all methods of `Simulation` one after another, and return the digest."""
    seen: list[bytes | None] = []
    with Simulation(seed) as simulation:
        simulation.run(create, simulation.bootstrap)
        writer = simulation.start(produce, simulation.bootstrap, 60)
        reader = simulation.start(read_on, simulation.bootstrap, seen)
        simulation.wait(lambda: len(seen) > 5)
        leader = simulation.leader("orders", 0)
        simulation.kill(leader)
        simulation.wait(lambda: len(seen) > 15)
        reader.kill()
        simulation.start_broker(leader)
        reader.start()
        simulation.wait(lambda: len(seen) > 25)
        simulation.cut(simulation.leader("orders", 0), [ZOOKEEPER])
        simulation.pass_time(8)
        simulation.heal()
        simulation.wait(lambda: len(seen) > 35)
        simulation.stop(simulation.leader("orders", 0))
        simulation.pause(simulation.leader("orders", 0))
        simulation.pass_time(3)
        simulation.mend()
        simulation.lose_power(simulation.leader("orders", 0))
        simulation.wait(lambda: len(seen) == 60)
        assert writer.result == list(range(60))
        assert seen == [b"%d" % number for number in range(60)]
        assert simulation.now > 11
        return simulation.digest


def test_an_application_survives_faults_and_each_seed_repeats_its_run() -> None:
    assert orders_past_faults(1) == orders_past_faults(1) != orders_past_faults(2)


def test_clients_use_the_virtual_clock_of_their_machine() -> None:
    async def wait_long() -> float:
        clock = defaults.make_clock()
        begun = clock.monotonic()
        await asyncio.sleep(600)
        return clock.monotonic() - begun

    with Simulation() as simulation:
        assert 600 <= simulation.run(wait_long, seconds=700) < 601
    assert defaults.make_clock is SystemClock
    assert defaults.make_rng is random.Random


def test_a_timeout_is_reported_with_the_reason_and_the_seed() -> None:
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError("here")

    async def block() -> None:
        await asyncio.to_thread(time.monotonic)

    def wait_in_vain() -> None:
        with Simulation(17) as simulation:
            simulation.start(fail)
            simulation.wait(lambda: False, seconds=5)

    with pytest.raises(SimulationError, match=r"within 5 virtual.*here") as caught:
        wait_in_vain()
    assert caught.value.__notes__ == ["in the simulation with seed 17"]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with Simulation() as simulation:
        with pytest.raises(ZeroDivisionError):
            simulation.run(fail)
        with pytest.raises(RuntimeError, match="threads"):
            simulation.run(block)
        with pytest.raises(SimulationError, match="no broker 4; the brokers are 1, 2, 3"):
            simulation.kill(4)
        waiting = simulation.start(asyncio.sleep, 1000)
        with pytest.raises(SimulationError, match="has not ended"):
            _ = waiting.result


def test_traces_show_the_first_difference_of_two_runs() -> None:
    with Simulation(1, keep_trace=True) as simulation:
        simulation.run(create, simulation.bootstrap)
        assert any("broker-1" in line for line in simulation.trace)
