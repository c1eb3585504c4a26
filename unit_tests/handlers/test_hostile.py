"""Tests that any bytes result in an answer or a closed connection, never in another exception,
and the broker continues."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest

from pybroker.errors import CloseConnection, ErrorCode, MalformedInput
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.headers import RequestHeader, encode_request_header
from pybroker.wire.schema import Message, wire_fields
from unit_tests.handlers.bench import Bench, batch, code, values_of
from unit_tests.patience import MOMENT_S
from unit_tests.wire.vocabulary import Case

FRAMES_AN_API = 40


def mutated(frame: bytes, source: random.Random) -> bytes:
    """Return the frame with some bytes changed, removed or added, or sometimes unchanged."""
    data = bytearray(frame)
    for _ in range(source.randrange(4)):
        place = source.randrange(len(data) + 1)
        match source.randrange(4):
            case 0:
                data[place:place] = source.randbytes(source.randrange(1, 5))
            case 1:
                del data[place : place + source.randrange(1, 9)]
            case 2:
                data[place : place + 4] = source.choice(
                    [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"]
                )
            case _ if place < len(data):
                data[place] ^= 1 << source.randrange(8)
    return bytes(data)


async def survive(bench: Bench, frame: bytes) -> None:
    try:
        answer = bench.app.dispatcher.answer(memoryview(bytearray(frame)), "PLAINTEXT", "127.0.0.1")
        if isinstance(answer, Awaitable):
            answer = await asyncio.wait_for(answer, MOMENT_S)
    except (MalformedInput, CloseConnection, TimeoutError):
        return
    if answer is not None:
        data = b"".join(bytes(part) for part in answer)
        assert int.from_bytes(data[:4], "big") == len(data) - 4


def aim(message: Message, version: int, source: random.Random) -> None:
    """Replace most names by those of the existing topic and partition, and most offsets and times
    by values near the real ones."""
    for field in wire_fields(type(message)):
        value = getattr(message, field.name)
        if not field.wire.exists_in(version):
            continue
        if isinstance(value, list):
            for item in value:
                if isinstance(item, Message):
                    aim(item, version, source)
        elif field.name in ("topic", "name") and source.random() < 0.8:
            setattr(message, field.name, "t")
        elif isinstance(value, int) and not isinstance(value, bool) and source.random() < 0.7:
            setattr(message, field.name, source.choice((-3, -2, -1, 0, 0, 1, 2)))
        elif field.name == "records" and source.random() < 0.8:
            setattr(message, field.name, mutated(batch(b"more"), source))


@pytest.mark.parametrize("key", sorted(APIS))
async def test_mutated_requests_are_answered_or_refused(bench: Bench, key: ApiKey) -> None:
    api = APIS[key]
    source = random.Random(int(key))
    await bench.create("t")
    await bench.produce("t", batch(b"kept"))
    cases = [
        Case(api, api.request, version) for version in range(api.min_version, api.max_version + 1)
    ]
    for number in range(FRAMES_AN_API):
        case = cases[number % len(cases)]
        request = source.choice(case.samples(4))
        if key is not ApiKey.DELETE_TOPICS:
            aim(request, case.version, source)
        header = RequestHeader(int(key), case.version, 1, "hostile")
        head = encode_request_header(header, api.request_header_version(case.version))
        await survive(bench, mutated(head + case.encode(request), source))
    start = 0
    if key is ApiKey.DELETE_RECORDS:  # the changed request may have succeeded
        start = (await bench.produce("t", batch(b"kept"))).base_offset
    answer = await bench.fetch("t", start)
    assert (code(answer), values_of(answer)[:1]) == (ErrorCode.NONE, [b"kept"])


async def test_random_bytes_are_rejected(bench: Bench) -> None:
    source = random.Random(1)
    for _ in range(500):
        await survive(bench, source.randbytes(source.randrange(80)))
    for length in range(20):
        await survive(bench, b"\0" * length)
        await survive(bench, b"\xff" * length)
