"""What a client of the simulated ZooKeeper and a member of it say to each other, and the connection
on which they do."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from pybroker.errors import CoordError
from pybroker.ports import CoordOp
from pybroker.testing.simulation.links import Links, Pipe
from pybroker.testing.simulation.world import World

_FORGET_S: Final = 0.01


class Signal(enum.Enum):
    """Messages without content."""

    PING = "ping"
    PONG = "pong"
    END = "end"
    """The connection is closed by the other side."""


class ReadKind(enum.Enum):
    GET = "get"
    EXISTS = "exists"
    CHILDREN = "children"


@dataclass(slots=True, eq=False)
class Answer:
    """`zxid` is what the member had applied when it answered."""

    zxid: int
    value: Any = None
    error: CoordError | None = None


@dataclass(slots=True, eq=False)
class Read:
    kind: ReadKind
    path: str
    watch: bool


@dataclass(slots=True, eq=False)
class SetWatches:
    """Watches that the client had on another connection. Those that would have fired after `zxid`
    fire at once."""

    zxid: int
    data: Sequence[str]
    missing: Sequence[str]
    child: Sequence[str]


@dataclass(slots=True, eq=False)
class Write:
    """`alone`: one operation, whose own error and result are the answer, and no multi."""

    ops: Sequence[CoordOp]
    alone: bool
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Sync:
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class CloseSession:
    answer: Answer | None = None


@dataclass(slots=True, eq=False)
class Connect:
    """The first message. `session_id` 0 asks for a new session; `zxid` is what the client has seen:
    a member that is behind it refuses."""

    session_id: int
    zxid: int
    timeout_ms: int


@dataclass(slots=True, eq=False)
class Granted:
    """The answer to a Connect. `session_id` 0: the session has expired."""

    session_id: int
    timeout_ms: int


Forwardable = Write | Sync | CloseSession
Request = Read | SetWatches | Forwardable


class Server(Protocol):
    """The member at the other end."""

    name: str

    def hear(self, wire: Wire, message: Any) -> None: ...

    def forget(self, wire: Wire) -> None: ...


class Service(Protocol):
    """All members together, as a client knows them."""

    world: World
    links: Links
    session_ms_min: int
    clients_made: int

    @property
    def members(self) -> Mapping[str, Server]:
        """By their names."""

    def expire(self, session_id: int) -> bool:
        """End the session. False if it is gone, or nothing can be decided now."""


class Wire:
    """One connection, made by a client. Both ends know it by its number."""

    __slots__ = (
        "_links",
        "down",
        "machine",
        "number",
        "sent_at",
        "server",
        "unanswered_ping",
        "up",
    )

    def __init__(
        self,
        links: Links,
        machine: str,
        server: Server,
        rng: random.Random,
        hear: Callable[[Wire, Any], object],
    ) -> None:
        """`hear` gets what arrives at the client."""
        self._links = links
        self.number = links.world.number()
        self.machine = machine
        self.server = server
        self.sent_at = 0.0
        self.unanswered_ping = False
        self.up = Pipe(links, machine, server.name, rng, partial(server.hear, self))
        self.down = Pipe(links, server.name, machine, rng, partial(hear, self))

    def send(self, message: object) -> None:
        self.sent_at = self._links.world.now
        self.up.send(message)

    def close(self, *, lose: bool) -> None:
        """The client's end goes away. With `lose` what was under way goes with it; else that
        arrives yet, and nobody hears the answers. Idempotent."""
        if self.down.closed:
            return
        self.down.close()
        if lose:
            self.up.close()
            self._links.world.after(_FORGET_S, self.server.forget, self)
        else:
            self.up.send(Signal.END)

    def close_by_server(self, *, silently: bool) -> None:
        """What the server sent before arrives first. `silently`: it just says nothing more."""
        self.up.close()
        if silently:
            self.down.close()
        elif not self.down.closed:
            self.down.send(Signal.END)

    def tell(self, message: object) -> None:
        """Send to the client."""
        if not self.down.closed:
            self.down.send(message)
