"""The transactions in the batches that the log cleaner reads: which batches are aborted, and which
markers are not needed any more. Pure; as in Kafka's CleanedTransactionMetadata."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.records.batch import BatchHeader
from pybroker.records.control import ControlType, EndTransaction
from pybroker.storage.txn_index import AbortedTransaction


class SeenTransactions:
    """Follows the transactions of a log from batch to batch, in the order of the offsets."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted` are all aborted transactions with records in the batches to come."""
        self._to_come = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        """Producer id -> its aborted transaction, from its first offset to its marker."""
        self._with_records: set[int] = set()
        """The producers of aborted transactions that still had batches."""
        self._committed: set[int] = set()
        """The producers of committed transactions that still had batches."""
        self.kept: list[AbortedTransaction] = []
        """The aborted transactions whose batches or markers stay, for the index of the segment. The
        caller empties the list for each segment."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the records of this batch, which is no marker, are aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._with_records.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_empty(self, header: BatchHeader, marker: EndTransaction | None) -> bool:
        """Return whether no batch of the transaction that this marker ends was left. `marker` None:
        a control record of an unknown type, which is always kept."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if marker is None:
            return False
        if marker.type is ControlType.COMMIT:
            is_empty = producer_id not in self._committed
            self._committed.discard(producer_id)
            return is_empty
        transaction = self._aborted.pop(producer_id, None)
        if transaction is None or producer_id not in self._with_records:
            return True
        self._with_records.discard(producer_id)
        self.kept.append(transaction)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._to_come and self._to_come[-1].first_offset <= offset:
            begun = self._to_come.pop()
            self._aborted.setdefault(begun.producer_id, begun)
