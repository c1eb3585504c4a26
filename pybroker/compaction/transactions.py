"""The state of the transactions in the batches that the log cleaner reads: which batches are
aborted, and which markers are no longer needed. Like Kafka's CleanedTransactionMetadata. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.records.batch import BatchHeader
from pybroker.records.control import ControlType, EndTransaction
from pybroker.storage.txn_index import AbortedTransaction


class SeenTransactions:
    """The state of a log's transactions. Pass each batch once, in offset order: a marker to
    `is_empty`, any other batch to `is_aborted`."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: the aborted transactions of all batches to be passed to `is_aborted` and
        `is_empty`."""
        self._to_come = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}
        """Producer id -> its aborted transaction. The entry exists while the batches between the
        transaction's first offset and its marker are read."""
        self._with_records: set[int] = set()
        """The producer ids of the open aborted transactions of which at least one batch was
        read."""
        self._committed: set[int] = set()
        """The producer ids of the open committed transactions of which at least one batch was
        read."""
        self.kept: list[AbortedTransaction] = []
        """The aborted transactions whose batches were read, for the transaction index of the new
        segment. The caller empties the list after each segment."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return whether the transaction of this batch was aborted. The batch must not be a
        marker."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._with_records.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def is_empty(self, header: BatchHeader, marker: EndTransaction | None) -> bool:
        """Return whether the marker is the only batch of its transaction in the log. Return False
        if `marker` is None (a control record of an unknown type). `header` is the header of the
        marker's batch."""
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
