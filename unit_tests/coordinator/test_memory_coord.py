"""Tests that the in-memory service fulfils the contract, and its methods for tests break
sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pybroker.clock import ManualClock
from pybroker.errors import ConnectionLoss, SessionExpired
from pybroker.ports import SessionEvent, WatchKind
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.coord_contract import (
    Client,
    CoordContract,
    SeenEvents,
    refused,
    watch_event,
)
from unit_tests.coordinator.memory_coord import MemoryCoord


class MemoryService:
    """The contract's `Service` for a `MemoryTree`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tree = MemoryTree(self.clock)

    async def client(self) -> MemoryCoord:
        coord = MemoryCoord(self.tree)
        await coord.start()
        return coord

    async def expire(self, client: Client) -> None:
        _memory(client).expire()

    async def break_connection(self, client: Client) -> None:
        _memory(client).suspend()

    async def mend_connection(self, client: Client) -> None:
        _memory(client).resume()


def _memory(client: Client) -> MemoryCoord:
    assert isinstance(client, MemoryCoord)
    return client


@pytest.fixture
async def service() -> AsyncIterator[MemoryService]:
    yield MemoryService()


class TestMemoryCoord(CoordContract):
    """The contract tests for `MemoryCoord`."""


async def test_lost_reply_may_hide_an_applied_request(service: MemoryService) -> None:
    coord = await service.client()
    coord.lose_reply(applied=True)
    coord.lose_reply(applied=False)
    await refused(ConnectionLoss, coord.create("/applied"))
    await refused(ConnectionLoss, coord.create("/not-applied"))
    assert service.tree.paths() == ["/", "/applied"]


async def test_expiry_while_suspended_is_reported_at_resume(service: MemoryService) -> None:
    coord, other = await service.client(), await service.client()
    seen = SeenEvents()
    coord.add_listener(seen)
    await coord.create("/e", ephemeral=True)
    coord.suspend()
    coord.expire()
    assert await other.exists("/e") is None
    assert SessionEvent.EXPIRED not in seen.events
    coord.resume()
    await seen.next(SessionEvent.CONNECTED)
    assert seen.events == [SessionEvent.SUSPENDED, SessionEvent.EXPIRED, SessionEvent.CONNECTED]


async def test_silence_grows_while_suspended(service: MemoryService) -> None:
    coord = await service.client()
    service.clock.advance(5)
    assert coord.silence() == 0
    coord.suspend()
    service.clock.advance(7)
    assert coord.silence() == 7
    coord.resume()
    assert coord.silence() == 0


async def test_watches_of_changes_while_suspended_fire_at_resume(service: MemoryService) -> None:
    coord, other = await service.client(), await service.client()
    seen = SeenEvents()
    await coord.create("/a")
    await coord.get("/a", seen)
    coord.suspend()
    await other.set("/a", b"")
    assert seen.events == []
    coord.resume()
    await seen.next(watch_event(WatchKind.CHANGED, "/a"))


async def test_closed_client_has_no_session(service: MemoryService) -> None:
    coord = await service.client()
    await coord.close()
    await coord.close()
    assert coord.session_id == 0
    await refused(SessionExpired, coord.get("/"))


async def test_path_must_be_absolute_and_plain(service: MemoryService) -> None:
    coord = await service.client()
    for path in ("a", "/a/", "//a", ""):
        with pytest.raises(ValueError, match="not a valid node path"):
            await coord.create(path)
