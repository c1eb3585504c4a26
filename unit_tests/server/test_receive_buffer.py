"""Tests that the receive buffer returns frames as they were sent, however the bytes were split."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import MalformedInput
from pybroker.server.receive_buffer import BURST_BYTES, INITIAL_BYTES, ReceiveBuffer


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def receive(buffer: ReceiveBuffer, data: bytes) -> int:
    """Let one read of the transport deliver as much of `data` as the buffer has room for."""
    room = buffer.writable()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    buffer.received(count)
    return count


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=20_000), max_size=8),
    cuts=st.lists(st.integers(1, 9_000), min_size=1, max_size=20),
)
def test_frames_are_returned_whole_however_the_bytes_are_split(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(framed(payload) for payload in payloads)
    buffer = ReceiveBuffer(1 << 20)
    seen: list[bytes] = []
    turn = 0
    while stream:
        taken = receive(buffer, stream[: cuts[turn % len(cuts)]])
        stream = stream[taken:]
        turn += 1
        while (frame := buffer.next_frame()) is not None:
            seen.append(bytes(frame))
            buffer.release()
    assert seen == payloads


def test_a_buffer_grows_until_pipelined_frames_fit() -> None:
    buffer = ReceiveBuffer(1 << 20)
    burst = framed(bytes(11_000)) * 4

    def reads() -> int:
        data, count = burst, 0
        while data:
            data = data[receive(buffer, data) :]
            count += 1
            while buffer.next_frame() is not None:
                buffer.release()
        return count

    assert [reads() for _ in range(4)][-2:] == [1, 1]
    assert len(buffer.writable()) <= 2 * len(burst)
    for _ in range(100):
        reads()
    assert len(buffer.writable()) <= BURST_BYTES


def test_a_large_buffer_is_given_back_after_a_small_frame_but_not_between_large_ones() -> None:
    buffer = ReceiveBuffer(1 << 24)

    def takes(size: int) -> int:
        data = framed(bytes(size))
        while data:
            data = data[receive(buffer, data) :]
        frame = buffer.next_frame()
        assert frame is not None and len(frame) == size
        buffer.release()
        return len(buffer.writable())

    assert takes(3 << 20) >= 3 << 20
    assert takes(1 << 20) >= 3 << 20
    assert takes(1 << 10) == INITIAL_BYTES


def test_a_frame_in_use_does_not_move_while_more_bytes_arrive() -> None:
    buffer = ReceiveBuffer(1 << 20)
    receive(buffer, framed(b"first"))
    frame = buffer.next_frame()
    assert frame is not None
    while receive(buffer, b"x" * 1000):
        pass
    assert buffer.is_full
    assert bytes(frame) == b"first"
    buffer.release()
    assert receive(buffer, b"y") == 1


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_outside_the_limit_is_refused_before_memory_is_taken(size: int) -> None:
    buffer = ReceiveBuffer(1000)
    receive(buffer, struct.pack(">i", size))
    with pytest.raises(MalformedInput, match=r"socket\.request\.max\.bytes"):
        buffer.next_frame()


def test_memory_grows_with_received_bytes_not_with_claimed_sizes() -> None:
    buffer = ReceiveBuffer(1 << 30)
    receive(buffer, struct.pack(">i", 1 << 30) + b"z" * 100)
    assert buffer.next_frame() is None
    assert len(buffer.writable()) <= INITIAL_BYTES


def test_a_quiet_buffer_gives_memory_back() -> None:
    buffer = ReceiveBuffer(1 << 20)
    stream = framed(b"a" * 300_000)
    while stream:
        stream = stream[receive(buffer, stream) :]
    assert buffer.next_frame() is not None
    buffer.shrink()
    assert buffer.next_frame() is not None, "a frame in use is never taken away"
    buffer.release()
    buffer.shrink()
    assert len(buffer.writable()) == INITIAL_BYTES
