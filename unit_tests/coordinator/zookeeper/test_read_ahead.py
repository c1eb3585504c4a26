"""Tests of the sockets by which kazoo reads many answers at once."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pybroker.coordinator.zookeeper.read_ahead import ReadAheadSocket, wait

Pair = tuple[ReadAheadSocket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with far:
        near.setblocking(False)
        ahead = ReadAheadSocket(near, lambda: None)
        yield ahead, far
        ahead.close()


def test_the_bytes_of_one_read_serve_many(pair: Pair) -> None:
    near, far = pair
    far.sendall(b"abcdef")
    assert near.pending() == 0
    assert near.recv(2) == b"ab"
    assert near.pending() == 4
    far.sendall(b"gh")
    assert [near.recv(3), near.recv(3)] == [b"cde", b"f"]
    assert near.pending() == 0
    assert near.recv(9) == b"gh"


def test_kept_bytes_come_before_the_end_of_the_stream(pair: Pair) -> None:
    near, far = pair
    far.sendall(b"abc")
    assert near.recv(1) == b"a"
    far.shutdown(socket.SHUT_WR)
    assert wait([near], [], 9) == ([near], [])
    assert near.recv(9) == b"bc"
    assert wait([near], [], 9) == ([near], [])
    assert near.recv(9) == b""


def test_a_read_without_bytes_raises_as_a_socket_does(pair: Pair) -> None:
    with pytest.raises(BlockingIOError):
        pair[0].recv(1)


def test_a_long_message_needs_no_more_reads_than_without_the_kept_bytes(pair: Pair) -> None:
    near, far = pair
    message = bytes(range(256)) * 1_000
    far.settimeout(9)
    got, sent = bytearray(), 0
    while len(got) < len(message):
        if sent < len(message):
            sent += far.send(message[sent : sent + 50_000])
        wait([near], [], 9)
        got += near.recv(len(message) - len(got))
    assert got == message


def test_kept_bytes_end_a_wait_at_once(pair: Pair) -> None:
    """kazoo also waits for its requests: they are found although answers are kept."""
    near, far = pair
    requests, wakes = socket.socketpair()
    with requests, wakes:
        far.sendall(b"ab")
        near.recv(1)
        assert wait([near, requests], [], None) == ([near], [])
        wakes.send(b"\0")
        assert wait([near, requests], [], None) == ([near, requests], [])


def test_a_wait_without_a_byte_ends_after_its_time(pair: Pair) -> None:
    assert wait([pair[0]], [], 0.01) == ([], [])


def test_a_socket_with_kept_bytes_is_not_therefore_writable(pair: Pair) -> None:
    near, far = pair
    assert wait([], [near], 9) == ([], [near])
    with pytest.raises(BlockingIOError):
        while True:
            near.send(bytes(65_536))
    far.sendall(b"ab")
    near.recv(1)
    assert wait([], [near], 0) == ([], [])


def test_a_broken_connection_ends_each_wait(pair: Pair) -> None:
    near, far = pair
    far.close()
    assert wait([near], [], 9) == ([near], [])
    assert wait([], [near], 9) == ([], [near])


def test_a_closed_socket_cannot_be_waited_for(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(ValueError, match="negative"):
        wait([pair[0]], [], 0)
