"""Asynchronous work called from blocking code, whether or not that code runs in an event loop (a
notebook does)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the coroutine gives that `work` makes, on an event loop of its own. Where one runs
    already, that is in another thread, and the running loop stands still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1, "pybroker blocking") as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
