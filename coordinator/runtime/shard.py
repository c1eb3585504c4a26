"""The interface between the runtime and a coordinator. A shard is one partition of the internal
topic during the time in which one broker leads it.

A coordinator decides without changing its state, and appends its decisions as records. Only
`replay` changes the recorded state: right after the append, and in the same way when the next
leader loads the log. Answers that clients rely on wait until the records are committed, that is,
replicated to all in-sync replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pybroker.ports import Clock, KeyValue, Producer, Rng


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class StoredRecord(NamedTuple):
    """A record from the log. `timestamp` is in ms since 1970. `producer_id` is -1 unless the record
    is part of a transaction."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    producer_id: int = -1
    producer_epoch: int = -1


class StoredMarker(NamedTuple):
    """A commit or abort marker: the end of a transaction in this partition."""

    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool


class ShardContext(Protocol):
    """The runtime's services for the coordinator of one shard. After the shard has ended every call
    raises BrokerError NOT_COORDINATOR."""

    @property
    def partition(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. It may rise while this broker continues to lead, for example
        when a follower leaves the ISR."""

    @property
    def log_end(self) -> int:
        """The offset of the next record."""

    @property
    def fence_version(self) -> int:
        """The version of /pybroker/coordinators/<partition>. It is unchanged as long as no other
        broker coordinates this partition. Valid from the call of `Coordinator.loaded` on."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> Rng: ...

    def require_current(self) -> None:
        """Raise BrokerError NOT_COORDINATOR if ZooKeeper does not answer this broker: another
        broker may have taken over without its knowledge."""

    async def confirm_current(self) -> None:
        """Wait until it is certain that this broker still coordinates the partition: by the leader
        lease, else by a request to ZooKeeper. Await this before an answer from memory that only the
        current coordinator may give, such as committed offsets. Raises BrokerError NOT_COORDINATOR
        if it is not certain."""

    @property
    def is_certainly_current(self) -> bool:
        """Whether the leader lease proves, without a request to ZooKeeper, that no other
        coordinator has committed anything. The proof requires that every coordinator awaits
        `followed` before it commits anything."""

    async def followed(self) -> None:
        """Wait until every in-sync replica follows this leader, so that no earlier coordinator
        holds a leader lease. Raises BrokerError."""

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        """Return the producer for an `append` to its transaction, after the transaction coordinator
        has confirmed that this partition is in the transaction (KIP-890). Raises BrokerError with
        the codes of such an `append`."""

    def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> int:
        """Append and replay the records, without yielding to the event loop. Return the offset to
        pass to `committed`. Raises BrokerError if nothing was appended, with a code that clients of
        coordinators expect: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE (too few in-sync replicas),
        UNKNOWN_SERVER_ERROR (too large). With a `producer` the records are part of its transaction,
        and the codes are those of TxnOffsetCommit (`refusals.transactional_error`)."""

    async def committed(self, offset: int) -> None:
        """Wait until all records below `offset` are committed. Raises BrokerError NOT_COORDINATOR
        if the shard ends, and COORDINATOR_NOT_AVAILABLE after the shard's time limit; the records
        may still be committed later."""

    def is_committed(self, offset: int) -> bool:
        """Return whether all records below `offset` are committed. Do not await between the return
        of `append` or `committed` and this call: those two check that this broker still leads the
        partition, and this method does not."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after the delay, unless the shard has ended by then."""

    def resign(self, reason: str) -> None:
        """End this shard, for example because another broker has taken over the partition. Requests
        get NOT_COORDINATOR until the partition is loaded again. If the state node still names this
        broker as the leader, the next load begins after a pause. Otherwise it begins when the
        controller makes this broker the leader again."""


class Coordinator(Protocol):
    """The coordinator of one shard, with its state. A new Coordinator is created whenever this
    broker becomes the leader of the shard's partition."""

    def replay(self, record: StoredRecord) -> None:
        """Apply one record to the state, without any effect outside the state: `replay` is also
        called while the shard is loading."""

    def replay_marker(self, marker: StoredMarker) -> None:
        """Apply the end of a transaction, as `replay` does. In a loaded shard the marker has just
        been appended, and may not be committed yet."""

    async def loaded(self) -> None:
        """Finish loading and start timers, after the log is replayed and this broker owns the
        fence. Requests get COORDINATOR_LOAD_IN_PROGRESS until this call returns. After CoordError
        or BrokerError, `loaded` is called again after a pause."""

    def ended(self) -> None:
        """Fail all waiting callers with NOT_COORDINATOR, because the shard has ended. Further
        writes are not allowed."""
