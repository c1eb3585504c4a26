"""A simulated cluster and an application, driven by one seed, for tests of applications.

    with Simulation(seed) as simulation:
        app = simulation.start(consume_and_store, simulation.bootstrap)
        simulation.wait(lambda: len(stored) >= 100)
        simulation.kill(simulation.leader("orders", 0))
        simulation.wait(lambda: len(stored) >= 200)

Brokers, clients and the application's coroutines are real; ZooKeeper, time, network and disks are
simulated, so that minutes pass in milliseconds and a failing seed fails again. Applications must
use asyncio and `pybroker.client`. They must not use threads, other sockets or the real clock.
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
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.machine import Machine

T = TypeVar("T")
_READY_S: Final = 60.0


class SimulationError(PybrokerError):
    """A condition did not hold within the given virtual time, or the simulation cannot do what the
    call asks for."""


class Application(Generic[T]):
    """A coroutine of the test that runs as a process on its own simulated machine."""

    def __init__(
        self, machine: Machine, main: Callable[[], Coroutine[Any, Any, T]], simulation: Simulation
    ) -> None:
        self._machine = machine
        self._main = main
        self._simulation = simulation
        self._result: list[T] = []
        self.error: BaseException | None = None
        """The exception that ended the application, if it failed."""
        self.start()

    @property
    def name(self) -> str:
        """Return the name of the application's machine, as `Simulation.cut` takes it."""
        return self._machine.name

    @property
    def is_running(self) -> bool:
        return self._machine.loop is not None

    @property
    def result(self) -> T:
        """Return the result of the coroutine. If the coroutine has failed, raises its exception. If
        the coroutine has not ended, raises SimulationError."""
        if self.error is not None:
            raise self.error
        if not self._result:
            raise SimulationError(f"{self.name} has not ended, so it has no result yet")
        return self._result[0]

    def start(self) -> None:
        """Run the coroutine from its beginning. To run it again, call `start` after the coroutine
        has ended or was killed."""
        self._result.clear()
        self.error = None
        self._machine.start(self._run, self._simulation.cluster.network.sockets(self._machine))

    def kill(self) -> None:
        """Kill the application, like SIGKILL: not even `finally` blocks run."""
        self._machine.kill()

    def pause(self) -> None:
        """Stop the application until `resume`, like SIGSTOP."""
        if self._machine.loop is not None:
            self._machine.loop.pause()

    def resume(self) -> None:
        """Continue a paused application, like SIGCONT."""
        if self._machine.loop is not None:
            self._machine.loop.resume()

    async def _run(self, loop: ProcessLoop) -> None:
        try:
            self._result.append(await self._main())
        except Exception as error:
            self.error = error
        self._machine.kill()


class Simulation:
    """A simulated cluster of brokers with the ids 1 to `brokers`, started by a `with` statement.

    `config` holds options of all brokers. The same seed, code and calls give the same run, and the
    same `digest`.
    """

    def __init__(
        self,
        seed: int | str = 0,
        brokers: int = 3,
        *,
        config: Mapping[str, object] | None = None,
        keep_trace: bool = False,
    ) -> None:
        """Create a simulation. `keep_trace` keeps all events as lines of text for `trace`."""
        self.environment = Environment(str(seed), keep_lines=keep_trace)
        self.cluster = SimCluster(self.environment, brokers, config=config)
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
            error.add_note(f"in the simulation with seed {self.environment.seed}")
        self.close()

    def close(self) -> None:
        """End all processes of the simulation. Idempotent."""
        defaults.make_clock, defaults.make_rng = self._defaults
        self.cluster.close()

    # state

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap.servers for clients inside the simulation."""
        return self.cluster.bootstrap

    @property
    def now(self) -> float:
        """Return the virtual time in seconds since the start of the simulation."""
        return self.environment.now

    @property
    def digest(self) -> str:
        """Return a checksum of all events so far."""
        return self.environment.digest

    @property
    def trace(self) -> list[str]:
        """Return all events so far as lines of text; an empty list without `keep_trace`."""
        return list(self.environment.lines or ())

    def leader(self, topic: str, partition: int) -> int:
        """Run until a running broker leads the partition. Return the id of this broker."""
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

    # running the simulation

    def start(
        self,
        main: Callable[..., Coroutine[Any, Any, T]],
        *args: Any,
        name: str | None = None,
    ) -> Application[T]:
        """Start `main(*args)` as a process on its own machine. `name` is the name of the
        machine."""
        machine = self.cluster.machine(name or f"application-{len(self._applications) + 1}")
        application = Application(machine, lambda: main(*args), self)
        self._applications.append(application)
        return application

    def run(
        self, main: Callable[..., Coroutine[Any, Any, T]], *args: Any, seconds: float = 60.0
    ) -> T:
        """Run `main(*args)` to its end, and return its result. Raises the exception of `main`.
        Raises SimulationError if `main` has not ended after `seconds` of virtual time."""
        application = self.start(main, *args)
        self.wait(lambda: not application.is_running, seconds=seconds)
        return application.result

    def wait(self, condition: Callable[[], bool], *, seconds: float = 60.0) -> None:
        """Run until `condition()` is true. Raises SimulationError after `seconds` of virtual time.
        If an application has failed, its exception is the `__cause__` of this error."""
        if self.environment.run(self.environment.now + seconds, condition):
            return
        words = [
            f"the condition did not hold within {seconds:g} virtual seconds (now {self.now:.3f})"
        ]
        words += [f"broker {each.id}: {each.reasons[-1]}" for each in self._brokers if each.reasons]
        failed = [each for each in self._applications if each.error is not None]
        words += [f"{each.name} failed: {each.error!r}" for each in failed]
        raise SimulationError("; ".join(words)) from (failed[0].error if failed else None)

    def pass_time(self, seconds: float) -> None:
        """Run the simulation for `seconds` of virtual time."""
        self.environment.run(self.environment.now + seconds)

    # faults

    def kill(self, broker: int) -> None:
        """Send SIGKILL to a broker. Unsynced data is not lost."""
        self._broker(broker).machine.kill()

    def stop(self, broker: int) -> None:
        """Send SIGTERM to a broker. Return when the broker has handed over its partitions and
        ended."""
        chosen = self._broker(broker)
        chosen.terminate()
        self.wait(lambda: not chosen.is_running)

    def start_broker(self, broker: int) -> None:
        """Start a broker again, without waiting until it serves."""
        self._broker(broker).start()

    def lose_power(self, broker: int) -> None:
        """Cut the broker's power: unsynced data may be lost, and its connections fall silent."""
        self._broker(broker).machine.lose_power()

    def pause(self, broker: int) -> None:
        """Send SIGSTOP to a broker: its connections stay open, but it sends nothing."""
        loop = self._broker(broker).machine.loop
        if loop is not None:
            loop.pause()

    def resume(self, broker: int) -> None:
        """Send SIGCONT to a broker that was stopped by `pause`."""
        loop = self._broker(broker).machine.loop
        if loop is not None:
            loop.resume()

    def cut(
        self, one: int | str, others: Iterable[int | str] | None = None, *, both: bool = True
    ) -> None:
        """Hold back all data from the machine `one` to `others` (None: all), and with `both` in the
        opposite direction, until `heal`. Machines are named by a broker id, an application's name,
        or `ZOOKEEPER`."""
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
        """End all cuts, and deliver the data that they hold back."""
        self.cluster.links.heal_all()

    def mend(self, *, seconds: float = _READY_S) -> None:
        """End all cuts, resume paused brokers, and start stopped brokers. Return when all brokers
        serve. Raises SimulationError after `seconds` of virtual time."""
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
            ids = ", ".join(map(str, self.cluster.brokers))
            raise SimulationError(f"there is no broker {broker}; the brokers are {ids}")
        return found

    def _names(self, side: int | str) -> list[str]:
        if isinstance(side, int):
            return [self._broker(side).machine.name]
        return list(self.cluster.zookeeper.members) if side == ZOOKEEPER else [side]

    def _machine_here(self) -> Machine:
        """Return the machine of the running process."""
        loop = asyncio.get_running_loop()
        return next(each for each in self.cluster.machines.values() if each.loop is loop)

    def _clock_here(self) -> Clock:
        return self._machine_here().clock

    def _rng_here(self) -> Rng:
        return self.environment.rng(
            f"client {self.environment.number()} on {self._machine_here().name}"
        )
