"""A simulated machine: its present process, and its disk, clocks and boot id, which outlive the
process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, cast

from pybroker.testing.simulation.environment import WALL_MS_AT_START, Environment
from pybroker.testing.simulation.loop import ProcessLoop, Sockets

_MAKE: Callable[..., ProcessLoop] = cast("Callable[..., ProcessLoop]", ProcessLoop)
"""The class `ProcessLoop`. The cast lets the type checker accept it although it lacks unused parts
of asyncio's interface."""


class MachineClock:
    """The clock of a simulated machine. `jump_ms` moves only the wall clock."""

    def __init__(self, environment: Environment, offset_s: float) -> None:
        self._environment = environment
        self.offset_s = offset_s
        self.jump_ms = 0

    def wall_ms(self) -> int:
        return WALL_MS_AT_START + self.jump_ms + int(self._environment.now * 1000)

    def monotonic(self) -> float:
        return self._environment.now + self.offset_s

    def boottime(self) -> float:
        return self._environment.now + self.offset_s


class Machine:
    """A simulated machine with at most one process at a time.

    When a process has ended, the callbacks in `on_stop` are called: with False if the machine has
    lost power (connections fall silent), otherwise with True.
    """

    def __init__(self, environment: Environment, name: str) -> None:
        self.environment = environment
        self.name = name
        self._rng = environment.rng(f"machine {name}")
        self.clock = MachineClock(environment, self._rng.random() * 100_000)
        self.boots = 0
        self.is_up = True
        self.loop: ProcessLoop | None = None
        self._main: asyncio.Task[object] | None = None
        self.on_stop: list[Callable[[bool], object]] = []
        self.on_power_loss: list[Callable[[], object]] = []
        self._graves: list[ProcessLoop] = []
        self._boot_id = ""
        self._boot()

    def boot_id(self) -> str:
        """Return the boot id, which a power loss changes."""
        return self._boot_id

    def pid(self) -> int:
        return 1 + len(self._graves)

    @property
    def loops(self) -> list[ProcessLoop]:
        """Return the event loops of all processes that have run on this machine, oldest first."""
        return [*self._graves] if self.loop is None else [*self._graves, self.loop]

    def start(
        self, main: Callable[[ProcessLoop], Coroutine[Any, Any, object]], sockets: Sockets | None
    ) -> ProcessLoop:
        """Start a process that runs `main`, and return its event loop. Raises RuntimeError if
        another process runs."""
        if self.loop is not None:
            raise RuntimeError(f"a process runs on {self.name} already; end it first")
        name = f"{self.name}.{self.pid()}"
        self.environment.note(f"start {name}")
        loop = _MAKE(self.environment, name, sockets=sockets, clock_offset=self.clock.offset_s)
        self.loop = loop
        self.is_up = True
        # A task must be created while its loop runs.
        loop.call_soon(self._begin, loop, main)
        return loop

    def _begin(
        self, loop: ProcessLoop, main: Callable[[ProcessLoop], Coroutine[Any, Any, object]]
    ) -> None:
        # Keep a reference: the garbage collector takes tasks that only their future refers to.
        self._main = loop.create_task(main(loop), name="main")
        self._main.add_done_callback(lambda main: _tell_failure(loop, main))

    def kill(self) -> None:
        """Kill the process, if one runs, like SIGKILL."""
        self._end(heard=True)

    def lose_power(self) -> None:
        """Cut the power: the process ends without notice to its peers, unsynced data may be lost,
        and the boot id changes."""
        self.environment.note(f"power loss {self.name}")
        self.is_up = False
        self._end(heard=False)
        for action in self.on_power_loss:
            action()
        self._boot()

    def bury(self) -> None:
        """Release the memory of all processes at the end of the run."""
        self.kill()
        for loop in self._graves:
            loop.bury()

    def _end(self, *, heard: bool) -> None:
        loop, self.loop = self.loop, None
        if loop is None:
            return
        self.environment.note(f"end {loop.name}")
        loop.kill()
        self._graves.append(loop)
        for action in self.on_stop:
            action(heard)

    def _boot(self) -> None:
        self.boots += 1
        self._boot_id = str(uuid.UUID(bytes=self._rng.randbytes(16)))


def _tell_failure(loop: ProcessLoop, main: asyncio.Task[object]) -> None:
    error = None if main.cancelled() else main.exception()
    if error is not None:
        loop.call_exception_handler({"message": "the process failed", "exception": error})
