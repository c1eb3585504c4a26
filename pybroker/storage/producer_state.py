"""The state of a partition's idempotent and transactional producers (KIP-98, KIP-360). No I/O.

The leader checks and then applies a batch; followers and recovery only apply batches. A completed
transaction stays `undecided`, and holds back the last stable offset, until the high watermark is
above the transaction's marker.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
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
VERIFICATIONS_MAX: Final = 10_000
"""The largest number of guards (`Verification`) of one partition. The limit keeps requests with
made-up producer ids from filling the memory. Above it the oldest guard is removed, and the batch of
that guard gets INVALID_TXN_STATE."""
EXPIRATION_MS_DEFAULT: Final = 24 * 3600 * 1000
"""The default of the option producer.id.expiration.ms."""


class RememberedBatch(NamedTuple):
    """An appended batch, by which the leader detects a retry of the same sequences."""

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

    @property
    def has_transaction(self) -> bool:
        """Whether the producer has an open transaction."""
        return self.transaction_first_offset != NO_OFFSET


@dataclass(slots=True, eq=False)
class Verification:
    """The guard of a transaction's first append to a partition (KIP-890). The leader appends only
    if the guard still exists after the transaction coordinator's confirmation. A transaction marker
    of the same producer removes the guard."""

    started_ms: int
    epoch: int
    lowest_sequence: int
    """The lowest base sequence of the batches with this epoch for which `verification` was called.
    The transaction must begin with the batch of this sequence: the leader refuses to begin it with
    a later batch."""


EXEMPT: Final = Verification(0, NO_EPOCH, SEQUENCE_MAX)
"""The guard of an append that needs no verification."""


class CompletedTransaction(NamedTuple):
    """A transaction from `first_offset` to its marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


@dataclass(slots=True)
class ProducerState:
    """The state of all producers of one partition.

    Invariants: the offsets in `open_transactions` ascend. `first_unstable`, which any thread may
    read, is the smallest first offset in `open_transactions` and `undecided`.
    """

    entries: dict[int, ProducerEntry] = field(default_factory=dict)
    open_transactions: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """First offset of an open transaction -> its producer id."""
    undecided: deque[CompletedTransaction] = field(default_factory=deque)
    """The completed transactions whose marker was at or above the high watermark at the last call
    of `decide`, in the order of the markers."""
    first_unstable: int | None = None
    unstable_since_ms: int = 0
    """The wall-clock time in ms from which `stood_still_ms` counts: about when `first_unstable` got
    its value. If `first_unstable` was None before, this is the append time of the transaction's
    first batch; otherwise it is the append time of the last marker."""
    verifications: dict[int, Verification] = field(default_factory=dict)
    """Producer id -> the guard of the producer's first append to a transaction."""
    marker_ms: int = 0
    """The wall-clock time in ms at which the last marker that ended a transaction was appended."""

    @classmethod
    def restored(
        cls,
        entries: Iterable[ProducerEntry],
        undecided: Iterable[CompletedTransaction] = (),
    ) -> ProducerState:
        state = cls({entry.producer_id: entry for entry in entries})
        begun = (entry for entry in state.entries.values() if entry.has_transaction)
        for entry in sorted(begun, key=lambda each: each.transaction_first_offset):
            state.open_transactions[entry.transaction_first_offset] = entry.producer_id
        state.undecided.extend(undecided)
        state._find_first_unstable()
        return state

    def take_over(self, other: ProducerState) -> None:
        """Replace this state by that of `other`, which covers the same records."""
        self.entries = other.entries
        self.open_transactions = other.open_transactions
        self.undecided = other.undecided
        self.first_unstable = other.first_unstable
        self.unstable_since_ms = other.unstable_since_ms
        self.marker_ms = other.marker_ms
        self.verifications = other.verifications

    @property
    def last_seen_ms(self) -> int:
        """The wall-clock time in ms of the last append by a known producer; 0 if no producer is
        known."""
        return max((entry.last_seen_ms for entry in self.entries.values()), default=0)

    def has_transaction(self, producer_id: int) -> bool:
        """Return whether the producer has an open transaction in this partition."""
        entry = self.entries.get(producer_id)
        return entry is not None and entry.has_transaction

    def verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> Verification | None:
        """Return the guard for a transactional batch that begins with `sequence`; None if the
        producer already has an open transaction in this partition. With a guard, the transaction
        coordinator must confirm the transaction before the append."""
        if self.has_transaction(producer_id):
            return None
        found = self.verifications.get(producer_id)
        if found is None:
            if len(self.verifications) >= VERIFICATIONS_MAX:
                del self.verifications[next(iter(self.verifications))]
            found = self.verifications[producer_id] = Verification(now_ms, epoch, sequence)
        elif epoch > found.epoch:
            found.epoch, found.lowest_sequence = epoch, sequence
        elif epoch == found.epoch:
            found.lowest_sequence = min(found.lowest_sequence, sequence)
        return found

    def check(
        self,
        header: BatchHeader,
        marker: EndTransaction | None = None,
        guard: Verification | None = EXEMPT,
    ) -> RememberedBatch | None:
        """Return None if the producer may append the batch. If the batch repeats one of the
        producer's last five batches, return that batch. `guard` is the earlier result of
        `verification`. The guard EXEMPT is never checked.

        Raises BrokerError:

        - INVALID_PRODUCER_EPOCH: the batch's epoch is older than the producer's.
        - OUT_OF_ORDER_SEQUENCE_NUMBER: the sequence is not the next one (0 in a new epoch), or an
          earlier batch of the transaction is missing. An unknown producer may begin with any
          sequence.
        - INVALID_TXN_STATE: a transaction is open, but the batch is not transactional. Also if the
          batch begins a transaction, but `guard` is None or no longer in `verifications`.
        - TRANSACTION_COORDINATOR_FENCED: the marker comes from a replaced coordinator.
        """
        entry = self.entries.get(header.producer_id)
        first_sequence = header.base_sequence
        if entry is not None and first_sequence != NO_SEQUENCE:
            last_sequence = header.last_sequence
            for batch in entry.batches:
                if (
                    batch.last_sequence == last_sequence
                    and batch.first_sequence == first_sequence
                    and header.producer_epoch == entry.epoch
                ):
                    return batch
        begins = header.is_transactional and (entry is None or not entry.has_transaction)
        if begins and marker is None and guard is not EXEMPT:
            self._check_guard(header, guard)
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
                raise BrokerError(
                    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                    f"producer {header.producer_id}: the marker has coordinator epoch"
                    f" {marker.coordinator_epoch}, expected {entry.coordinator_epoch} or more",
                )
            return None
        if first_sequence != NO_SEQUENCE:
            self._check_sequence(entry, header)
        if entry.has_transaction and not header.is_transactional:
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction in this partition, but"
                " the batch is not transactional",
            )
        return None

    def _check_guard(self, header: BatchHeader, guard: Verification | None) -> None:
        if guard is None or guard is not self.verifications.get(header.producer_id):
            raise BrokerError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has no open transaction in this partition, and"
                " the coordinator has not confirmed that the producer's transaction contains the"
                " partition",
            )
        # After a failed verification the producer may send later batches before it repeats this
        # one. If the leader appended a later one first, it could never append this one.
        if header.base_sequence > guard.lowest_sequence:
            raise BrokerError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} epoch {header.producer_epoch}: the batch begins"
                f" with sequence {header.base_sequence}, expected {guard.lowest_sequence}, the"
                " first sequence of the transaction in this partition",
            )

    def refuse(self, producer_id: int, epoch: int) -> None:
        """Remove the producer's `Verification` (KIP-890): the transaction coordinator says that the
        partition is not in the producer's transaction. Do nothing if the `Verification` has a
        producer epoch above `epoch`."""
        found = self.verifications.get(producer_id)
        if found is not None and found.epoch <= epoch:
            del self.verifications[producer_id]

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
        """Update the state for a batch written at `first_offset`. Return the transaction that the
        batch completed, if any. `seen_ms` is the wall-clock time of the append."""
        last_offset = first_offset + header.last_offset_delta
        entry = self.entries.get(header.producer_id)
        if entry is None:
            entry = self.entries[header.producer_id] = ProducerEntry(header.producer_id)
        if header.producer_epoch != entry.epoch:
            entry.epoch = header.producer_epoch
            entry.batches = ()
        entry.last_seen_ms = max(entry.last_seen_ms, seen_ms)
        if marker is not None:
            return self._end_transaction(entry, marker, last_offset, seen_ms)
        if header.base_sequence != NO_SEQUENCE:
            batch = RememberedBatch(
                header.last_sequence, last_offset, header.last_offset_delta, header.max_timestamp
            )
            entry.batches = (*entry.batches[1 - BATCHES_REMEMBERED :], batch)
        if header.is_transactional and not entry.has_transaction:
            self.verifications.pop(header.producer_id, None)
            entry.transaction_first_offset = first_offset
            self.open_transactions[first_offset] = header.producer_id
            if self.first_unstable is None:
                self.first_unstable, self.unstable_since_ms = first_offset, seen_ms
        return None

    def _end_transaction(
        self, entry: ProducerEntry, marker: EndTransaction, last_offset: int, seen_ms: int
    ) -> CompletedTransaction | None:
        entry.coordinator_epoch = marker.coordinator_epoch
        self.verifications.pop(entry.producer_id, None)
        first_offset = entry.transaction_first_offset
        if first_offset == NO_OFFSET:
            return None
        entry.transaction_first_offset = NO_OFFSET
        self.marker_ms = seen_ms
        del self.open_transactions[first_offset]
        completed = CompletedTransaction(
            entry.producer_id, first_offset, last_offset, marker.type is ControlType.ABORT
        )
        self.undecided.append(completed)
        return completed

    def decide(self, high_watermark: int) -> bool:
        """Remove from `undecided` each transaction whose marker is below `high_watermark`. Return
        whether any transaction was removed."""
        undecided = self.undecided
        if not undecided or undecided[0].last_offset >= high_watermark:
            return False
        while undecided and undecided[0].last_offset < high_watermark:
            undecided.popleft()
        self._find_first_unstable()
        return True

    def _find_first_unstable(self) -> None:
        starts = [transaction.first_offset for transaction in self.undecided]
        starts += list(itertools.islice(self.open_transactions, 1))
        before, self.first_unstable = self.first_unstable, min(starts, default=None)
        if self.first_unstable != before:
            self.unstable_since_ms = self.marker_ms

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset: `first_unstable`, but at most `high_watermark`."""
        first = self.first_unstable
        return high_watermark if first is None or first > high_watermark else first

    def stood_still_ms(self, now_ms: int) -> int:
        """Return for how long (ms) a transaction has held back the last stable offset; 0 if no
        transaction does."""
        return 0 if self.first_unstable is None else max(0, now_ms - self.unstable_since_ms)

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """Return the transaction index entry of the aborted transaction `completed`. This method
        must be called right after `apply` of the transaction's abort marker."""
        return AbortedTransaction(
            completed.producer_id,
            completed.first_offset,
            completed.last_offset,
            next(iter(self.open_transactions), completed.last_offset + 1),
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Remove each producer that has no open transaction and has not appended for
        `expiration_ms`. Remove each guard of a transaction's first append (`Verification`) that was
        created at least `expiration_ms` ago. Return the number of removed producers."""
        expired = [
            producer_id
            for producer_id, entry in self.entries.items()
            if now_ms - entry.last_seen_ms >= expiration_ms and not entry.has_transaction
        ]
        for producer_id in expired:
            del self.entries[producer_id]
        for producer_id, guard in list(self.verifications.items()):
            if now_ms - guard.started_ms >= expiration_ms:
                del self.verifications[producer_id]
        return len(expired)
