"""A cluster and an application under one seed, for tests of applications.

    with Simulation(seed) as simulation:
        app = simulation.start(consume_and_store, simulation.bootstrap)
        simulation.wait(lambda: len(stored) >= 100)
        simulation.kill(simulation.leader("orders", 0))
        simulation.wait(lambda: len(stored) >= 200)

Brokers, ZooKeeper's behaviour, clients and the application's coroutines are real; time, network and
disks are simulated, so that minutes pass in milliseconds and a failing seed fails again. What is
asynchronous has to use asyncio and `pybroker.client`: threads, sockets of others and the machine's
clock lie outside of the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from pybroker.client import defaults
from pybroker.errors import PybrokerError
from pybroker.model import TopicPartition
from pybroker.ports import Clock, Rng
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import ZOOKEEPER, SimCluster
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World

T = TypeVar("T")
_READY_S: Final = 60.0


class SimulationError(PybrokerError):
    """Something did not come about in the virtual time that it was given, or cannot."""


class Application(Generic[T]):
    """A coroutine that runs as a process on a machine of its own."""

    def __init__(
        self, machine: Machine, main: Callable[[], Coroutine[Any, Any, T]], simulation: Simulation
    ) -> None:
        self._machine = machine
        self._main = main
        self._simulation = simulation
        self._result: list[T] = []
        self.error: BaseException | None = None
        """What ended it, if it failed."""
        self.start()

    @property
    def name(self) -> str:
        """The name of its machine, for `Simulation.cut`."""
        return self._machine.name

    @property
    def is_running(self) -> bool:
        return self._machine.loop is not None

    @property
    def result(self) -> T:
        """What the coroutine returned. Raises what it raised; before its end SimulationError."""
        if self.error is not None:
            raise self.error
        if not self._result:
            raise SimulationError(f"{self.name} has not come to its end")
        return self._result[0]

    def start(self) -> None:
        """Run it from its beginning, after it ended or was killed."""
        self._result.clear()
        self.error = None
        self._machine.start(self._run, self._simulation.cluster.network.sockets(self._machine))

    def kill(self) -> None:
        """As SIGKILL: not even `finally` runs."""
        self._machine.kill()

    def pause(self) -> None:
        """As SIGSTOP."""
        if self._machine.loop is not None:
            self._machine.loop.pause()

    def resume(self) -> None:
        """As SIGCONT."""
        if self._machine.loop is not None:
            self._machine.loop.resume()

    async def _run(self, loop: ProcessLoop) -> None:
        try:
            self._result.append(await self._main())
        except Exception as error:
            self.error = error
        self._machine.kill()


class Simulation:
    """Brokers 1 to `brokers`, ready to be used in a `with` statement.

    `config` are options of all brokers. The same seed, code and calls give the same run; `digest`
    tells whether two runs were the same.
    """

    def __init__(
        self,
        seed: int | str = 0,
        brokers: int = 3,
        *,
        config: Mapping[str, object] | None = None,
        keep_trace: bool = False,
    ) -> None:
        """With `keep_trace` the trace is kept as lines of text."""
        self.world = World(str(seed), keep_lines=keep_trace)
        self.cluster = SimCluster(self.world, brokers, config=config)
        self._applications: list[Application[Any]] = []
        self._defaults = (defaults.make_clock, defaults.make_rng)

    def __enter__(self) -> Simulation:
        defaults.make_clock = self._clock_here
        defaults.make_rng = self._rng_here
        try:
            self.cluster.start()
            self.wait(lambda: all(each.serves for each in self._brokers), seconds=_READY_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is not None:
            error.add_note(f"in the simulation with seed {self.world.seed}")
        self.close()

    def close(self) -> None:
        """End everything. Idempotent."""
        defaults.make_clock, defaults.make_rng = self._defaults
        self.cluster.close()

    # what there is

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of all brokers, for clients inside of the simulation."""
        return self.cluster.bootstrap

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.world.now

    @property
    def digest(self) -> str:
        """A checksum of everything that has happened."""
        return self.world.digest

    @property
    def trace(self) -> list[str]:
        """What has happened, line by line, if it was to be kept."""
        return list(self.world.lines or ())

    def leader(self, topic: str, partition: int) -> int:
        """The broker that leads, as soon as there is one that runs."""
        key = TopicPartition(topic, partition)
        found: list[int] = []

        def leads() -> bool:
            for broker in self._brokers:
                app = broker.app
                replica = None if app is None else app.replicas.partitions.get(key)
                if replica is not None and replica.is_leader:
                    found.append(broker.id)
            return bool(found)

        self.wait(leads)
        return found[-1]

    # letting time pass

    def start(
        self,
        main: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        name: str | None = None,
    ) -> Application[T]:
        """Let `main(*args)` run as a process of its own, beside everything else."""
        machine = self.cluster.machine(name or f"application-{len(self._applications) + 1}")
        application = Application(machine, lambda: main(*args), self)
        self._applications.append(application)
        return application

    def run(
        self, main: Callable[..., Coroutine[Any, Any, T]], *args: Any, seconds: float = 60.0
    ) -> T:
        """As `start`, and go on until it has ended; what it returned. Raises what it raised."""
        application = self.start(main, *args)
        self.wait(lambda: not application.is_running, seconds=seconds)
        return application.result

    def wait(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Let time pass until that holds. Raises SimulationError if it does not come to be within
        so many virtual seconds; its cause is what ended an application that failed."""
        if self.world.run(self.world.now + seconds, condition):
            return
        words = [f"not within {seconds:g} virtual seconds (it is {self.now:.3f})"]
        words += [f"broker {each.id}: {each.reasons[-1]}" for each in self._brokers if each.reasons]
        failed = [each for each in self._applications if each.error is not None]
        words += [f"{each.name} failed: {each.error!r}" for each in failed]
        raise SimulationError("; ".join(words)) from (failed[0].error if failed else None)

    def pass_time(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        self.world.run(self.world.now + seconds)

    # what goes wrong

    def kill(self, broker: int) -> None:
        """SIGKILL to a broker."""
        self._broker(broker).machine.kill()

    def stop(self, broker: int) -> None:
        """SIGTERM to a broker; returns when it has handed over and ended."""
        chosen = self._broker(broker)
        chosen.terminate()
        self.wait(lambda: not chosen.is_running)

    def start_broker(self, broker: int) -> None:
        """Start a broker again; nothing is waited for."""
        self._broker(broker).start()

    def lose_power(self, broker: int) -> None:
        """What its machine had not synced may be gone; its connections just fall silent."""
        self._broker(broker).machine.lose_power()

    def pause(self, broker: int) -> None:
        """SIGSTOP."""
        loop = self._broker(broker).machine.loop
        if loop is not None:
            loop.pause()

    def resume(self, broker: int) -> None:
        """SIGCONT."""
        loop = self._broker(broker).machine.loop
        if loop is not None:
            loop.resume()

    def cut(
        self, one: int | str, others: Iterable[int | str] | None = None, *, both: bool = True
    ) -> None:
        """Let nothing pass any more, in silence, from a machine to others (and back, unless `both`
        is False): brokers by id, applications by name, `ZOOKEEPER`; None: everybody."""
        source = self._names(one)
        targets = (
            [*self.cluster.machines, *self.cluster.zookeeper.members]
            if others is None
            else [name for each in others for name in self._names(each)]
        )
        for name in source:
            self.cluster.links.cut(name, targets)
        if both:
            for target in targets:
                self.cluster.links.cut(target, source)

    def heal(self) -> None:
        """End all cuts; what was held is delivered."""
        self.cluster.links.heal_all()

    def mend(self, *, seconds: float = _READY_S) -> None:
        """Heal, resume and start everything; returns when all brokers serve."""
        self.heal()
        for broker in self._brokers:
            self.resume(broker.id)
            broker.start()
        self.wait(lambda: all(each.serves for each in self._brokers), seconds=seconds)

    # private

    @property
    def _brokers(self) -> list[SimBroker]:
        return list(self.cluster.brokers.values())

    def _broker(self, broker: int) -> SimBroker:
        found = self.cluster.brokers.get(broker)
        if found is None:
            raise SimulationError(f"there is no broker {broker}")
        return found

    def _names(self, side: int | str) -> list[str]:
        if isinstance(side, int):
            return [self._broker(side).machine.name]
        return list(self.cluster.zookeeper.members) if side == ZOOKEEPER else [side]

    def _machine_here(self) -> Machine:
        """Where the code that runs now runs."""
        loop = asyncio.get_running_loop()
        return next(each for each in self.cluster.machines.values() if each.loop is loop)

    def _clock_here(self) -> Clock:
        return self._machine_here().clock

    def _rng_here(self) -> Rng:
        return self.world.rng(f"client {self.world.number()} on {self._machine_here().name}")
