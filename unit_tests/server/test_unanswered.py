"""Tests of the requests of a connection that have taken effect but are unanswered: Produce requests
whose batches wait for their acknowledgement."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from pybroker.deferred import Deferred
from pybroker.errors import CloseConnection, MalformedInput
from pybroker.server.connection import Answer, Peer
from pybroker.server.limits import ServerLimits
from unit_tests.patience import in_time, until
from unit_tests.server.test_connection import connect, framed, read_frame, serving

PRODUCE, METADATA = 0, 3


def request(key: int, payload: bytes) -> bytes:
    return framed(struct.pack(">h", key) + payload)


class Handler:
    """Handles each request when the test says so. The payload's first letter is the kind: "a" is
    applied at once and answered later, "l" is both later, "n" is both now, "x" is malformed."""

    def __init__(self) -> None:
        self.handled: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.waiting: dict[bytes, Deferred[Answer] | asyncio.Future[Answer]] = {}
        self.frames: dict[bytes, memoryview] = {}

    def __call__(self, frame: memoryview, peer: Peer) -> Answer | Awaitable[Answer]:
        payload = bytes(frame[2:])
        self.handled.append(payload)
        if payload.startswith(b"x"):
            raise MalformedInput("bad")
        if payload.startswith(b"n"):
            return [framed(payload)]
        if payload.startswith(b"l"):
            self.frames[payload] = frame
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self.waiting[payload] = future
            return self.wait(future, payload)
        deferred: Deferred[Answer] = Deferred(
            lambda: self.cancelled.append(payload), is_applied=True
        )
        self.waiting[payload] = deferred
        return deferred

    async def wait(self, future: asyncio.Future[Answer], payload: bytes) -> Answer:
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(payload)
            raise

    def has_handled(self, count: int) -> bool:
        return len(self.handled) == count

    def finish(self, payload: bytes) -> None:
        if payload in self.frames:
            assert bytes(self.frames.pop(payload)[2:]) == payload
        self.waiting.pop(payload).set_result([framed(payload)])


async def test_the_next_produce_request_does_not_wait_for_the_acknowledgement() -> None:
    handler = Handler()
    async with serving(handler) as (_, port):
        reader, writer = await connect(port)
        writer.write(b"".join(request(PRODUCE, b"a%d" % number) for number in range(3)))
        await until(lambda: len(handler.handled) == 3)
        for payload in (b"a2", b"a0", b"a1"):
            handler.finish(payload)
        assert [await read_frame(reader) for _ in range(3)] == [b"a0", b"a1", b"a2"]
        writer.close()


async def test_a_ready_response_waits_for_the_earlier_ones() -> None:
    handler = Handler()
    async with serving(handler) as (_, port):
        reader, writer = await connect(port)
        writer.write(request(PRODUCE, b"a") + request(PRODUCE, b"n"))
        await until(lambda: len(handler.handled) == 2)
        handler.finish(b"a")
        assert [await read_frame(reader) for _ in range(2)] == [b"a", b"n"]
        writer.close()


@pytest.mark.parametrize("key", [METADATA, PRODUCE])
async def test_another_request_waits_for_the_acknowledgement(key: int) -> None:
    """A request of another API waits for unanswered Produce requests. A Produce request waits for
    one whose batches are not appended yet."""
    handler = Handler()
    first = b"a" if key == METADATA else b"l"
    async with serving(handler) as (_, port):
        reader, writer = await connect(port)
        writer.write(request(PRODUCE, first) + request(key, b"n") + request(PRODUCE, b"n2"))
        await until(lambda: bool(handler.handled))
        # The response on the second connection shows that the broker has had the time to handle
        # the second request.
        other_reader, other = await connect(port)
        other.write(request(PRODUCE, b"n3"))
        assert await read_frame(other_reader) == b"n3"
        assert handler.handled == [first, b"n3"]
        handler.finish(first)
        assert [await read_frame(reader) for _ in range(3)] == [first, b"n", b"n2"]
        writer.close()
        other.close()


async def test_the_number_of_unanswered_requests_has_a_limit() -> None:
    handler = Handler()
    limits = ServerLimits(unanswered_max=2)
    async with serving(handler, limits=limits) as (_, port):
        reader, writer = await connect(port)
        writer.write(b"".join(request(PRODUCE, b"a%d" % number) for number in range(4)))
        for number in range(4):
            await until(partial(handler.has_handled, min(number + 2, 4)))
            handler.finish(b"a%d" % number)
            assert await read_frame(reader) == b"a%d" % number
        writer.close()


async def test_a_malformed_request_lets_the_earlier_ones_be_answered() -> None:
    handler = Handler()
    async with serving(handler) as (_, port):
        reader, writer = await connect(port)
        writer.write(request(PRODUCE, b"a") + request(PRODUCE, b"x") + request(PRODUCE, b"n"))
        await until(lambda: len(handler.handled) == 2)
        handler.finish(b"a")
        assert await in_time(reader.read()) == framed(b"a")
        assert handler.handled == [b"a", b"x"]
        writer.close()


async def test_an_error_closes_the_connection_after_the_earlier_responses() -> None:
    handler = Handler()
    async with serving(handler) as (_, port):
        reader, writer = await connect(port)
        writer.write(b"".join(request(PRODUCE, b"a%d" % number) for number in range(3)))
        await until(lambda: len(handler.handled) == 3)
        handler.waiting.pop(b"a1").set_exception(CloseConnection("no"))
        handler.finish(b"a0")
        assert await in_time(reader.read()) == framed(b"a0")
        await until(lambda: handler.cancelled == [b"a2"])
        writer.close()


async def test_a_peer_that_leaves_cancels_all_its_requests() -> None:
    handler = Handler()
    async with serving(handler) as (_, port):
        _, writer = await connect(port)
        writer.write(request(PRODUCE, b"a0") + request(PRODUCE, b"a1") + request(PRODUCE, b"l2"))
        await until(lambda: len(handler.handled) == 3)
        writer.transport.abort()
        await until(lambda: sorted(handler.cancelled) == [b"a0", b"a1", b"l2"])


@asynccontextmanager
async def closing_with_two_requests() -> AsyncIterator[tuple[Handler, asyncio.StreamReader]]:
    """Send two Produce requests, and close the server while both wait. The close has to end."""
    handler = Handler()
    async with serving(handler) as (server, port):
        reader, writer = await connect(port)
        writer.write(request(PRODUCE, b"a0") + request(PRODUCE, b"a1"))
        await until(lambda: len(handler.handled) == 2)
        closing = asyncio.create_task(server.close(30))
        await asyncio.sleep(0)
        yield handler, reader
        writer.close()
        await in_time(closing)


async def test_a_close_sends_each_response_as_soon_as_it_is_ready() -> None:
    async with closing_with_two_requests() as (handler, reader):
        handler.finish(b"a0")
        assert await in_time(read_frame(reader)) == b"a0"
        handler.finish(b"a1")
        assert await in_time(reader.read()) == framed(b"a1")


async def test_a_close_waits_for_all_responses() -> None:
    async with closing_with_two_requests() as (handler, reader):
        handler.finish(b"a1")
        handler.finish(b"a0")
        assert await in_time(reader.read()) == framed(b"a0") + framed(b"a1")


@pytest.mark.parametrize("seed", range(40))
async def test_responses_have_the_order_of_the_requests(seed: int) -> None:
    """Requests of all kinds arrive in pieces and are acknowledged in any order."""
    chance = random.Random(seed)
    handler = Handler()
    limits = ServerLimits(unanswered_max=chance.randint(1, 5), requests_per_turn_max=3)
    payloads = [
        bytes([chance.choice(b"aaaln")]) + b"%d" % number + b"." * chance.choice((0, 0, 5000))
        for number in range(60)
    ]
    stream = b"".join(request(chance.choice((0, 0, 0, METADATA)), each) for each in payloads)
    async with serving(handler, limits=limits) as (_, port):
        reader, writer = await connect(port)
        answers = asyncio.create_task(read_all(reader, len(payloads)))
        sent = 0
        while not answers.done():
            if sent < len(stream):
                size = chance.choice((1, 5, 100, 9000))
                writer.write(stream[sent : sent + size])
                sent += size
            for payload in list(handler.waiting):
                if chance.random() < 0.5:
                    handler.finish(payload)
            held = [each for each in handler.waiting if each.startswith(b"l")]
            assert len(held) <= 1
            assert len(handler.waiting) <= limits.unanswered_max
            await asyncio.sleep(0)
        assert await answers == payloads == handler.handled
        writer.close()


async def read_all(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    return [await in_time(read_frame(reader)) for _ in range(count)]
