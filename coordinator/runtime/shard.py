"""The seam between the runtime and a coordinator: one shard is one partition of the internal topic
for as long as one broker leads it.

A coordinator decides without mutating and appends what it decided; `replay` alone changes what is
recorded, at once after the append and in the same way when the next leader loads the log. Answers
that others rely on wait until the records are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pybroker.ports import Clock, KeyValue, Rng


class Timer(Protocol):
    """A call that will be made, unless it is cancelled."""

    def cancel(self) -> None: ...


class StoredRecord(NamedTuple):
    """A record as it stands in the log. `timestamp` in ms since 1970; `producer_id` -1 unless it is
    part of a transaction."""

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
    """What the runtime offers to the coordinator of one shard. After the shard has ended every call
    raises BrokerError NOT_COORDINATOR."""

    @property
    def partition(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """Of now: it rises while this broker leads on, when a follower comes or goes."""

    @property
    def fence_version(self) -> int:
        """The version that /pybroker/coordinators/<partition> has as long as nobody else
        coordinates this partition. Known when `Coordinator.loaded` is called."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> Rng: ...

    def require_current(self) -> None:
        """Raises NOT_COORDINATOR where this broker does not hear from ZooKeeper, and another may
        have taken over without its knowing."""

    async def confirm_current(self) -> None:
        """Before an answer that only the coordinator of now may give from memory, such as what is
        committed. Raises NOT_COORDINATOR where another may have taken over since this was called,
        also while ZooKeeper is heard of; it is asked where that is in doubt."""

    @property
    def is_certainly_current(self) -> bool:
        """Whether the leader lease proves, without asking ZooKeeper, that no other coordinator has
        committed anything. This holds if every coordinator awaits `followed` first."""

    async def followed(self) -> None:
        """Wait until every in-sync replica follows this leader, so that no earlier coordinator
        holds a lease. Raises BrokerError."""

    def append(self, records: Sequence[KeyValue]) -> int:
        """Append and replay, both in this very step; gives the offset up to which `committed` has
        to wait. Nothing has happened if it raises BrokerError; its code is one that Kafka answers
        to clients of coordinators: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE (too few replicas),
        UNKNOWN_SERVER_ERROR (too large)."""

    async def committed(self, offset: int) -> None:
        """Wait until everything below is committed. Raises BrokerError NOT_COORDINATOR when the
        shard ends, COORDINATOR_NOT_AVAILABLE after `offsets.commit.timeout.ms`: then it may be
        committed yet."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Never called after the shard has ended."""

    def resign(self, reason: str) -> None:
        """End this shard: somebody else has taken it over. The partition answers NOT_COORDINATOR
        until it is loaded anew: after a pause, where the state node still names this broker, or
        when the controller does."""


class Coordinator(Protocol):
    """The state of one shard. Made anew whenever this broker begins to lead."""

    def replay(self, record: StoredRecord) -> None:
        """Change what is recorded. Also called while loading: no effects on anything outside."""

    def replay_marker(self, marker: StoredMarker) -> None: ...

    async def loaded(self) -> None:
        """Everything is replayed and the fence is ours: finish what belongs to loading and start
        timers. Requests are answered COORDINATOR_LOAD_IN_PROGRESS until this returns. If it raises
        CoordError or BrokerError it is called again after a pause."""

    def ended(self) -> None:
        """The shard is over: whoever waits gets NOT_COORDINATOR. Nothing may be written any
        more."""
