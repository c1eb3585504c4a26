"""Background tasks, each with an owner that starts it and ends it. The owner logs the exception of
a failed task once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any, TypeVarTuple, Unpack

log = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]
Ts = TypeVarTuple("Ts")


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel these tasks, except the caller's own, and wait until they have ended. If the caller is
    cancelled during the wait, raise CancelledError; the tasks then end later."""
    others = _others(tasks)
    for task in others:
        task.cancel()
    await _finish(others)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # else asyncio warns that the exception was never retrieved


class BackgroundTask:
    """Runs work in at most one background task, from `start` until `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False
        """Whether this task has been cancelled. A second cancellation would interrupt the clean-up
        of the task, so it is omitted."""

    @property
    def runs(self) -> bool:
        """Whether the task is running. A cancelled task still runs until it has ended."""
        return self._task is not None and not self._task.done()

    def start(self, work: Callable[[], Work]) -> None:
        """Start a task that runs `work`, unless a task runs already."""
        if not self.runs:
            self._task = asyncio.get_running_loop().create_task(work(), name=self._name)
            self._task.add_done_callback(_log_failure)
            self._is_cancelled = False

    async def stop(self) -> None:
        """Cancel the task and wait until it has ended. If the caller is cancelled during the wait,
        raise CancelledError. May be called without a task, and more than once."""
        self.cancel()
        await self.finish()

    def cancel(self) -> None:
        """Cancel the task without waiting for its end. Do nothing if the caller runs in this
        task."""
        if self._task is None or self._is_cancelled or self._task is asyncio.current_task():
            return
        self._is_cancelled = True
        self._task.cancel()

    async def finish(self, timeout_s: float | None = None) -> None:
        """Wait, at most `timeout_s` seconds, until the task has ended. The task is not
        cancelled."""
        if self._task is not None:
            await _finish(_others([self._task]), timeout_s)


class RetryLoop:
    """Calls `work` after each call of `wake`, and again every `pause_s` seconds while `work`
    returns True. Runs between `start` and `stop`."""

    def __init__(self, name: str, work: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        self._work = work
        self._pause_s = pause_s
        self._woken = asyncio.Event()
        self._task = BackgroundTask(name)
        self.stop = self._task.stop

    @property
    def runs(self) -> bool:
        return self._task.runs

    def start(self) -> None:
        self._task.start(self._run)

    def wake(self) -> None:
        """Let the loop call `work` soon. A call before `start` takes effect at `start`."""
        self._woken.set()

    async def _run(self) -> None:
        pause_s = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            self._woken.clear()
            pause_s = self._pause_s if await self._work() else None


def on_this_loop(call: Callable[[Unpack[Ts]], object]) -> Callable[[Unpack[Ts]], None]:
    """Return a function that schedules `call` on the present event loop, from any thread. After the
    loop is closed, the function does nothing."""
    loop = asyncio.get_running_loop()

    def call_soon(*arguments: *Ts) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(call, *arguments)

    return call_soon


class TaskOwner:
    """Owns tasks from their start to their end. `on_failure` receives the exception of a failed
    task."""

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[None], None] = {}
        """The running tasks, in the order of their start. `close` cancels them in this order."""

    def start(self, work: Work, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def guarded(
        self, work: Callable[[Unpack[Ts]], object], name: str
    ) -> Callable[[Unpack[Ts]], None]:
        """Return a function that calls `work`. An exception of `work` is logged with `name` and
        passed to `on_failure`."""

        def call(*arguments: *Ts) -> None:
            try:
                work(*arguments)
            except Exception as error:
                log.exception("background task failed name=%s", name)
                if self._on_failure is not None:
                    self._on_failure(error)

        return call

    async def finish(self, timeout_s: float) -> bool:
        """Wait, at most `timeout_s` seconds, until all running tasks except the caller's own have
        ended. Return True if all have ended."""
        others = _others(self._tasks)
        await _finish(others, timeout_s)
        return all(task.done() for task in others)

    async def close(self) -> None:
        """Cancel the running tasks and wait until they have ended. Idempotent."""
        await cancel_and_wait(*self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = _log_failure(task)
        if error is not None and self._on_failure is not None:
            self._on_failure(error)


def _log_failure(task: asyncio.Task[None]) -> BaseException | None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("background task failed name=%s", task.get_name(), exc_info=error)
    return error


def _others(tasks: Iterable[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Return the running `tasks` without the caller's own task, because a task cannot wait for
    itself."""
    own = asyncio.current_task()
    return [task for task in tasks if task is not own and not task.done()]


async def _finish(tasks: Collection[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
