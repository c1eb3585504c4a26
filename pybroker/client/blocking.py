"""Running of coroutines from blocking code, with or without a running event loop (as in a
notebook)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine of `work` on a new event loop, and return its result. A running event loop
    of this thread is blocked meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1, "pybroker blocking") as executor:
        return executor.submit(lambda: asyncio.run(work())).result()
