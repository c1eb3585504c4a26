"""A TCP proxy that tests can use without an event loop. It causes the same network faults as
`relay.py`."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from pybroker.testing.loop_thread import LoopThread
from pybroker.testing.relay import ANYBODY, BOTH, Direction, Relay, Tap

__all__ = ["ANYBODY", "BOTH", "Direction", "Tap", "TcpProxy"]


class TcpProxy:
    """A proxy on a port of 127.0.0.1. When a method that sets a fault returns, the fault is already
    in effect. The constructor raises OSError if the port is in use."""

    def __init__(self, target: tuple[str, int], *, port: int = 0) -> None:
        self._loop = LoopThread("tcp-proxy")
        self._relay = self._loop.call(Relay, target, port=port)
        try:
            self._loop.run(self._relay.start())
        except BaseException:
            self._loop.close()
            raise
        self.port = self._relay.port

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def cut(self, directions: frozenset[Direction] = BOTH) -> None:
        """Hold back the data in these directions until `heal`. Connections stay open."""
        self._loop.call(self._relay.cut, ANYBODY, directions)

    def refuse(self) -> None:
        """Reset all existing and new connections until `heal`."""
        self._loop.call(self._relay.refuse)

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Delay each piece of data (at most 64 KiB) by `seconds` plus a random time of up to
        `jitter` seconds. The data of a connection stays in order."""
        self._loop.call(self._relay.delay, seconds, jitter)

    def reset(self) -> None:
        """Reset the existing connections. New connections are accepted."""
        self._loop.call(self._relay.reset)

    def tap(self, make: Callable[[], Tap] | None) -> None:
        """Reset the existing connections, and pass the data of each new one through a tap that
        `make` returns (see `relay.Tap`). With `make` None, new connections get no tap."""
        self._loop.call(self._relay.tap, make)

    def heal(self) -> None:
        """End every fault of the link."""
        self._loop.call(self._relay.heal)

    def close(self) -> None:
        """Close the proxy. Idempotent."""
        if not self._loop.closed:
            self._loop.run(self._relay.close())
            self._loop.close()
