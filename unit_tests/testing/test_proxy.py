"""Tests of the TCP proxy: it forwards bytes, and injects the requested faults."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pybroker.testing.proxy import Direction, Tap, TcpProxy
from pybroker.testing.sockets import free_ports
from unit_tests.patience import MOMENT_S, PATIENCE_S


class Echo:
    """A server that echoes all data until the peer ends the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while data := connection.recv(65536):
                connection.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[TcpProxy]:
    with TcpProxy(("127.0.0.1", echo.port)) as running:
        yield running


def client(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE_S)


def answer(connection: socket.socket, words: bytes) -> bytes:
    """Send the bytes and return the reply."""
    connection.sendall(words)
    return receive(connection, len(words))


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


def is_silent(connection: socket.socket) -> bool:
    """Return whether neither data nor the end of data arrives."""
    connection.settimeout(MOMENT_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE_S)
    return False


def test_a_proxy_forwards_all_data_in_order(proxy: TcpProxy) -> None:
    words = bytes(range(256)) * 4_000
    with client(proxy) as connection:
        sender = threading.Thread(target=connection.sendall, args=(words,))
        sender.start()
        assert receive(connection, len(words)) == words
        sender.join(PATIENCE_S)


def test_the_end_of_data_of_one_side_reaches_the_other_side(proxy: TcpProxy) -> None:
    with client(proxy) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection, 100) == b"last words"


def test_a_cut_holds_data_until_it_is_healed(proxy: TcpProxy) -> None:
    with client(proxy) as connection:
        assert answer(connection, b"one") == b"one"
        proxy.cut()
        connection.sendall(b"two")
        assert is_silent(connection)
        proxy.heal()
        assert receive(connection, 3) == b"two"


def test_a_new_connection_receives_nothing_during_a_cut(proxy: TcpProxy) -> None:
    proxy.cut()
    with client(proxy) as connection:
        connection.sendall(b"hello")
        assert is_silent(connection)
        proxy.heal()
        assert receive(connection, 5) == b"hello"


def test_a_cut_holds_the_end_of_data_of_a_server() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        TcpProxy(("127.0.0.1", listener.getsockname()[1])) as proxy,
        client(proxy) as connection,
    ):
        served, _ = listener.accept()
        proxy.cut()
        served.close()
        assert is_silent(connection)
        proxy.heal()
        assert connection.recv(1) == b""


@pytest.mark.parametrize("direction", Direction)
def test_a_cut_of_one_direction_leaves_the_other_direction_open(direction: Direction) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        TcpProxy(("127.0.0.1", listener.getsockname()[1])) as proxy,
        client(proxy) as near,
    ):
        far, _ = listener.accept()
        far.settimeout(PATIENCE_S)
        proxy.cut(frozenset({direction}))
        near.sendall(b"request")
        far.sendall(b"answer")
        if direction is Direction.TO_TARGET:
            assert receive(near, 6) == b"answer"
            assert is_silent(far)
        else:
            assert receive(far, 7) == b"request"
            assert is_silent(near)


def test_refuse_resets_existing_and_new_connections(proxy: TcpProxy) -> None:
    with client(proxy) as connection:
        assert answer(connection, b"one") == b"one"
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with suppress(ConnectionResetError), client(proxy) as connection:
        assert connection.recv(1) == b""
    proxy.heal()
    with client(proxy) as connection:
        assert answer(connection, b"two") == b"two"


def test_a_delay_applies_to_both_directions(proxy: TcpProxy) -> None:
    with client(proxy) as connection:
        proxy.delay(0.05)
        assert answer(connection, b"slowly") == b"slowly"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        TcpProxy(("127.0.0.1", listener.getsockname()[1])) as proxy,
        client(proxy) as near,
    ):
        far, _ = listener.accept()
        far.settimeout(PATIENCE_S)
        proxy.delay(PATIENCE_S)
        near.sendall(b"request")
        far.sendall(b"answer")
        assert is_silent(far) and is_silent(near)


def test_jitter_keeps_the_order_of_data(proxy: TcpProxy) -> None:
    with client(proxy) as connection:
        proxy.delay(0, jitter=0.01)
        for piece in (b"one", b"two", b"three"):
            connection.sendall(piece)
        assert receive(connection, 11) == b"onetwothree"


def test_reset_breaks_existing_connections_only(proxy: TcpProxy) -> None:
    with client(proxy) as connection:
        assert answer(connection, b"one") == b"one"
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with client(proxy) as connection:
        assert answer(connection, b"two") == b"two"


def test_a_tap_receives_all_data_and_may_reset_the_connection(
    proxy: TcpProxy,
) -> None:
    taps: list[list[tuple[Direction, bytes]]] = []

    def make() -> Tap:
        seen: list[tuple[Direction, bytes]] = []
        taps.append(seen)

        def passes(direction: Direction, data: bytes) -> bool:
            seen.append((direction, data))
            return (direction, data) != (Direction.FROM_TARGET, b"two")

        return passes

    with client(proxy) as before:
        assert answer(before, b"zero") == b"zero"
        proxy.tap(make)
        with pytest.raises(ConnectionResetError):
            before.recv(1)
    for _ in range(2):
        with client(proxy) as connection:
            assert answer(connection, b"one") == b"one"
            connection.sendall(b"two")
            with pytest.raises(ConnectionResetError):
                connection.recv(1)
    there, back = Direction.TO_TARGET, Direction.FROM_TARGET
    assert taps == [[(there, b"one"), (back, b"one"), (there, b"two"), (back, b"two")]] * 2
    proxy.heal()
    with client(proxy) as connection:
        assert answer(connection, b"two") == b"two"


def test_a_target_without_a_listener_resets_the_client() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # the port is reserved, and nothing listens on it
        with TcpProxy(bound.getsockname()) as proxy, suppress(ConnectionResetError):
            connection = client(proxy)
            assert connection.recv(1) == b""


def test_close_ends_connections_and_frees_the_port(echo: Echo) -> None:
    proxy = TcpProxy(("127.0.0.1", echo.port), port=free_ports(1)[0])
    with client(proxy) as connection:
        assert answer(connection, b"one") == b"one"
        proxy.close()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    proxy.close()
    socket.create_server(("127.0.0.1", proxy.port)).close()
