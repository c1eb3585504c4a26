"""The regular calls of the application's callback `on_metrics`."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pybroker.background import TaskOwner

log = logging.getLogger(__name__)

MetricsT = TypeVar("MetricsT")
OnMetrics = Callable[[MetricsT], Awaitable[None] | None]
"""An application's callback for the metrics of a client, a plain or an async function."""


class MetricsReports(Generic[MetricsT]):
    """Calls `callback` with the result of `read`: every `interval_ms` (0: never) from `start` on,
    and once in `close`. If `callback` is None, there are no reports."""

    def __init__(
        self,
        callback: OnMetrics[MetricsT] | None,
        read: Callable[[], MetricsT],
        interval_ms: int,
    ) -> None:
        self._callback = callback
        self._read = read
        self._interval_s = interval_ms / 1_000
        self._running = False
        self._tasks = TaskOwner()

    def start(self) -> None:
        self._running = self._callback is not None
        if self._running and self._interval_s:
            self._tasks.start(self._run(), "metrics reports")

    async def close(self) -> None:
        """Report for the last time, if `start` was called. Idempotent."""
        running, self._running = self._running, False
        await self._tasks.close()
        if running:
            await self._report()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self._report()

    async def _report(self) -> None:
        assert self._callback is not None
        try:
            outcome = self._callback(self._read())
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("callback on_metrics failed, it is called again later")
