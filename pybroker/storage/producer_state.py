"""The state of a partition's idempotent and transactional producers (KIP-98, KIP-360).

The code does no I/O. `check` decides whether a batch may be appended, and changes nothing. `apply`
updates the state for a batch that was written. The leader calls both. Followers and recovery call
only `apply`, so all replicas reach the same state. `producer_snapshot.py` defines the file
format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import NO_EPOCH, NO_OFFSET
from pybroker.records.batch import NO_SEQUENCE, SEQUENCE_MAX, BatchHeader
from pybroker.records.control import ControlType, EndTransaction
from pybroker.storage.txn_index import AbortedTransaction

BATCHES_REMEMBERED: Final = 5
"""The largest number of batches that an idempotent producer has in flight
(max.in.flight.requests.per.connection). The broker remembers this many for each producer."""
EXPIRATION_MS_DEFAULT: Final = 24 * 3600 * 1000
"""The default of the option producer.id.expiration.ms."""


class RememberedBatch(NamedTuple):
    """An appended batch. A retry of it, with the same sequences, gets the same response."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX


@dataclass(slots=True)
class ProducerEntry:
    """The state of one producer. Invariant: all `batches` have the producer epoch `epoch`; they are
    at most five, oldest first."""

    producer_id: int
    epoch: int = NO_EPOCH
    batches: tuple[RememberedBatch, ...] = ()
    last_seen_ms: int = -1
    coordinator_epoch: int = NO_EPOCH
    transaction_first_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


class CompletedTransaction(NamedTuple):
    """A transaction from `first_offset` to its marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class ProducerState:
    """The state of all producers of one partition.

    Invariant: the keys of `open_transactions` are the `transaction_first_offset` of all entries
    with an open transaction."""

    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    open_transactions: dict[int, int] = field(default_factory=dict)
    """First offset of an open transaction -> its producer id."""
    undecided: list[CompletedTransaction] = field(default_factory=list)
    """The completed transactions whose marker may be at or above the high watermark, in the order
    of the markers."""

    @classmethod
    def restored(cls, entries: Iterable[ProducerEntry]) -> ProducerState:
        state = cls({entry.producer_id: entry for entry in entries})
        state.open_transactions = {
            entry.transaction_first_offset: entry.producer_id
            for entry in state.entries.values()
            if entry.transaction_first_offset != NO_OFFSET
        }
        return state

    def take_over(self, other: ProducerState) -> None:
        """Replace this state by that of `other`, which covers the same records."""
        self.entries = other.entries
        self.open_transactions = other.open_transactions
        self.undecided = other.undecided

    @property
    def last_seen_ms(self) -> int:
        """The wall-clock time in ms of the last append by a known producer; 0 if no producer is
        known."""
        return max((entry.last_seen_ms for entry in self.entries.values()), default=0)

    def check(
        self, header: BatchHeader, marker: EndTransaction | None = None
    ) -> RememberedBatch | None:
        """Return None if the producer may append the batch with this header. If the batch repeats
        one of the producer's last five batches, return that batch.

        Raises BrokerError: INVALID_PRODUCER_EPOCH for an older epoch than the producer's,
        OUT_OF_ORDER_SEQUENCE_NUMBER for a gap in the sequences and for a new epoch that does not
        begin with sequence 0, INVALID_TXN_STATE for a non-transactional batch inside a transaction,
        TRANSACTION_COORDINATOR_FENCED for a marker of a replaced coordinator. An unknown producer
        may begin with any sequence, since its state may have expired."""
        entry = self.entries.get(header.producer_id)
        if entry is None:
            return None
        if header.producer_epoch < entry.epoch:
            raise BrokerError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: the batch has producer epoch"
                f" {header.producer_epoch}, expected {entry.epoch} or more",
            )
        if marker is not None:
            if marker.coordinator_epoch < entry.coordinator_epoch:
                raise BrokerError(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
            return None
        if header.producer_epoch == entry.epoch:
            first, last = header.base_sequence, header.last_sequence
            for batch in entry.batches:
                if batch.last_sequence == last and batch.first_sequence == first:
                    return batch
        if header.base_sequence != NO_SEQUENCE:  # batches of the group coordinator have none
            self._check_sequence(entry, header)
        if entry.transaction_first_offset != NO_OFFSET and not header.is_transactional:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction, so a transactional batch"
                " is expected",
            )
        return None

    def _check_sequence(self, entry: ProducerEntry, header: BatchHeader) -> None:
        if header.producer_epoch == entry.epoch:
            expected = (entry.last_sequence + 1) & SEQUENCE_MAX
        else:
            expected = 0
        if header.base_sequence != expected:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch}: the batch begins"
                f" with sequence {header.base_sequence}, expected {expected} after sequence"
                f" {entry.last_sequence} of epoch {entry.epoch}",
            )

    def apply(
        self,
        header: BatchHeader,
        first_offset: int,
        seen_ms: int,
        marker: EndTransaction | None = None,
    ) -> CompletedTransaction | None:
        """Update the state for a batch that was written at `first_offset`. Return the transaction
        that the batch completed, or None. `marker` is the transaction marker in the batch, if it
        has one.

        `seen_ms` is the wall-clock time of the append, from which the producer counts as idle. The
        timestamps of the records may be years old."""
        last_offset = first_offset + header.last_offset_delta
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_id)
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches = ()
        entry.last_seen_ms = max(entry.last_seen_ms, seen_ms)
        if marker is not None:
            return self._end_transaction(entry, marker, last_offset)
        if header.base_sequence != NO_SEQUENCE:
            batch = RememberedBatch(
                header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp
            )
            entry.batches = (*entry.batches[1 - BATCHES_REMEMBERED :], batch)
        if header.is_transactional and entry.transaction_first_offset == NO_OFFSET:
            entry.transaction_first_offset = first_offset
            self.open_transactions[first_offset] = header.producer_id
        return None

    def _end_transaction(
        self, entry: ProducerEntry, marker: EndTransaction, last_offset: int
    ) -> CompletedTransaction | None:
        entry.coordinator_epoch = marker.coordinator_epoch
        first_offset = entry.transaction_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.transaction_first_offset = NO_OFFSET
        del self.open_transactions[first_offset]
        completed = CompletedTransaction(
            entry.producer_id, first_offset, last_offset, marker.type is ControlType.ABORT
        )
        self.undecided.append(completed)
        return completed

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the smallest first offset among the open transactions and those whose marker is at
        or above the high watermark; None if there are none."""
        while self.undecided and self.undecided[0].last_offset < high_watermark:
            del self.undecided[0]
        starts = [transaction.first_offset for transaction in self.undecided]
        if self.open_transactions:
            starts.append(min(self.open_transactions))
        return min(starts, default=None)

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """Return the entry of the transaction index for `completed`, which the last marker has
        aborted."""
        return AbortedTransaction(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            min(self.open_transactions, default=completed.last_offset + 1),
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove the producers that have no open transaction and have not appended for
        `expiration_ms`. Return their number."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.last_seen_ms >= expiration_ms
            and entry.transaction_first_offset == NO_OFFSET
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        return len(expired)
