"""The seam between the runtime and a coordinator: one shard is one partition of the internal topic
for as long as one broker leads it.

A coordinator decides without mutating and appends its decisions as records. Only `replay` changes
the recorded state: right after the append, and in the same way when the next leader loads the log.
Answers that clients rely on wait until the records are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pybroker.ports import Clock, KeyValue, Rng


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class StoredRecord(NamedTuple):
    """A record from the log. `timestamp` in ms since 1970; `producer_id` -1 unless it is part of a
    transaction."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    producer_id: int = -1
    producer_epoch: int = -1


class StoredMarker(NamedTuple):
    """The end of a transaction in this partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool


class ShardContext(Protocol):
    """The services of the runtime for the coordinator of one shard. After the shard has ended
    every call raises BrokerError NOT_COORDINATOR."""

    @property
    def partition(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. It may rise while this broker goes on leading, when a follower
        joins or leaves."""

    @property
    def fence_version(self) -> int:
        """The version of /pybroker/coordinators/<partition>; it stays the same while no other
        broker coordinates this partition. Known when `Coordinator.loaded` is called."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> Rng: ...

    def require_current(self) -> None:
        """Raises NOT_COORDINATOR if this broker does not hear from ZooKeeper, so that another
        broker may have taken over unnoticed."""

    async def confirm_current(self) -> None:
        """Wait until it is certain that this broker still coordinates: the leader lease proves it,
        else ZooKeeper is asked. Await this before an answer from memory that only the current
        coordinator may give, such as committed offsets. Raises NOT_COORDINATOR if it is not
        certain."""

    @property
    def is_certainly_current(self) -> bool:
        """Whether the leader lease proves, without asking ZooKeeper, that no other coordinator has
        committed anything. This holds if every coordinator awaits `followed` first."""

    async def followed(self) -> None:
        """Wait until every in-sync replica follows this leader, so that no earlier coordinator
        holds a lease. Raises BrokerError."""

    def append(self, records: Sequence[KeyValue]) -> int:
        """Append and replay, without yielding to the event loop; return the offset for
        `committed`. If it raises BrokerError, nothing was appended. The code is one that clients
        of coordinators expect: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE (too few replicas),
        UNKNOWN_SERVER_ERROR (too large)."""

    async def committed(self, offset: int) -> None:
        """Wait until all records below `offset` are committed. Raises BrokerError NOT_COORDINATOR
        if the shard ends, and COORDINATOR_NOT_AVAILABLE after `offsets.commit.timeout.ms`; the
        records may still be committed later."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after the delay. It is never called after the shard has ended."""

    def resign(self, reason: str) -> None:
        """End this shard, because another broker has taken it over. The partition answers
        NOT_COORDINATOR until it is loaded anew: after a pause if the state node still names this
        broker, or when the controller makes this broker the leader again."""


class Coordinator(Protocol):
    """The state of one shard. Created anew whenever this broker begins to lead."""

    def replay(self, record: StoredRecord) -> None:
        """Apply one record to the state. Also called while loading, so it has no effect outside
        the state."""

    def replay_marker(self, marker: StoredMarker) -> None: ...

    async def loaded(self) -> None:
        """The log is replayed and the fence is taken: finish loading and start timers. Requests
        are answered COORDINATOR_LOAD_IN_PROGRESS until this returns. If it raises CoordError or
        BrokerError it is called again after a pause."""

    def ended(self) -> None:
        """The shard has ended: fail all waiting callers with NOT_COORDINATOR. No writes are
        allowed any more."""
