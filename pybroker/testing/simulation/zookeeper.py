"""A simulated ZooKeeper ensemble: elections, sessions, and one order of all changes.

Each member applies the leader's log with its own delay (`zookeeper_member.py`), so reads may be
stale. A new leader is elected only after the old leader has stepped down.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pybroker.coordinator.zookeeper.handshake import SessionKey
from pybroker.errors import MultiFailed
from pybroker.ports import CreateOp, DeleteOp, NodeStat, SessionEvent, SetOp
from pybroker.testing.simulation.environment import WALL_MS_AT_START, Environment
from pybroker.testing.simulation.links import Links, Pipe
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.memory_tree import MemoryTree
from pybroker.testing.simulation.zookeeper_member import (
    Forwarded,
    Member,
    Transaction,
    TransactionClock,
)
from pybroker.testing.simulation.zookeeper_session import ZooKeeperSession
from pybroker.testing.simulation.zookeeper_wire import (
    Answer,
    CloseSession,
    Connect,
    Granted,
    Sync,
    Write,
)

_LOOK_S: Final = 0.1
_EXPIRY_TICK_S: Final = 0.25
_ELECTION_S_LEAST: Final = 0.2
_ELECTION_S_MOST: Final = 1.5
_JOIN_S_MAX: Final = 0.3


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the node `path` at the virtual time `at`. For a deletion `data` is None and
    `version` is -1."""

    zxid: int
    path: str
    data: bytes | None
    version: int
    session_id: int
    at: float


class MachineSessionStore:
    """The `SessionStore` of a simulated machine. It stores the ids and passwords of ZooKeeper
    sessions. A power loss empties it, like a file that is never synced."""

    def __init__(self) -> None:
        self._keys: list[SessionKey] = []

    def load(self) -> list[SessionKey]:
        return [*self._keys]

    def save(self, keys: Sequence[SessionKey]) -> None:
        self._keys = [*keys]

    def clear(self) -> None:
        self._keys = []


@dataclass(slots=True)
class _Session:
    timeout_ms: int
    heard_at: float
    owner: int
    """The number of the connection that owns the session; 0 if the client has not returned since
    the last change of leader."""

    def ends_at(self) -> float:
        """Return the virtual time at which the session expires, rounded up to a ZooKeeper tick."""
        ends = self.heard_at + self.timeout_ms / 1000
        return (math.floor(ends / _EXPIRY_TICK_S) + 1) * _EXPIRY_TICK_S


@dataclass(slots=True)
class EarlyEnd:
    """A session expiry that a test caused. `at` is the time of the expiry, `heard_at` the time at
    which the process learned of it, both in virtual seconds."""

    machine: str
    at: float
    heard_at: float = math.inf


class ZooKeeper:
    """The simulated ZooKeeper ensemble. `links` is the simulated network."""

    def __init__(
        self,
        environment: Environment,
        links: Links,
        members: Sequence[str] = ("zk1", "zk2", "zk3"),
        *,
        session_ms_min: int = 1000,
        session_ms_max: int = 60_000,
        sync_limit_s: float = 2.0,
    ) -> None:
        """Create the members and elect a leader. Session timeouts are from `session_ms_min` to
        `session_ms_max`. A lost leader or quorum is noticed after `sync_limit_s`."""
        self.environment = environment
        self.links = links
        self.session_ms_min = session_ms_min
        self.session_ms_max = session_ms_max
        self.clients_made = 0
        self.on_commit: list[Callable[[Change], object]] = []
        """Functions that get every change of a node, in order, before any client is notified."""
        self.early_ends: list[EarlyEnd] = []
        """The expiries of the processes' main sessions that a test has caused."""
        self._clients: dict[str, ZooKeeperSession] = {}
        self._keys: dict[str, MachineSessionStore] = {}
        self.sync_limit_s = sync_limit_s
        self._rng = environment.rng("zookeeper")
        self._clock = TransactionClock(WALL_MS_AT_START)
        self.tree = MemoryTree(self._clock)
        """The leader's tree, which is authoritative."""
        self._log: list[Transaction] = []
        self._sessions: dict[int, _Session] = {}
        self._pending: list[Forwarded] = []
        """The requests that the leader cannot decide yet, because it has no quorum."""
        self._leader: Member | None = None
        self._quorum_at = 0.0
        self._elect_at = 0.0
        self.members = {
            name: Member(
                links, name, environment.rng(f"zookeeper {name}"), WALL_MS_AT_START, self._send
            )
            for name in members
        }
        self._elect()
        environment.after(_LOOK_S, self._check_members)

    # ---- for processes

    def session(
        self, machine: Machine, *, timeout_ms: int = 18_000, purpose: str = ""
    ) -> ZooKeeperSession:
        """Return a new ZooKeeper client for the machine's present process. The caller must call
        `start`, which first ends the sessions of earlier processes. `purpose` distinguishes an
        additional client from the process's main client."""
        assert machine.loop is not None, f"no process runs on {machine.name}"
        name = _name_of(machine.name, purpose)
        if name not in self._keys:
            self._keys[name] = keys = MachineSessionStore()
            machine.on_power_loss.append(keys.clear)
        client = ZooKeeperSession(
            self,
            machine.loop,
            machine.name,
            session_timeout_ms=timeout_ms,
            store=self._keys[name],
        )
        self._clients[name] = client
        self._is_heard(name)
        return client

    def client(self, machine: str, purpose: str = "") -> ZooKeeperSession | None:
        """Return a ZooKeeper client of the machine's latest process: the main client if `purpose`
        is empty, otherwise the client with this purpose. Return None if there is none."""
        return self._clients.get(_name_of(machine, purpose))

    # ---- for checks

    @property
    def leader(self) -> str | None:
        """Return the name of the ZooKeeper member that leads, None if no member leads."""
        return None if self._leader is None else self._leader.name

    @property
    def zxid(self) -> int:
        """Return the zxid of the latest transaction, which is the number of all transactions."""
        return len(self._log)

    def nodes(self) -> list[str]:
        """Return the paths of all nodes in the leader's tree, sorted."""
        return self.tree.paths()

    def node(self, path: str) -> tuple[bytes, NodeStat] | None:
        """Return the data and the stat of a node in the leader's tree, or None if the node does not
        exist."""
        return self.tree.node(path)

    def session_ids(self) -> list[int]:
        """Return the ids of the live sessions, oldest first."""
        return [*self._sessions]

    # ---- faults

    def down(self, name: str, *, silently: bool = False) -> None:
        """Kill the member with this name. With `silently` the member's machine loses power, so that
        its peers get no reset."""
        member = self.members[name]
        if member.is_up:
            self.environment.note(f"zk {name} down")
            member.is_up = False
            member.stop(silently=silently)
            if member is self._leader and not silently:
                self._depose()

    def up(self, name: str) -> None:
        """Start the member with this name if it is down. It serves after it has found the
        leader."""
        member = self.members[name]
        if not member.is_up:
            self.environment.note(f"zk {name} up")
            if member is self._leader:
                self._depose()
            member.is_up = True

    def lag(self, name: str, seconds: float) -> None:
        """Delay each transaction that the member with this name applies, by up to `seconds`."""
        self.members[name].lag_s = seconds

    def expire(self, session_id: int) -> bool:
        """End the session as if it had timed out. Return False if the session does not exist, or if
        ZooKeeper has no quorum now."""
        if session_id not in self._sessions or not self._has_quorum():
            return False
        self._close(session_id)
        for name, client in self._clients.items():
            if client.session_id == session_id and name == client.machine:
                self.early_ends.append(EarlyEnd(name, self.environment.now))
                client.add_listener(partial(self._expired, name))
        return True

    def _expired(self, machine: str, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._is_heard(machine)

    def _is_heard(self, machine: str) -> None:
        for end in self.early_ends:
            if end.machine == machine:
                end.heard_at = min(end.heard_at, self.environment.now)

    def heal(self) -> None:
        """Start all members and end their lags. Links are not changed."""
        for name, member in self.members.items():
            self.up(name)
            member.lag_s = 0.0

    # ---- from member to leader

    def _send(self, forwarded: Forwarded) -> None:
        member = forwarded.member
        if member is self._leader:
            self._receive(forwarded)
        elif member.to_leader is not None:
            member.to_leader.send(forwarded)

    def _receive(self, forwarded: Forwarded) -> None:
        """Handle, as the leader, a request that a member has forwarded."""
        leader, request = self._leader, forwarded.request
        if leader is None or not leader.is_up:
            return
        session = self._sessions.get(forwarded.session_id)
        is_return = isinstance(request, Connect) and request.session_id != 0
        if not isinstance(request, Connect) and (
            session is None or session.owner != forwarded.wire
        ):
            # The session has moved: its requests on other connections are ignored, and those
            # connections are closed, as by a real member.
            self._after_return(forwarded, forwarded.member.send_away, forwarded.wire)
            return
        can_decide = is_return or isinstance(request, Sync) or self._has_quorum()
        if self._pending or not can_decide:
            self._pending.append(forwarded)
        elif is_return:
            self._answer_resumption(forwarded, session)
        else:
            self._decide(forwarded)

    def _answer_resumption(self, forwarded: Forwarded, session: _Session | None) -> None:
        """Answer a Connect that resumes a session on a new connection. `session` is None if the
        session has expired. The answer is sent even if the member that forwarded the Connect is not
        up to date."""
        if session is None:
            granted = Granted(0, 0)
        else:
            session.owner = forwarded.wire
            session.heard_at = self.environment.now
            granted = Granted(forwarded.session_id, session.timeout_ms)
            self.environment.note(f"zk session {forwarded.session_id:x} moves")
        self._after_return(forwarded, forwarded.member.grant, forwarded.wire, granted)

    def _after_return(self, forwarded: Forwarded, act: Callable[..., None], *what: object) -> None:
        """Call `act(*what)` at the member that forwarded the request, after the network delay."""
        delay_s = 0.0
        if forwarded.member is not self._leader:
            delay_s = self.links.usual.draw(self._rng)
        self.environment.after(delay_s, act, *what)

    # ---- decisions

    def _decide(self, forwarded: Forwarded) -> None:
        request = forwarded.request
        if isinstance(request, Sync):
            self._tell(forwarded.member, (forwarded.wire, request))
            return
        self._clock.now_ms = WALL_MS_AT_START + int(self.environment.now * 1000)
        zxid = len(self._log) + 1
        changes: list[Change] = []
        if isinstance(request, Connect):
            session_id, answer = self._open(forwarded.wire, request)
            text = f"zk {zxid} open {session_id:x}"
        elif isinstance(request, CloseSession):
            session_id, answer = forwarded.session_id, Answer(zxid)
            changes = self._end(zxid, session_id)
            text = f"zk {zxid} close {session_id:x}"
        else:
            session_id = forwarded.session_id
            answer, changes, text = self._write(zxid, session_id, request)
        transaction = Transaction(
            zxid, self._clock.now_ms, forwarded.wire, session_id, request, answer
        )
        self._log.append(transaction)
        assert self.tree.zxid == zxid
        self.environment.note(text)
        for change in changes:
            for hear in self.on_commit:
                hear(change)
        for member in self.members.values():
            self._tell(member, transaction)

    def _open(self, wire: int, request: Connect) -> tuple[int, Answer]:
        timeout_ms = max(self.session_ms_min, min(request.timeout_ms, self.session_ms_max))
        self.tree.zxid += 1
        session_id = self.tree.open_session(None)
        self._sessions[session_id] = _Session(timeout_ms, self.environment.now, wire)
        return session_id, Answer(0, Granted(session_id, timeout_ms))

    def _end(self, zxid: int, session_id: int) -> list[Change]:
        del self._sessions[session_id]
        owned = self.tree.owned_by(session_id)
        self.tree.end_session(session_id)
        return [Change(zxid, path, None, -1, session_id, self.environment.now) for path in owned]

    def _write(
        self, zxid: int, session_id: int, request: Write
    ) -> tuple[Answer, list[Change], str]:
        ops = request.ops
        try:
            results = self.tree.apply(ops, session_id)
        except MultiFailed as error:
            failure = (error.cause if request.alone else error).with_traceback(None)
            text = f"zk {zxid} error {type(error.cause).__name__} {ops[error.index].path}"
            return Answer(zxid, error=failure), [], text
        now = self.environment.now
        changes: list[Change] = []
        texts: list[str] = [f"zk {zxid}"]
        for op, result in zip(ops, results, strict=True):
            if isinstance(op, CreateOp) and isinstance(result, str):
                changes.append(Change(zxid, result, op.data, 0, session_id, now))
                texts.append(f"create {result} {zlib.crc32(op.data):08x}")
            elif isinstance(op, SetOp) and isinstance(result, NodeStat):
                changes.append(Change(zxid, op.path, op.data, result.version, session_id, now))
                texts.append(f"set {op.path} {zlib.crc32(op.data):08x}")
            elif isinstance(op, DeleteOp):
                changes.append(Change(zxid, op.path, None, -1, session_id, now))
                texts.append(f"delete {op.path}")
            else:
                texts.append(f"check {op.path}")
        answer = Answer(zxid, results[0] if request.alone else results)
        return answer, changes, " ".join(texts)

    def _close(self, session_id: int) -> None:
        assert self._leader is not None
        self._decide(Forwarded(self._leader, 0, session_id, CloseSession()))

    def _tell(self, member: Member, item: Transaction | tuple[int, Sync]) -> None:
        if member is self._leader:
            if member.is_serving:
                member.learn(item)
        elif member.from_leader is not None:
            member.from_leader.send(item)

    # ---- election

    def _meet(self, one: Member, other: Member) -> bool:
        if one is other:
            return one.is_up
        passes = self.links.passes
        together = passes(one.name, other.name) and passes(other.name, one.name)
        return one.is_up and other.is_up and together

    def _reaches_quorum(self, member: Member) -> bool:
        met = sum(self._meet(member, other) for other in self.members.values())
        return 2 * met > len(self.members)

    def _has_quorum(self) -> bool:
        return self._leader is not None and self._reaches_quorum(self._leader)

    def _check_members(self) -> None:
        """Detect members that failed or recovered, and expire sessions. Schedules its next call."""
        now = self.environment.now
        self.environment.after(_LOOK_S, self._check_members)
        if self._has_quorum():
            self._quorum_at = now
        elif self._leader is not None and now - self._quorum_at > self.sync_limit_s:
            self._depose()
        leader = self._leader
        if leader is None:
            self._elect()
            return
        for member in self.members.values():
            if self._meet(member, leader):
                member.contact_at = now
                for session_id in member.touched:
                    if session_id in self._sessions:
                        self._sessions[session_id].heard_at = now
                member.touched.clear()
                if not member.is_serving and member.to_leader is None:
                    self._join(member)
            elif member.is_up and now - member.contact_at > self.sync_limit_s:
                member.stop()
        if self._has_quorum():
            self._decide_pending(len(self._pending))
            for session_id, session in [*self._sessions.items()]:
                if now >= session.ends_at():
                    self.environment.note(f"zk session {session_id:x} expires")
                    self._close(session_id)

    def _decide_pending(self, count: int) -> None:
        pending, self._pending = self._pending, []
        for forwarded in pending[:count]:
            request, session = forwarded.request, self._sessions.get(forwarded.session_id)
            if isinstance(request, Connect) and request.session_id:
                self._answer_resumption(forwarded, session)
            elif session is not None or isinstance(request, Connect):
                self._decide(forwarded)

    def _depose(self) -> None:
        """Remove the leader from its role. No member serves until the next election."""
        self.environment.note(f"zk leader {self.leader} gone")
        self._leader = None
        for member in self.members.values():
            member.stop()
        span = _ELECTION_S_MOST - _ELECTION_S_LEAST
        self._elect_at = self.environment.now + _ELECTION_S_LEAST + span * self._rng.random()

    def _elect(self) -> None:
        if self.environment.now < self._elect_at:
            return
        able = [member for member in self.members.values() if self._reaches_quorum(member)]
        if not able:
            return
        self._leader = leader = self._rng.choice(able)
        self._quorum_at = self.environment.now
        self.environment.note(f"zk leader {leader.name}")
        leader.serve(self._log)
        # The others' logs may contain a prefix of the last leader's unfinished requests.
        self._decide_pending(self._rng.randint(0, len(self._pending)))
        for session in self._sessions.values():
            session.heard_at = self.environment.now
            session.owner = 0
        for member in self.members.values():
            member.contact_at = self.environment.now
            if member is not leader and self._meet(member, leader):
                self._join(member)

    def _join(self, member: Member) -> None:
        """Let a member follow the leader."""
        assert self._leader is not None
        member.to_leader = pipe = self._pipe(member, self._leader, self._receive)
        delay_s = self._rng.random() * _JOIN_S_MAX if self._log else 0.0
        self.environment.after(delay_s, self._joined, member, pipe)

    def _joined(self, member: Member, to_leader: Pipe) -> None:
        if member.to_leader is not to_leader or self._leader is None:
            return
        if self._meet(member, self._leader):
            member.from_leader = self._pipe(self._leader, member, member.learn)
            member.serve(self._log)
        else:
            member.stop()

    def _pipe(self, source: Member, target: Member, deliver: Callable[[Any], None]) -> Pipe:
        return Pipe(self.links, source.name, target.name, self._rng, deliver)


def _name_of(machine: str, purpose: str) -> str:
    return f"{machine} {purpose}".rstrip()
