"""A `Coord` whose first operation opens the ZooKeeper session."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pybroker.errors import ConnectionLoss, SessionExpired, StartupError
from pybroker.ports import Coord, CoordOp, NodeStat, OpResult, SessionListener, Watch


class ClosableCoord(Coord, Protocol):
    """A ZooKeeper session that its owner has to close."""

    async def close(self) -> None: ...


class LateSession:
    """A `Coord` whose first operation opens the session. If the session cannot be opened, the
    operation raises ConnectionLoss, and the next operation tries to open it."""

    def __init__(self, connect: Callable[[], Awaitable[ClosableCoord]]) -> None:
        """`connect` opens the session, or raises StartupError."""
        self._connect = connect
        self._opened: ClosableCoord | None = None
        self._opening = asyncio.Lock()
        self._listeners: list[SessionListener] = []
        self._closed = False

    async def close(self) -> None:
        """End the session, if there is one. Idempotent."""
        self._closed = True
        async with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()

    @property
    def generation(self) -> int:
        return 0 if self._opened is None else self._opened.generation

    @property
    def session_id(self) -> int:
        return 0 if self._opened is None else self._opened.session_id

    def silence(self) -> float:
        return 0.0 if self._opened is None else self._opened.silence()

    def add_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)
        if self._opened is not None:
            self._opened.add_listener(listener)

    async def get(self, path: str, watch: Watch | None = None) -> tuple[bytes, NodeStat]:
        return await (await self._session()).get(path, watch)

    async def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        return await (await self._session()).exists(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await (await self._session()).children(path, watch)

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        session = await self._session()
        return await session.create(path, data, ephemeral=ephemeral, sequence=sequence)

    async def set(self, path: str, data: bytes, version: int = -1) -> NodeStat:
        return await (await self._session()).set(path, data, version)

    async def delete(self, path: str, version: int = -1) -> None:
        await (await self._session()).delete(path, version)

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        return await (await self._session()).multi(ops)

    async def sync(self, path: str = "/") -> None:
        await (await self._session()).sync(path)

    async def _session(self) -> Coord:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._closed:
                raise SessionExpired("this broker has closed the ZooKeeper session")
            if self._opened is None:
                try:
                    opened = await self._connect()
                except StartupError as error:
                    raise ConnectionLoss(str(error)) from error
                for listener in self._listeners:
                    opened.add_listener(listener)
                self._opened = opened
            return self._opened
