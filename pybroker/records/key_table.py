"""The table with the last offset of each key, for the part of a log that the log cleaner compacts
next. The parameter `payload` is always the decompressed records of one batch, which may be damaged.

This module chooses the implementation: `_key_table.pxi` if a C compiler was found at installation,
otherwise `_pure_key_table.py`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final, Protocol

from pybroker.ports import Buffer
from pybroker.records import _pure_key_table


class Table(Protocol):
    """Key -> the offset of its last record: the interface of both implementations. One thread at a
    time may use a table.

    Keys are stored as digests of 16 bytes. The digests depend on a secret, so a producer cannot
    find two keys with the same digest."""

    ENTRY_BYTES: int
    """The memory that one key takes, in bytes, in a full table."""
    RECORDS_PER_SLICE: int
    """The maximum number of records in one call, for a caller that must not hold the GIL for
    long."""
    capacity: int
    """The maximum number of keys."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes) -> None:
        """The table has at most `memory_bytes` bytes. Keys may take the share `load_factor` (0 to
        1) of its slots. `secret` is 16 random bytes. This method and later calls may raise
        MemoryError."""

    def __len__(self) -> int:
        """Return the number of keys."""

    @property
    def size_bytes(self) -> int:
        """The memory that the table takes now."""

    def put(self, payload: Buffer, position: int, record_count: int, base_offset: int) -> int:
        """Store the offsets of the next `record_count` records of a batch, from `position` in
        `payload` on. Records must come in offset order; records without a key are skipped.
        Return the position after these records; -1 if the table has room for only some of their
        keys. Raises CorruptionError if a record is damaged; the keys of earlier records are then
        stored."""

    def select(
        self,
        payload: Buffer,
        position: int,
        record_count: int,
        base_offset: int,
        drops_tombstones: bool,
    ) -> tuple[int, int, bool, int, bytes | None]:
        """Decide which of the next `record_count` records of a batch stay in the log, by the rule
        of Kafka's Cleaner.shouldRetainRecord. The first of these records is at `position` in
        `payload`. With `drops_tombstones` all tombstones are removed.

        Return five values: the position after these records; the number of records that stay;
        whether a tombstone stays; the largest timestamp delta of the records that stay, 0 if no
        record stays; the bytes of the records that stay, None if all records stay. Raises
        CorruptionError if a record is damaged.
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
        """Put the records of consecutive batches, from `position` in `data` on, into the table.
        Skip the batches that end below `first_offset`. Return the position where the function
        stopped, and the offset after the last batch that was stored or skipped (0 if there is
        none).

        The function stops at the first incomplete batch, or before one of these:

        - a batch that is compressed, transactional, damaged or empty;
        - a control batch;
        - a batch whose keys do not all fit into the table. Some of the keys may be stored.

        The pure Python implementation stores no batch: it returns `position` and 0.
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
        """Copy consecutive batches from `data`, beginning at `position`, into `output`, beginning
        at `length`. A copied batch has only its retained records. `Table.select` decides which
        records are retained; tombstones are removed if the batch's delete horizon is at or before
        `now_ms`.

        Return the position in `data` where the function stopped, the new length of the content of
        `output`, and for each copied batch: its position in `output`, its size, its last offset and
        its largest timestamp.

        The function stops at the first incomplete batch, or before one of these:

        - a batch that is compressed, transactional, damaged or empty;
        - a control batch;
        - a batch that does not fit into `output`;
        - a batch that has to get a delete horizon;
        - a batch of an idempotent producer, if no record of the batch is retained.

        The pure Python implementation never copies a batch. It always returns `position`, `length`
        and an empty list.
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
