"""The event loop of one simulated process. It runs unmodified asyncio tasks and futures.

Ready callbacks run in the order in which they became ready. The seed does not change this order,
only the times. A killed process runs no cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import socket
from asyncio import events, format_helpers
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from pybroker.testing.simulation.environment import Entry, Environment

if TYPE_CHECKING:
    from asyncio import Handle, TimerHandle

T = TypeVar("T")
_HICCUP_PROBABILITY: Final = 0.05
_HICCUP_S_MAX: Final = 0.003
_WAITS_WHILE_ENDING_MAX: Final = 100


class Sockets(Protocol):
    """The simulated network as an event loop uses it."""

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to the address, and return the transport and the protocol that `factory` makes.
        Raises OSError like a real connect."""

    async def adopt(
        self, factory: Callable[[], asyncio.BaseProtocol], accepted: socket.socket
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def watch(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call `callback` whenever a connection waits to be accepted at the listening socket with
        this descriptor."""

    def unwatch(self, descriptor: int) -> bool: ...


class _Task(asyncio.Task[T]):
    """A task whose hash is a sequence number, so that sets of tasks have the same order in every
    run."""

    number = 0

    def __hash__(self) -> int:
        if not self.number:
            self.number = cast("ProcessLoop", self.get_loop()).environment.number()
        return self.number


class _Future(asyncio.Future[T]):
    number = 0

    def __hash__(self) -> int:
        if not self.number:
            self.number = cast("ProcessLoop", self.get_loop()).environment.number()
        return self.number


class _Handle(asyncio.Handle):
    """A faster copy of `asyncio.Handle`."""

    __slots__ = ()

    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: ProcessLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(_Handle):
    """A timer of virtual time, with the parts of TimerHandle that asyncio needs."""

    __slots__ = ("_when", "entry")

    _when: float
    entry: Entry

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        super().cancel()
        self.entry.cancelled = True


class ProcessLoop(asyncio.AbstractEventLoop):
    """The event loop of a simulated process named `name`. `clock_offset` is the value of its
    monotonic clock at virtual time 0."""

    def __init__(
        self,
        environment: Environment,
        name: str,
        *,
        sockets: Sockets | None = None,
        clock_offset: float = 0.0,
    ) -> None:
        self.environment = environment
        self.name = name
        self.clock_offset = clock_offset
        self.sockets = sockets
        self.failures: list[str] = []
        """The exceptions that no code of the process caught, as text."""
        self.is_dead = False
        self.is_paused = False
        self._ready: deque[_Handle] = deque()
        self._is_announced = False
        self._free_at = 0.0
        self._rng = environment.rng(f"turns of {name} {environment.number()}")
        self._buried: list[asyncio.Task[Any]] = []

    # life

    def pause(self) -> None:
        """Stop the process, like SIGSTOP. Its events wait until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Let the stopped process continue, like SIGCONT."""
        self.is_paused = False
        self._announce()

    def kill(self) -> None:
        """End the process at once, like SIGKILL. Idempotent."""
        if not self.is_dead:
            self.is_dead = True
            self._ready.clear()
            # Keep the tasks, or the garbage collector would run the cleanup of their coroutines.
            found = cast("set[_Task[Any]]", asyncio.all_tasks(self))
            self._buried = [*sorted(found, key=hash)]

    def bury(self) -> None:
        """Kill the process and release all its objects. Call this after the end of the
        simulation."""
        self.kill()
        buried, self._buried = self._buried, []
        previous = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for task in buried:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(cast("Coroutine[Any, Any, Any]", task.get_coro()))
        finally:
            events._set_running_loop(previous)

    def turn(self) -> None:
        """Run the callbacks that are ready now. Callbacks that they schedule run in the next
        call."""
        self._is_announced = False
        if self.is_dead or self.is_paused or not self._ready:
            return
        environment = self.environment
        if environment.now < self._free_at:
            self._is_announced = True
            environment.at(self._free_at, self._turn_now)
            return
        if self._rng.random() < _HICCUP_PROBABILITY:
            self._free_at = environment.now + self._rng.random() * _HICCUP_S_MAX
        ready = self._ready
        previous = events._get_running_loop()
        events._set_running_loop(None)
        events._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle._cancelled:
                    # As `Handle._run`, without an extra frame.
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._blame(handle, error)
                if self.is_dead or self.is_paused:
                    return
        finally:
            events._set_running_loop(previous)
        self._announce()

    def _blame(self, handle: _Handle, error: BaseException) -> None:
        callback = format_helpers._format_callback_source(handle._callback, handle._args)
        message = f"Exception in callback {callback}"
        self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def _turn_now(self) -> None:
        self._is_announced = False
        self._announce()

    def _announce(self) -> None:
        if self._ready and not (self._is_announced or self.is_dead or self.is_paused):
            self._is_announced = True
            self.environment.ready(self)

    # asyncio's interface

    def time(self) -> float:
        return self.environment.now + self.clock_offset

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = _Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            if not self._is_announced:
                self._announce()
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        return self.call_at(
            self.environment.now + self.clock_offset + delay, callback, *args, context=context
        )

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> TimerHandle:
        handle = _Timer(callback, args, self, context)
        handle._when = when
        handle.entry = self.environment.at(when - self.clock_offset, self._ring, handle)
        return cast("TimerHandle", handle)

    def _ring(self, handle: _Handle) -> None:
        """Run the callback of an expired timer. In a stopped process the callback waits until
        `resume`."""
        if not self.is_dead:
            self._ready.append(handle)
            self._announce()

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        return _Task(coro, loop=self, name=name or "task", context=context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> Any:
        raise RuntimeError(f"{func!r}: there are no threads in a simulation")

    # the network

    def _network(self) -> Sockets:
        if self.sockets is None:
            raise OSError(f"the process {self.name} has no network")
        return self.sockets

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        **_options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._network().connect(protocol_factory, host, port)

    async def connect_accepted_socket(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: socket.socket,
        **_options: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._network().adopt(protocol_factory, sock)

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        self._network().watch(fd, lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        return self._network().unwatch(fd)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine or generator of a dead process. Repeat `coroutine.close()`, because each
    `await` in the cleanup code makes one call fail."""
    frame = "cr_frame" if inspect.iscoroutine(coroutine) else "gi_frame"
    for _ in range(_WAITS_WHILE_ENDING_MAX):
        with contextlib.suppress(BaseException):
            coroutine.close()
        if getattr(coroutine, frame) is None:
            return


class LoopBlocking:
    """The `Blocking` (thread pool) of a simulated process, without threads. Each call takes effect
    at a random time between its start and its completion."""

    def __init__(self, loop: ProcessLoop, rng: random.Random, threads: int = 10) -> None:
        self._loop = loop
        self._rng = rng
        self._free = threads
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]]
        self._waiting = deque()
        self.delay_s: Callable[[], float] = lambda: rng.random() * 0.001
        """A function that returns the duration of the next call in seconds."""

    def run(self, function: Callable[..., T], *args: object) -> asyncio.Future[T]:
        heard: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((heard, function, args))
        self._begin()
        return heard

    def resize(self, threads: int) -> None:
        """Do nothing: the number of calls at a time is fixed."""

    def give_way(self) -> None:
        """Do nothing: a simulation has no threads that compete for a processor."""

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self._waiting.clear()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            delay_s = self.delay_s()
            at_s = delay_s * self._rng.random()
            self._loop.environment.after(at_s, self._work, delay_s - at_s, *self._waiting.popleft())

    def _work(
        self,
        rest_s: float,
        heard: asyncio.Future[Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        """Run `function` now, without a current event loop, as if in another thread. Resolve the
        future `heard` with the result or exception, `rest_s` seconds of simulated time later."""
        loop = self._loop
        if loop.is_dead:
            return
        if loop.is_paused:
            loop.environment.after(0.01, self._work, rest_s, heard, function, args)
            return
        result: Any = None
        failure: BaseException | None = None
        if not heard.cancelled():
            try:
                result = function(*args)
            except BaseException as error:
                failure = error
        loop.environment.after(rest_s, self._tell, heard, result, failure)

    def _tell(self, heard: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
        if not self._loop.is_dead:
            self._loop.call_soon(self._deliver, heard, result, failure)

    def _deliver(
        self, heard: asyncio.Future[Any], result: Any, failure: BaseException | None
    ) -> None:
        self._free += 1
        self._begin()
        if heard.done():
            return
        if failure is None:
            heard.set_result(result)
        else:
            heard.set_exception(failure)
