"""What a start asks of ZooKeeper, asked again when the connection breaks meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pybroker.errors import ConnectionLoss, SessionExpired
from pybroker.ports import Clock

_log = logging.getLogger(__name__)
_RETRY_S: Final = 0.2
T = TypeVar("T")


async def asked_again(
    what: str, ask: Callable[[], Awaitable[T]], *, clock: Clock, limit_s: float
) -> T:
    """What `ask` gives; it is begun anew, so it must not matter how much of it was done. Raises
    ConnectionLoss or SessionExpired where these still come `limit_s` after the first one, and at
    once what else `ask` raises."""
    deadline: float | None = None
    while True:
        try:
            return await ask()
        except (ConnectionLoss, SessionExpired) as error:
            now = clock.monotonic()
            if deadline is None:
                deadline = now + limit_s
                _log.warning(
                    "zookeeper connection lost while starting, trying again step=%s limit_s=%g "
                    "error=%r",
                    what,
                    limit_s,
                    error,
                )
            if now >= deadline:
                raise
        await asyncio.sleep(_RETRY_S)
