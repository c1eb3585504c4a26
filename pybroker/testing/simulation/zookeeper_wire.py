"""The messages and the connection (`Wire`) between a client and a member of the simulated
ZooKeeper."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from pybroker.errors import CoordError
from pybroker.ports import CoordOp
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.links import Links, Pipe

_FORGET_S: Final = 0.01


class Signal(enum.Enum):
    """The ZooKeeper messages without content."""

    PING = "ping"
    PONG = "pong"
    END = "end"
    """The peer has closed the connection."""


class ReadKind(enum.Enum):
    GET = "get"
    EXISTS = "exists"
    CHILDREN = "children"


@dataclass(slots=True, eq=False)
class Answer:
    """An answer to a ZooKeeper request. `zxid` is the last transaction that the answering server
    had applied."""

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
    """A request to register the watches of the client's previous connection. For changes after
    transaction `zxid`, ZooKeeper sends the watch events at once."""

    zxid: int
    data: Sequence[str]
    missing: Sequence[str]
    child: Sequence[str]


@dataclass(slots=True, eq=False)
class Write:
    """A ZooKeeper write. With `alone` it is one operation instead of a multi, and the answer is the
    operation's own error or result."""

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
    """The first message of a connection. `session_id` 0 requests a new session. A ZooKeeper server
    that has not yet applied transaction `zxid` refuses the connection."""

    session_id: int
    zxid: int
    timeout_ms: int


@dataclass(slots=True, eq=False)
class Granted:
    """The answer to a Connect: the session id (0: the session has expired) and the session
    timeout."""

    session_id: int
    timeout_ms: int


Forwardable = Write | Sync | CloseSession
Request = Read | SetWatches | Forwardable


class Server(Protocol):
    """The client's view of the ZooKeeper member at the other end of a connection."""

    name: str

    def hear(self, wire: Wire, message: Any) -> None: ...

    def forget(self, wire: Wire) -> None: ...


class Service(Protocol):
    """The attributes and methods of the simulated ZooKeeper that its clients use."""

    environment: Environment
    links: Links
    session_ms_min: int
    clients_made: int

    @property
    def members(self) -> Mapping[str, Server]:
        """Return the members of the ensemble, by their names."""

    def expire(self, session_id: int) -> bool:
        """Expire the session. Return False if the session does not exist, or if ZooKeeper has no
        quorum now."""


class Wire:
    """One connection between a client and a ZooKeeper member. `number` identifies the
    connection."""

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
        """Open a connection from `machine` to the member `server`. `hear` is called for each
        message that arrives at the client."""
        self._links = links
        self.number = links.environment.number()
        self.machine = machine
        self.server = server
        self.sent_at = 0.0
        self.unanswered_ping = False
        self.up = Pipe(links, machine, server.name, rng, partial(server.hear, self))
        self.down = Pipe(links, server.name, machine, rng, partial(hear, self))

    def send(self, message: object) -> None:
        self.sent_at = self._links.environment.now
        self.up.send(message)

    def close(self, *, lose: bool) -> None:
        """Close the connection from the client's side. Data in transit to the client is lost. With
        `lose`, data in transit to the ZooKeeper server is lost too. Idempotent."""
        if self.down.closed:
            return
        self.down.close()
        if lose:
            self.up.close()
            self._links.environment.after(_FORGET_S, self.server.forget, self)
        else:
            self.up.send(Signal.END)

    def close_by_server(self, *, silently: bool) -> None:
        """Close the connection on behalf of the server, a member of the simulated ZooKeeper. Data
        in transit to the server is lost. `silently`: data in transit to the client is lost too, and
        the client is not notified."""
        self.up.close()
        if silently:
            self.down.close()
        elif not self.down.closed:
            self.down.send(Signal.END)

    def tell(self, message: object) -> None:
        """Send a message from the member to the client."""
        if not self.down.closed:
            self.down.send(message)
