"""The offset map of the log cleaner: the last offset of each key in the dirty part of a log. The
generators yield between slices of a batch, so that other threads can run."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer
from pybroker.records._pure import check_count
from pybroker.records.batch import BatchHeader
from pybroker.records.key_table import KeyTable, put_batches, select_batches

ENTRY_BYTES: Final = KeyTable.ENTRY_BYTES
"""The memory that one key takes, in bytes."""


class Kept(NamedTuple):
    """The retained records of a batch: their number, whether a tombstone is among them, their
    largest timestamp delta in ms, and the encoded records."""

    number: int
    has_tombstone: bool
    latest_delta: int
    records: Buffer


class OffsetMap:
    """Maps each key to the offset of its last record. The map has all keys of the dirty part below
    the offset `end`. One thread at a time may use the map."""

    def __init__(self, memory_bytes: int, load_factor: float, first_offset: int) -> None:
        """The keys fill at most the share `load_factor` of `memory_bytes`. `first_offset` is the
        first offset of the log's dirty part."""
        self._table = KeyTable(memory_bytes, load_factor, secrets.token_bytes(16))
        self.end = first_offset

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._table)

    @property
    def size_bytes(self) -> int:
        """The memory that the map takes now."""
        return self._table.size_bytes

    def put_batches(self, data: Buffer, position: int, first_offset: int) -> int:
        """Store the keys of consecutive batches, from `position` in `data` on. Return the
        position of the first batch that only `put` can store (`key_table.PutBatches`), or the
        end of `data`."""
        position, end = put_batches(self._table, data, position, first_offset)
        self.end = max(self.end, end)
        return position

    def select_batches(
        self, data: Buffer, position: int, now_ms: int, output: bytearray | memoryview, length: int
    ) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """Copy the retained records of consecutive batches to `output`. Stop before an unsupported
        batch, such as a compressed batch. `key_table.SelectBatches` describes the parameters, the
        result and the unsupported batches."""
        return select_batches(self._table, data, position, now_ms, output, length)

    def put(self, payload: Buffer, header: BatchHeader) -> Generator[int, None, bool]:
        """Store the keys of a batch; batches must come in offset order. Return whether the map had
        room for all keys. Yields 0 between two slices of the batch's records. Raises
        CorruptionError for damaged records."""
        check_count(header.record_count, len(payload))
        position = 0
        for count in self._slices(header.record_count):
            if position:
                yield 0
            position = self._table.put(payload, position, count, header.base_offset)
            if position < 0:
                return False
        _check_end(position, payload, header)
        return True

    def select(
        self, payload: Buffer, header: BatchHeader, *, drops_tombstones: bool
    ) -> Generator[int, None, Kept]:
        """Return the retained records of a batch. This generator yields the number 0 between two
        slices of the batch's records. Raises CorruptionError for damaged records."""
        check_count(header.record_count, len(payload))
        position = kept = 0
        has_tombstone, latest = False, None
        pieces: list[Buffer] = []
        for count in self._slices(header.record_count):
            if position:
                yield 0
            begin = position
            position, found, tombstone, delta, records = self._table.select(
                payload, begin, count, header.base_offset, drops_tombstones
            )
            pieces.append(memoryview(payload)[begin:position] if records is None else records)
            kept += found
            has_tombstone |= tombstone
            if found:
                latest = delta if latest is None else max(latest, delta)
        _check_end(position, payload, header)
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return Kept(kept, has_tombstone, latest or 0, joined)

    def _slices(self, record_count: int) -> Generator[int]:
        step = self._table.RECORDS_PER_SLICE
        for begin in range(0, record_count, step):
            yield min(step, record_count - begin)


def _check_end(position: int, payload: Buffer, header: BatchHeader) -> None:
    if position != len(payload):
        raise CorruptionError(
            f"{len(payload) - position} bytes follow the last record of the batch at offset"
            f" {header.base_offset}, expected 0"
        )
