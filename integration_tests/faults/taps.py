"""Taps for links (`Cluster.tap`) that parse the protocol. They break the link when a certain
request is sent, or when its answer is sent back.
"""

from __future__ import annotations

import random
import struct
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from pybroker.testing.cluster import Direction, Tap

_PRODUCE: Final = 0
_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEAD: Final = struct.Struct(">hhi")
"""The begin of a Kafka request header: API key, API version, correlation id."""
_ZOOKEEPER_HEAD: Final = struct.Struct(">ii")
"""The header of a ZooKeeper request: xid, type."""
_WRITES: Final = {1: "create", 2: "delete", 5: "set", 14: "multi", 15: "create"}
"""The types of ZooKeeper requests that write."""


class _Frames:
    """A parser that splits a stream into its length-prefixed frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that end in `data`."""
        self._rest += data
        found = []
        while len(self._rest) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._rest)[0]
            if len(self._rest) < end:
                break
            found.append(self._rest[_LENGTH.size : end])
            self._rest = self._rest[end:]
        return found


class LostAnswers:
    """Taps that break the connection instead of forwarding a Produce response, for one in `one_in`
    connections.
    """

    def __init__(self, one_in: int, seed: int) -> None:
        self._one_in = one_in
        self._dice = random.Random(seed)
        self.lost = 0

    def make(self) -> Tap:
        """Return a tap for one connection of a client."""
        requests, answers = _Frames(), _Frames()
        asked: set[int] = set()

        def passes(direction: Direction, data: bytes) -> bool:
            if direction is Direction.TO_TARGET:
                for frame in requests.feed(data):
                    key, _, correlation = _REQUEST_HEAD.unpack_from(frame)
                    if key == _PRODUCE:
                        asked.add(correlation)
                return True
            for frame in answers.feed(data):
                (correlation,) = _LENGTH.unpack_from(frame)
                if correlation in asked:
                    asked.discard(correlation)
                    if self._dice.randrange(self._one_in) == 0:
                        self.lost += 1
                        return False
            return True

        return passes


class LostWrites:
    """Taps that break connections to ZooKeeper around writes, alternately before the request
    arrives and after it is applied: at the first two requests that contain one of `paths`, then at
    one in `one_in` requests. `besides` is called before each break.
    """

    def __init__(
        self,
        *paths: bytes,
        one_in: int,
        seed: int,
        besides: Callable[[], None] = lambda: None,
    ) -> None:
        self._besides = besides
        self._paths = paths
        self._one_in = one_in
        self._dice = random.Random(seed)
        self._met = 0
        self._turns: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        """Lost message ("set /path: request" or "set /path: answer") -> count."""

    def make(self) -> Tap:
        """Return a tap for one connection of a broker."""
        requests, answers = _Frames(), _Frames()
        awaited: dict[int, str] = {}
        seen: Counter[Direction] = Counter()

        def frames(direction: Direction, data: bytes) -> list[bytes]:
            found = (requests if direction is Direction.TO_TARGET else answers).feed(data)
            is_first = seen[direction] == 0 and bool(found)
            seen[direction] += len(found)
            return found[1:] if is_first else found  # the first frame opens the session

        def passes(direction: Direction, data: bytes) -> bool:
            for frame in frames(direction, data):
                xid, kind = _ZOOKEEPER_HEAD.unpack_from(frame)
                if direction is Direction.FROM_TARGET:
                    if xid in awaited:
                        self._besides()
                        self.lost[f"{awaited[xid]}: answer"] += 1
                        return False
                elif (what := self._chosen(kind, frame)) is not None:
                    self._turns[what] += 1
                    if self._turns[what] % 2:
                        awaited[xid] = what
                    else:
                        self._besides()
                        self.lost[f"{what}: request"] += 1
                        return False
            return True

        return passes

    def _chosen(self, kind: int, frame: bytes) -> str | None:
        path = next((path for path in self._paths if path in frame), None)
        if kind not in _WRITES or path is None:
            return None
        self._met += 1
        if self._met > 2 and self._dice.randrange(self._one_in):
            return None
        return f"{_WRITES[kind]} {path.decode()}"


class HeldWrites:
    """Taps that let some writes to ZooKeeper pass, and no later one: these break the connection.
    Only requests count that contain `path`. Other requests always pass, so the session lives on.
    """

    def __init__(self, path: bytes, *, passing: int) -> None:
        self._path = path
        self._left = passing
        self.holds = threading.Event()
        """Set once a request was held."""

    def make(self) -> Tap:
        """Return a tap for one connection of a broker."""
        requests = _Frames()
        has_session = False

        def passes(direction: Direction, data: bytes) -> bool:
            nonlocal has_session
            if direction is Direction.FROM_TARGET:
                return True
            for frame in requests.feed(data):
                if not has_session:  # the first frame opens the session
                    has_session = True
                    continue
                _, kind = _ZOOKEEPER_HEAD.unpack_from(frame)
                if kind not in _WRITES or self._path not in frame:
                    continue
                if not self._left:
                    self.holds.set()
                    return False
                self._left -= 1
            return True

        return passes
