"""Repeats requests that ZooKeeper did not answer, or refused because another client changed the
node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pybroker.errors import BadVersion, ConnectionLoss, NodeExists, SessionExpired
from pybroker.ports import Clock

log = logging.getLogger(__name__)
_RETRY_S: Final = 0.2
_ATTEMPTS_MAX: Final = 10
"""The maximum number of attempts of a conditional write. Leaders and the controller may change the
node between its read and its write."""
T = TypeVar("T")


async def repeat_unanswered(
    what: str, ask: Callable[[], Awaitable[T]], *, clock: Clock, limit_s: float
) -> T:
    """Return the result of `ask`, which must be repeatable. Repeat `ask` after ConnectionLoss or
    SessionExpired, until `limit_s` seconds after the first error. `what` names the step in the
    log."""
    deadline: float | None = None
    while True:
        try:
            return await ask()
        except (ConnectionLoss, SessionExpired) as error:
            now = clock.monotonic()
            if deadline is None:
                deadline = now + limit_s
                log.warning(
                    "zookeeper connection lost at start step=%s limit_s=%g error=%r",
                    what,
                    limit_s,
                    error,
                )
            if now >= deadline:
                raise
        await asyncio.sleep(_RETRY_S)


async def repeat_conditional_write(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `attempt`, which reads a node and writes it conditionally. Repeat
    `attempt` after ConnectionLoss, or if another client changed the node: at most `_ATTEMPTS_MAX`
    calls."""
    for number in range(1, _ATTEMPTS_MAX):
        try:
            return await attempt()
        except (BadVersion, NodeExists, ConnectionLoss):
            await asyncio.sleep(_RETRY_S if number > 1 else 0)
    return await attempt()
