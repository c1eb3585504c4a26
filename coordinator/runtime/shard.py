"""The interface between the runtime and a coordinator. A shard is one partition of an internal
topic, for as long as one broker leads the partition.

A coordinator appends its decisions as records. Only `replay` changes the recorded state, so that
the next leader loads the same state. An answer waits until all in-sync replicas have the decision's
records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pybroker.ports import Clock, KeyValue, Producer, Rng


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class StoredRecord(NamedTuple):
    """A record from the log. `timestamp` is in ms since 1970. `producer_id` is -1 outside a
    transaction."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    producer_id: int = -1
    producer_epoch: int = -1


class StoredMarker(NamedTuple):
    """A commit or abort marker."""

    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool


class ShardContext(Protocol):
    """The runtime's services for the coordinator of one shard. Every call raises BrokerError
    NOT_COORDINATOR after the shard has ended."""

    @property
    def partition(self) -> int: ...

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. It may rise while this broker leads, for example when the
        controller removes a lost follower from the ISR."""

    @property
    def log_end(self) -> int:
        """The offset of the next record."""

    @property
    def fence_version(self) -> int:
        """The version of /pybroker/coordinators/<partition>, unchanged until another broker
        coordinates this partition. Valid once `Coordinator.loaded` is called."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> Rng: ...

    def require_current(self) -> None:
        """Raise BrokerError NOT_COORDINATOR if ZooKeeper has not confirmed this broker's session
        recently. In this case another broker may have become the coordinator."""

    async def confirm_current(self) -> None:
        """Wait until the leader lease or ZooKeeper proves that this broker still coordinates the
        partition. Await this call before answering from memory. Raises BrokerError NOT_COORDINATOR
        if no proof is found."""

    @property
    def is_certainly_current(self) -> bool:
        """Whether this broker has the leader lease (`PartitionLog.has_leader_lease`). During the
        lease no newer coordinator commits a record, because every in-sync replica must first fetch
        in the new leader epoch (see `followed`). After these fetches the lease has ended."""

    async def followed(self) -> None:
        """Wait until every in-sync replica has fetched from this broker in the current leader
        epoch. After that, no earlier coordinator of the partition holds a leader lease. Raises
        BrokerError."""

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        """Verify with the transaction coordinator that this partition is in the transaction
        (KIP-890). Return the producer to pass to `append`. Raises BrokerError with the codes of
        TxnOffsetCommit."""

    def append(
        self,
        records: Sequence[KeyValue],
        producer: Producer | None = None,
        *,
        is_awaited: bool = True,
    ) -> int:
        """Append and replay the records without an await. Return the offset to pass to `committed`.
        With a `producer`, the records belong to the transaction of this producer. `is_awaited`: see
        `PartitionLog.append`.

        Raises BrokerError NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE (too few in-sync replicas), or
        UNKNOWN_SERVER_ERROR (the records are too large). If the appended records cannot be
        replayed, the shard ends, and the error is UNKNOWN_SERVER_ERROR. With a `producer`, also
        raises the codes of TxnOffsetCommit.
        """

    async def committed(self, offset: int) -> None:
        """Wait until all records below `offset` are committed. Raises BrokerError: NOT_COORDINATOR
        if the shard ends, COORDINATOR_NOT_AVAILABLE after a time limit. The records may still be
        committed later."""

    def is_committed(self, offset: int) -> bool:
        """Return whether all records below `offset` are committed. Call this right after `append`
        or `committed`, without an await: only those two check that this broker still leads the
        partition."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` after the delay, unless the shard has ended by then."""

    def resign(self, reason: str) -> None:
        """End this shard. Requests get NOT_COORDINATOR. If this broker still leads the shard's
        partition, it loads the shard again after a pause."""


class Coordinator(Protocol):
    """The coordinator of one partition of `__consumer_offsets` or `__transaction_state`. A new
    coordinator is created whenever this broker becomes the leader of the partition."""

    def replay(self, record: StoredRecord) -> None:
        """Apply one record to the state, without any other effect."""

    def replay_marker(self, marker: StoredMarker) -> None:
        """Apply the end of a transaction to the state, without any other effect. Possibly the
        in-sync replicas do not have the marker yet."""

    async def loaded(self) -> None:
        """Finish loading and start timers. The whole log has been replayed already. Requests get
        COORDINATOR_LOAD_IN_PROGRESS until this call returns. After CoordError or BrokerError, the
        runtime calls it again."""

    def ended(self) -> None:
        """Fail all waiting callers with NOT_COORDINATOR, and write no more."""
