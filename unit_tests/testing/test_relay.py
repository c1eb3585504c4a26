"""Tests of a relay's rules that apply to one peer only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pybroker.testing.relay import Direction, Relay
from unit_tests.patience import in_time

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


class Site:
    """An echo server behind a relay. The relay names the clients in the order of their
    connections.
    """

    def __init__(self, server: asyncio.Server) -> None:
        self.asked: list[int] = []
        """The ports that the relay requested a name for."""
        self.names: dict[int, str] = {}
        target = server.sockets[0].getsockname()
        self.relay = Relay(target, peer_of=self._name)
        self._streams: list[Stream] = []

    def _name(self, port: int) -> str:
        self.asked.append(port)
        return self.names[port]

    async def connect(self, name: str) -> Stream:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.relay.port)
        self.names[writer.get_extra_info("sockname")[1]] = name
        self._streams.append((reader, writer))
        return reader, writer

    async def close(self) -> None:
        for _, writer in self._streams:
            writer.close()
        await self.relay.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    made = Site(server)
    await made.relay.start()
    yield made
    await made.close()
    server.close()


async def is_echoed(stream: Stream, text: bytes) -> bool:
    reader, writer = stream
    writer.write(text)
    return await in_time(reader.readexactly(len(text))) == text


async def test_peer_names_are_not_searched_without_a_rule_about_a_peer(site: Site) -> None:
    """The search for a peer's name may be slow, and would delay all connections."""
    stream = await site.connect("a")
    assert await is_echoed(stream, b"one")
    site.relay.cut()
    site.relay.heal()
    assert await is_echoed(stream, b"two")
    assert site.asked == []


async def test_a_rule_about_a_peer_applies_to_its_connections_only(site: Site) -> None:
    cut, other = await site.connect("a"), await site.connect("b")
    assert await is_echoed(cut, b"one") and await is_echoed(other, b"one")
    site.relay.cut("a")
    cut[1].write(b"two")
    assert await is_echoed(other, b"two")
    assert not cut[0].at_eof() and len(site.asked) == 2
    site.relay.heal("a")
    assert await in_time(cut[0].readexactly(3)) == b"two"


async def test_the_name_of_a_peer_is_searched_once(site: Site) -> None:
    site.relay.cut("nobody", frozenset({Direction.FROM_TARGET}))
    stream = await site.connect("a")
    for text in (b"one", b"two", b"three"):
        assert await is_echoed(stream, text)
    assert len(site.asked) == 1


async def test_a_refused_peer_is_reset_and_other_peers_are_not(site: Site) -> None:
    refused, other = await site.connect("a"), await site.connect("b")
    assert await is_echoed(refused, b"one") and await is_echoed(other, b"one")
    site.relay.refuse("a")
    with pytest.raises(ConnectionResetError):
        await in_time(refused[0].readexactly(1))
    assert await is_echoed(other, b"two")
