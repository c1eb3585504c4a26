"""The contract of every `Coord`: these tests run against the in-memory service and a real server.

A module that runs them makes a subclass of `CoordContract` named `Test...` and a fixture `service`.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from pybroker.errors import (
    BadVersion,
    ConnectionLoss,
    CoordError,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    RequestTooLarge,
)
from pybroker.ports import (
    CheckOp,
    Coord,
    CreateOp,
    DeleteOp,
    NodeStat,
    SessionEvent,
    SetOp,
    WatchEvent,
    WatchKind,
)
from unit_tests.patience import PATIENCE_S


class Client(Coord, Protocol):
    """A client that a test may close."""

    async def close(self) -> None: ...


class Service(Protocol):
    """A coordination service with an empty tree, which can disturb its clients."""

    async def client(self) -> Client:
        """Return a started client. The service closes the client after the test."""

    async def expire(self, client: Client) -> None:
        """End the client's session at the service."""

    async def break_connection(self, client: Client) -> None:
        """Break the client's connection. The client reconnects by itself, or at
        `mend_connection`."""

    async def mend_connection(self, client: Client) -> None: ...


class SeenEvents:
    """A listener and watch that collects events, and waits for expected ones."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self._arrived = asyncio.Event()

    def __call__(self, event: object) -> None:
        self.events.append(event)
        self._arrived.set()

    async def next(self, *expected: object) -> None:
        """Wait until one of the `expected` events has been received."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(event in self.events for event in expected):
                self._arrived.clear()
                await self._arrived.wait()

    async def gone(self, coord: Coord, path: str) -> None:
        """Wait until the node does not exist any more."""
        async with asyncio.timeout(PATIENCE_S):
            while await coord.exists(path, self) is not None:
                self._arrived.clear()
                await self._arrived.wait()


def watch_event(kind: WatchKind, path: str) -> WatchEvent:
    return WatchEvent(kind, path)


async def refused(error: type[CoordError], work: object) -> None:
    with pytest.raises(error):
        await work  # type: ignore[misc]


class CoordContract:
    """The tests of the contract."""

    # ---- nodes

    async def test_created_node_is_read_back_with_version_0(self, service: Service) -> None:
        coord = await service.client()
        assert await coord.create("/a", b"one") == "/a"
        data, stat = await coord.get("/a")
        assert (data, stat.version, stat.data_length, stat.num_children) == (b"one", 0, 3, 0)
        assert (stat.ephemeral_owner, stat.czxid) == (0, stat.mzxid)

    async def test_set_raises_the_version_and_keeps_the_czxid(self, service: Service) -> None:
        coord = await service.client()
        await coord.create("/a")
        _, created = await coord.get("/a")
        stat = await coord.set("/a", b"two", 0)
        assert (stat.version, stat.czxid) == (1, created.czxid)
        assert stat.mzxid > created.mzxid
        assert await coord.get("/a") == (b"two", stat)
        assert (await coord.set("/a", b"three")).version == 2

    async def test_czxid_orders_creations(self, service: Service) -> None:
        coord = await service.client()
        zxids = []
        for name in ("/b", "/a", "/c"):
            await coord.create(name)
            stat = await coord.exists(name)
            assert stat is not None
            zxids.append(stat.czxid)
        assert zxids == sorted(set(zxids))

    async def test_children_are_sorted_names(self, service: Service) -> None:
        coord = await service.client()
        await coord.create("/a")
        for name in ("c", "b", "a"):
            await coord.create(f"/a/{name}")
        assert await coord.children("/a") == ["a", "b", "c"]
        assert (await coord.get("/a"))[1].num_children == 3

    async def test_deleted_node_is_gone(self, service: Service) -> None:
        coord = await service.client()
        await coord.create("/a")
        await coord.delete("/a", 0)
        assert await coord.exists("/a") is None
        assert "a" not in await coord.children("/")

    async def test_operations_on_a_missing_node_raise_no_node(self, service: Service) -> None:
        coord = await service.client()
        await refused(NoNode, coord.get("/a"))
        await refused(NoNode, coord.children("/a"))
        await refused(NoNode, coord.set("/a", b""))
        await refused(NoNode, coord.delete("/a"))
        await refused(NoNode, coord.create("/a/b"))
        assert await coord.exists("/a") is None

    async def test_a_refused_operation_raises_the_error_of_its_cause(
        self, service: Service
    ) -> None:
        coord = await service.client()
        await coord.create("/a")
        await coord.create("/a/b")
        await refused(NodeExists, coord.create("/a"))
        await refused(BadVersion, coord.set("/a", b"", 1))
        await refused(BadVersion, coord.delete("/a/b", 1))
        await refused(NotEmpty, coord.delete("/a"))
        await coord.create("/e", ephemeral=True)
        await refused(NoChildrenForEphemerals, coord.create("/e/x"))

    async def test_sequence_is_ten_digits_and_counts_every_creation(self, service: Service) -> None:
        coord = await service.client()
        await coord.create("/a")
        assert await coord.create("/a/n-", sequence=True) == "/a/n-0000000000"
        await coord.create("/a/other")
        await coord.delete("/a/other")
        assert await coord.create("/a/n-", sequence=True) == "/a/n-0000000002"

    async def test_empty_data_is_returned_as_empty(self, service: Service) -> None:
        coord = await service.client()
        await coord.create("/a", b"")
        assert (await coord.get("/a"))[0] == b""

    async def test_request_over_the_limit_is_refused_and_not_applied(
        self, service: Service
    ) -> None:
        coord = await service.client()
        half = bytes(300 * 1024)
        await coord.create("/a", half)
        await refused(RequestTooLarge, coord.set("/a", half + half))
        await refused(RequestTooLarge, coord.create("/b", half + half))
        await refused(RequestTooLarge, coord.multi([SetOp("/a", half), CreateOp("/c", half)]))
        assert (await coord.get("/a"))[1].version == 0
        assert await coord.children("/") == ["a"]

    async def test_sync_shows_what_others_wrote(self, service: Service) -> None:
        writer, reader = await service.client(), await service.client()
        await writer.create("/a", b"new")
        await reader.sync("/a")
        assert (await reader.get("/a"))[0] == b"new"

    async def test_many_requests_may_be_under_way(self, service: Service) -> None:
        coord = await service.client()
        await asyncio.gather(*(coord.create(f"/n{number}") for number in range(200)))
        assert len(await coord.children("/")) == 200

    # ---- sessions

    async def test_ephemeral_node_belongs_to_the_session(self, service: Service) -> None:
        coord, other = await service.client(), await service.client()
        await coord.create("/e", ephemeral=True)
        stat = await other.exists("/e")
        assert stat is not None
        assert stat.ephemeral_owner == coord.session_id != other.session_id

    async def test_ephemeral_node_vanishes_with_a_closed_session(self, service: Service) -> None:
        coord, other = await service.client(), await service.client()
        await coord.create("/e", ephemeral=True)
        await other.sync()
        await coord.close()
        await SeenEvents().gone(other, "/e")

    async def test_expired_session_is_followed_by_a_new_one(self, service: Service) -> None:
        coord, other = await service.client(), await service.client()
        seen = SeenEvents()
        coord.add_listener(seen)
        first, generation = coord.session_id, coord.generation
        await coord.create("/e", ephemeral=True)
        await service.expire(coord)
        await seen.next(SessionEvent.CONNECTED)
        assert seen.events[-2:] == [SessionEvent.EXPIRED, SessionEvent.CONNECTED]
        assert coord.generation == generation + 1
        assert coord.session_id not in (0, first)
        await SeenEvents().gone(other, "/e")

    async def test_watch_of_an_expired_session_never_fires(self, service: Service) -> None:
        coord, other = await service.client(), await service.client()
        events, old, new = SeenEvents(), SeenEvents(), SeenEvents()
        coord.add_listener(events)
        await coord.create("/a")
        await coord.get("/a", old)
        await coord.exists("/b", old)
        await coord.children("/", old)
        await service.expire(coord)
        await events.next(SessionEvent.CONNECTED)
        await coord.get("/a", new)
        await other.create("/b")
        await other.set("/a", b"changed")
        await new.next(watch_event(WatchKind.CHANGED, "/a"))
        assert old.events == []

    async def test_lost_connection_fails_requests_and_keeps_the_session(
        self, service: Service
    ) -> None:
        coord = await service.client()
        seen = SeenEvents()
        coord.add_listener(seen)
        session = coord.session_id
        await coord.create("/e", ephemeral=True)
        await service.break_connection(coord)
        await seen.next(SessionEvent.SUSPENDED)
        await refused(ConnectionLoss, coord.get("/e"))
        await service.mend_connection(coord)
        await seen.next(SessionEvent.RECONNECTED)
        stat = await coord.exists("/e")
        assert stat is not None
        assert stat.ephemeral_owner == session == coord.session_id

    async def test_watches_outlive_a_lost_connection(self, service: Service) -> None:
        coord, other = await service.client(), await service.client()
        session, data, missing, child = SeenEvents(), SeenEvents(), SeenEvents(), SeenEvents()
        coord.add_listener(session)
        await coord.create("/a")
        await coord.create("/p")
        await coord.get("/a", data)
        await coord.exists("/b", missing)
        await coord.children("/p", child)
        await service.break_connection(coord)
        await session.next(SessionEvent.SUSPENDED)
        await other.set("/a", b"changed meanwhile")
        await service.mend_connection(coord)
        await session.next(SessionEvent.RECONNECTED)
        await data.next(watch_event(WatchKind.CHANGED, "/a"))
        await other.create("/b")
        await other.create("/p/c")
        await missing.next(watch_event(WatchKind.CREATED, "/b"))
        await child.next(watch_event(WatchKind.CHILD, "/p"))
        assert [len(seen.events) for seen in (data, missing, child)] == [1, 1, 1]

    async def test_more_watches_than_a_request_has_room_for_outlive_a_lost_connection(
        self, service: Service
    ) -> None:
        coord, other = await service.client(), await service.client()
        session, changes = SeenEvents(), SeenEvents()
        coord.add_listener(session)
        paths = [f"/{number:04}-{'n' * 244}" for number in range(4800)]
        for start in range(0, len(paths), 100):
            await asyncio.gather(
                *(coord.exists(path, changes) for path in paths[start : start + 100])
            )
        await service.break_connection(coord)
        await session.next(SessionEvent.SUSPENDED)
        await other.create(paths[0])
        await service.mend_connection(coord)
        await session.next(SessionEvent.RECONNECTED)
        await changes.next(watch_event(WatchKind.CREATED, paths[0]))
        await other.create(paths[-1])
        await changes.next(watch_event(WatchKind.CREATED, paths[-1]))
        assert session.events == [SessionEvent.SUSPENDED, SessionEvent.RECONNECTED]

    async def test_silence_is_short_while_the_service_answers(self, service: Service) -> None:
        coord = await service.client()
        await coord.sync()
        assert 0 <= coord.silence() < PATIENCE_S

    # ---- watches

    async def test_watch_fires_once(self, service: Service) -> None:
        coord = await service.client()
        seen = SeenEvents()
        await coord.create("/a")
        await coord.get("/a", seen)
        await coord.set("/a", b"1")
        await coord.set("/a", b"2")
        await coord.sync()
        assert seen.events == [watch_event(WatchKind.CHANGED, "/a")]

    async def test_watch_fires_before_the_answer_that_shows_the_change(
        self, service: Service
    ) -> None:
        coord, other = await service.client(), await service.client()
        seen = SeenEvents()
        await coord.create("/a", b"0")
        for round_number in range(1, 50):
            seen.events.clear()
            data, _ = await coord.get("/a", seen)
            change = asyncio.ensure_future(other.set("/a", b"%d" % round_number))
            while (await coord.get("/a"))[0] == data:
                assert seen.events in ([], [watch_event(WatchKind.CHANGED, "/a")])
            assert seen.events == [watch_event(WatchKind.CHANGED, "/a")]
            await change

    async def test_data_watch_and_child_watch_differ(self, service: Service) -> None:
        coord = await service.client()
        data, child = SeenEvents(), SeenEvents()
        await coord.create("/p")
        await coord.get("/p", data)
        await coord.children("/p", child)
        await coord.create("/p/c")
        await coord.sync()
        assert (data.events, child.events) == ([], [watch_event(WatchKind.CHILD, "/p")])
        await coord.children("/p", child)
        await coord.set("/p", b"x")
        await coord.set("/p/c", b"x")
        await coord.sync()
        assert data.events == [watch_event(WatchKind.CHANGED, "/p")]
        assert len(child.events) == 1

    async def test_deletion_fires_data_and_child_watches(self, service: Service) -> None:
        coord = await service.client()
        data, child = SeenEvents(), SeenEvents()
        await coord.create("/p")
        await coord.get("/p", data)
        await coord.children("/p", child)
        await coord.delete("/p")
        await coord.sync()
        deleted = watch_event(WatchKind.DELETED, "/p")
        assert (data.events, child.events) == ([deleted], [deleted])

    async def test_exists_watches_a_missing_node_and_get_does_not(self, service: Service) -> None:
        coord = await service.client()
        by_exists, by_get = SeenEvents(), SeenEvents()
        assert await coord.exists("/a", by_exists) is None
        await refused(NoNode, coord.get("/a", by_get))
        await coord.create("/a")
        await coord.sync()
        assert by_exists.events == [watch_event(WatchKind.CREATED, "/a")]
        assert by_get.events == []

    async def test_same_callback_counts_once(self, service: Service) -> None:
        coord = await service.client()
        seen, other = SeenEvents(), SeenEvents()
        await coord.create("/a")
        await coord.get("/a", seen)
        await coord.exists("/a", seen)
        await coord.exists("/a", other)
        await coord.set("/a", b"")
        await coord.sync()
        assert (len(seen.events), len(other.events)) == (1, 1)

    # ---- multis

    async def test_multi_gives_a_result_for_every_operation(self, service: Service) -> None:
        coord = await service.client()
        await coord.create("/old")
        results = await coord.multi(
            [
                CheckOp("/", -1),
                CreateOp("/a"),
                SetOp("/a", b"data", 0),
                CheckOp("/a", 1),
                CreateOp("/a/s-", sequence=True),
                DeleteOp("/old", 0),
            ]
        )
        path, stat, check, sequential, deletion = results[1:]
        assert (path, check, sequential, deletion) == ("/a", None, "/a/s-0000000000", None)
        assert isinstance(stat, NodeStat)
        assert stat.version == 1
        found = await coord.exists("/a")
        assert found is not None
        assert stat.czxid == found.czxid
        assert await coord.children("/") == ["a"]

    async def test_failed_multi_changes_nothing_and_names_the_culprit(
        self, service: Service
    ) -> None:
        coord = await service.client()
        seen = SeenEvents()
        await coord.create("/a", b"before")
        await coord.get("/a", seen)
        for operation, cause in (
            (CheckOp("/a", 7), BadVersion),
            (CreateOp("/a"), NodeExists),
            (DeleteOp("/missing"), NoNode),
            (SetOp("/missing", b""), NoNode),
        ):
            with pytest.raises(MultiFailed) as failed:
                await coord.multi(
                    [SetOp("/a", b"after"), CreateOp("/new"), operation, CreateOp("/x/y")]
                )
            assert failed.value.index == 2
            assert isinstance(failed.value.cause, cause)
        assert (await coord.get("/a"))[1].version == 0
        assert await coord.children("/") == ["a"]
        assert seen.events == []

    async def test_empty_multi_does_nothing(self, service: Service) -> None:
        coord = await service.client()
        assert await coord.multi([]) == []
