"""The table with the last offset of each key, for the part of a log that the log cleaner compacts
next. Each parameter `payload` is the decompressed records of one batch, possibly damaged."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final, Protocol

from pybroker.ports import Buffer
from pybroker.records import _pure_key_table


class Table(Protocol):
    """Key -> the offset of its last record. One thread at a time may use a table. Keys are stored
    as digests with a secret, so that a producer cannot find two keys with the same digest."""

    ENTRY_BYTES: int
    """The memory that one key takes, in bytes, in a full table."""
    RECORDS_PER_SLICE: int
    """The maximum number of records in one call, for a caller that must not hold the GIL for
    long."""
    capacity: int
    """The maximum number of keys."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes) -> None:
        """The table takes at most `memory_bytes` bytes, and fills at most the share `load_factor`
        (0 to 1) of its slots. `secret` is 16 random bytes. Any method may raise MemoryError."""

    def __len__(self) -> int:
        """Return the number of keys."""

    @property
    def size_bytes(self) -> int:
        """The memory that the table takes now."""

    def put(self, payload: Buffer, position: int, record_count: int, base_offset: int) -> int:
        """Store the offsets of the keys in the next `record_count` records of a batch, from
        `position` in `payload` on. Records must come in offset order. Return the position after the
        records; -1 if the table became full before the last key. Raises CorruptionError if a record
        is damaged. When the table becomes full or a record is damaged, the earlier keys stay in the
        table."""

    def select(
        self,
        payload: Buffer,
        position: int,
        record_count: int,
        base_offset: int,
        drops_tombstones: bool,
    ) -> tuple[int, int, bool, int, bytes | None]:
        """Read `record_count` records from `position` in `payload` on. Select the records that
        Kafka's Cleaner.shouldRetainRecord retains. With `drops_tombstones` no tombstone is
        retained.

        Return the position after the records, and four facts about the retained records: their
        number, whether any is a tombstone, the largest timestamp delta (0 if none is retained), and
        their encoded bytes (None if all records are retained). Raises CorruptionError if a record
        is damaged.
        """


class Shift(Protocol):
    """The interface of both implementations of `shift_times`."""

    def __call__(self, payload: Buffer, record_count: int, shift: int) -> bytes:
        """Return the records of a batch with `shift` added to each timestamp delta. Raises
        CorruptionError if `payload` is not exactly `record_count` whole records, or a delta exceeds
        64 bits."""


class PutBatches(Protocol):
    """The interface of both implementations of `put_batches`."""

    def __call__(
        self, table: Any, data: Buffer, position: int, first_offset: int
    ) -> tuple[int, int]:
        """Put the records of consecutive batches into the table, from `position` in `data` on.
        Batches that end below `first_offset` are skipped. Return the position at which the function
        stopped, and the offset after the last stored or skipped batch (0 if none).

        The function stops before a batch of these kinds:

        - incomplete, compressed, transactional, control, damaged or empty;
        - with keys that do not all fit into the table (some may be stored).

        The pure Python implementation puts nothing and returns (`position`, 0).
        """


class SelectBatches(Protocol):
    """The interface of both implementations of `select_batches`."""

    def __call__(
        self,
        table: Any,
        data: Buffer,
        position: int,
        now_ms: int,
        output: bytearray | memoryview,
        length: int,
    ) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """Copy records from the consecutive batches in `data` to `output`: the records that
        `Table.select` retains. Reading begins at `position`, writing at `length`. Tombstones are
        removed if the batch's delete horizon is at or before `now_ms`.

        Return the position in `data` at which the function stopped, the new content length of
        `output`, and for each copied batch: position in `output`, size, last offset, largest
        timestamp.

        The function stops before a batch of these kinds:

        - incomplete, compressed, transactional, control, damaged or empty;
        - too large for `output`;
        - with a retained tombstone, but without a delete horizon;
        - of an idempotent producer, if no record of the batch is retained.

        The pure Python implementation copies nothing and returns (`position`, `length`, []).
        """


def _chosen() -> ModuleType:
    try:
        found = importlib.import_module("pybroker.records._speedups")
    except ImportError:
        return _pure_key_table
    # Older builds of the compiled module do not have these functions.
    return found if hasattr(found, "select_batches") else _pure_key_table


_module: Final = _chosen()
KeyTable: Final[type[Table]] = _module.KeyTable
shift_times: Final[Shift] = _module.shift_times
put_batches: Final[PutBatches] = _module.put_batches
select_batches: Final[SelectBatches] = _module.select_batches
