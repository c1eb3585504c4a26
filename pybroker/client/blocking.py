"""Running of coroutines from blocking code, with or without a running event loop (as in a
notebook)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that `work` returns on a new event loop, and return its result. If this
    thread runs an event loop already, that loop is blocked meanwhile, and another thread runs the
    coroutine."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1, "pybroker blocking") as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
