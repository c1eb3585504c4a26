"""Whether this member still owns its partitions. If ZooKeeper has not answered for some time, other
members may own them: then the streams return no records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pybroker.background import TaskOwner
from pybroker.errors import CoordError
from pybroker.ports import Coord, SessionEvent

_SILENCE_OF_SESSION_MAX: Final = 2 / 3
_RETRY_S: Final = 0.1


class SessionValidity:
    """Tracks whether one member's ZooKeeper session is valid. `sessions_ended` counts the member's
    ended sessions.

    `on_expired` is called when a session has ended. `on_connected` is called when the connection is
    restored, in the old or a new session. `on_certain` is called when the task of `find_out` has
    made sure that the member owns its partitions.
    """

    def __init__(
        self,
        coord: Coord,
        *,
        session_timeout_ms: int,
        on_expired: Callable[[], None],
        on_connected: Callable[[], None],
        on_certain: Callable[[], None],
    ) -> None:
        self._coord = coord
        self._silence_max_s = session_timeout_ms / 1000 * _SILENCE_OF_SESSION_MAX
        self._on_expired = on_expired
        self._on_connected = on_connected
        self._on_certain = on_certain
        self._closed = False
        self._asking: asyncio.Task[None] | None = None
        self._tasks = TaskOwner()
        self._connected = asyncio.Event()
        self._connected.set()
        self.sessions_ended = 0
        coord.add_listener(self._on_session)

    async def close(self) -> None:
        """End the task. Idempotent."""
        self._closed = True
        await self._tasks.close()

    def is_certain(self) -> bool:
        """Whether it is certain that no other member owns this member's partitions."""
        return self._coord.session_id != 0 and self._coord.silence() < self._silence_max_s

    def find_out(self) -> None:
        """Start a task that syncs with ZooKeeper until the member certainly owns its partitions,
        and then calls `on_certain`. Without effect if such a task runs already."""
        if self._asking is None and not self._closed:
            self._asking = self._tasks.start(self._ask(), "classic consumer session validity")

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    async def connected(self) -> None:
        """Wait until the member is connected to ZooKeeper."""
        await self._connected.wait()

    async def _ask(self) -> None:
        while not self.is_certain():
            await self._connected.wait()
            try:
                await self._coord.sync()
            except CoordError:
                await asyncio.sleep(_RETRY_S)
        self._asking = None
        self._on_certain()

    def _on_session(self, event: SessionEvent) -> None:
        if self._closed:
            return
        match event:
            case SessionEvent.SUSPENDED:
                self._connected.clear()
            case SessionEvent.EXPIRED:
                self._connected.clear()
                self.sessions_ended += 1
                self._on_expired()
            case SessionEvent.CONNECTED | SessionEvent.RECONNECTED:
                self._connected.set()
                self._on_connected()
