"""The base class of simulated clients, and the state that all clients share. Each client has its
own machine. The client's process is sometimes killed, and started again later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pybroker.client.errors import ClientError
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.loop import ProcessLoop, Sockets
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.workload.options import WorkloadOptions
from pybroker.testing.simulation.workload.recorder import Recorder

_AGAIN_S = 0.2
_DOWN_S_MAX = 2.0


class Openable(Protocol):
    async def start(self) -> None: ...


OpenableT = TypeVar("OpenableT", bound=Openable)


@dataclass(slots=True)
class Catalog:
    """The topics that exist, as far as the admin client knows."""

    topics: dict[str, int] = field(default_factory=dict)
    """The partition count of each topic."""
    lives: dict[str, int] = field(default_factory=dict)
    """The number of times that each topic was created."""
    doomed: set[str] = field(default_factory=set)
    """Topics whose deletion may be incomplete. The creation of such a topic may get the answer
    "already exists".
    """
    version: int = 0

    def add(self, topic: str, partitions: int) -> None:
        self.topics[topic] = partitions
        self.version += 1

    def born(self, topic: str, partitions: int) -> None:
        self.lives[topic] = self.lives.get(topic, 0) + 1
        self.add(topic, partitions)

    def remove(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self.doomed.add(topic)
        self.version += 1

    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, number)
            for topic, count in self.topics.items()
            for number in range(count)
        ]


@dataclass(slots=True)
class Shared:
    """The state that all clients of a run share: options, topics, the recorder, and whether they
    must stop."""

    environment: Environment
    machine: Callable[[str], Machine]
    sockets: Callable[[Machine], Sockets]
    bootstrap: str
    options: WorkloadOptions
    recorder: Recorder
    catalog: Catalog = field(default_factory=Catalog)
    failures: list[str] = field(default_factory=list)
    """Errors that no client may get: all errors that are not a `ClientError`."""
    is_stopping: bool = False
    is_even: bool = False
    """Whether topics and group members stay unchanged from now on, and every partition gets its
    share of values."""
    groups_are_stopping: bool = False
    has_keyed_topic: bool = False
    """Whether the compacted topic exists. It is not in `catalog`, whose topics get the values of
    all producers."""


class Client:
    """A simulated client. `run` must return soon after `shared.is_stopping` becomes true."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.shared = shared
        self.name = name
        self.incarnation = 0
        self.has_ended = False
        """Whether the client's last process has ended and will not start again."""
        self.machine = shared.machine(name)
        self._fate = shared.environment.rng(f"fate of {name}")
        self.rng = self._fate
        """The random stream of the client's present process."""

    @property
    def options(self) -> WorkloadOptions:
        return self.shared.options

    @property
    def recorder(self) -> Recorder:
        return self.shared.recorder

    @property
    def clock(self) -> Clock:
        return self.machine.clock

    @property
    def is_stopping(self) -> bool:
        return self.shared.is_stopping

    def start(self) -> None:
        """Start the client's next process, unless one runs or the clients are stopping."""
        if self.machine.loop is not None:
            return
        if self.is_stopping:
            self.has_ended = True
            return
        self.incarnation += 1
        self.rng = self.shared.environment.rng(f"life {self.incarnation} of {self.name}")
        self.machine.start(self._main, self.shared.sockets(self.machine))
        if self.options.crash_mean_s:
            lives_s = self._fate.expovariate(1 / self.options.crash_mean_s)
            self.shared.environment.after(lives_s, self._crash, self.incarnation)

    def _crash(self, incarnation: int) -> None:
        if incarnation == self.incarnation and not self.is_stopping and not self.has_ended:
            self.machine.kill()
            self.killed()
            self._come_back()

    def killed(self) -> None:
        """Record that the client's requests in flight have an unknown outcome, because its process
        was killed."""

    def _come_back(self) -> None:
        self.shared.environment.after(self._fate.random() * _DOWN_S_MAX, self.start)

    async def _main(self, loop: ProcessLoop) -> None:
        try:
            await self.run()
        except ClientError as error:
            self.recorder.refused[type(error).__name__] += 1
        except Exception as error:
            if loop.is_dead:
                return  # cancelled because its process was killed
            self.shared.failures.append(f"{loop.name}: {error!r}")
        self.shared.failures += [f"{loop.name}: {failure}" for failure in loop.failures]
        self.machine.kill()
        self.killed()
        if self.is_stopping:
            self.has_ended = True
        else:
            self._come_back()

    async def run(self) -> None:
        raise AssertionError("a subclass of Client must define run()")

    async def opened(self, make: Callable[[], OpenableT]) -> OpenableT | None:
        """Return a new, started Kafka client. Try again while the cluster cannot be reached. Return
        None once `is_stopping` is true."""
        while not self.is_stopping:
            client = make()
            try:
                await client.start()
            except ClientError as error:
                self.recorder.refused[type(error).__name__] += 1
                await asyncio.sleep(_AGAIN_S)
            else:
                return client
        return None

    async def rest(self, mean_s: float) -> None:
        """Sleep for a random time with the mean `mean_s` seconds. Sometimes add a pause of up to
        `options.pause_s_max` seconds."""
        options = self.options
        if options.pause_mean_s and self.rng.random() < mean_s / options.pause_mean_s:
            await asyncio.sleep(self.rng.random() * options.pause_s_max)
        await asyncio.sleep(self.rng.expovariate(1 / mean_s))
