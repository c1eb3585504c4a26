"""Runs asynchronous work from blocking code, whether or not an event loop runs there (as in a
notebook)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that `work` makes on an event loop of its own, and return its result. If a
    loop is running, that happens in another thread, and the running loop stands still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1, "pybroker blocking") as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
