"""The background work of a client object: every task has an owner that ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

logger = logging.getLogger(__name__)


class TaskOwner:
    """Owns tasks from their start to their end.

    A task that ends with an exception is a defect of ours: it is logged, and `on_failure` is told
    so that nobody waits for ever.
    """

    def __init__(self, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order of their start, in which they are ended too."""

    def start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    async def finish(self, timeout_s: float) -> None:
        """Wait until all others that run have ended, but not longer than that."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """Cancel what still runs and wait for its end. Idempotent."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("event=task-failed name=%s", task.get_name(), exc_info=error)
            if self._on_failure is not None:
                self._on_failure(error)
