"""The last offset of each key in the part of a log that the log cleaner cleans next, and the choice
of its implementation.

`_key_table.pxi` does the work if a C compiler was found at installation, otherwise
`_pure_key_table.py`. The same tests check both. Callers handle batch headers, compression and
checksums. The payload is the decompressed records of a batch, and may be damaged.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Final, Protocol

from pybroker.ports import Buffer
from pybroker.records import _pure_key_table


class Table(Protocol):
    """The interface of both implementations: key -> the offset of its last record.

    Keys are stored as digests of 16 bytes, like Kafka's MD5, so a key of a megabyte takes no more
    memory than a short one. The digests depend on a secret, so a producer cannot find two keys with
    the same digest. The compiled implementation releases the GIL; only one thread at a time may use
    a table.
    """

    ENTRY_BYTES: int
    """The memory that one key takes, in bytes, in a full table."""
    RECORDS_PER_SLICE: int
    """The maximum number of records in one call, for a caller that must not hold the GIL for
    long."""
    capacity: int
    """The maximum number of keys."""

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes) -> None:
        """`memory_bytes` is the maximum size of the table, and `load_factor` (0 to 1) the share of
        its slots that may be used. The table begins small, and grows with its keys. `secret` is 16
        random bytes. This method and later calls may raise MemoryError."""

    def __len__(self) -> int:
        """Return the number of keys."""

    @property
    def size_bytes(self) -> int:
        """The memory that the table takes now."""

    def put(self, payload: Buffer, position: int, record_count: int, base_offset: int) -> int:
        """Store the offsets of the next `record_count` records of a batch, which begin at
        `position` in `payload`. Return the position after these records, or -1 if the table has no
        room for all their keys; the table then has some of the keys. The caller puts records in the
        order of their offsets. Records without a key are skipped. Raises CorruptionError if a
        record is damaged; the table then has the keys of the records before it."""

    def select(
        self,
        payload: Buffer,
        position: int,
        record_count: int,
        base_offset: int,
        drops_tombstones: bool,
    ) -> tuple[int, int, bool, int, bytes | None]:
        """Decide which of the next `record_count` records of a batch stay in the log, as Kafka's
        Cleaner.shouldRetainRecord does. The records begin at `position` in `payload`. A record
        without a key is removed, and so is a record for whose key the table has a higher offset.
        With `drops_tombstones` all tombstones are removed as well.

        Return five values: the position after the `record_count` records, the number of records
        that stay, whether a tombstone stays, the largest timestamp delta of the records that stay
        (0 if none does), and the bytes of the records that stay (None if all stay). Raises
        CorruptionError if a record is damaged.
        """


class Shift(Protocol):
    """The interface of both implementations of `shift_times`."""

    def __call__(self, payload: Buffer, record_count: int, shift: int) -> bytes:
        """Return the records of a batch with `shift` added to each timestamp delta. All other
        fields stay. Raises CorruptionError if `payload` is not exactly `record_count` whole
        records, or a delta exceeds 64 bits."""


class PutBatches(Protocol):
    """The interface of both implementations of `put_batches`."""

    def __call__(
        self, table: Any, data: Buffer, position: int, first_offset: int
    ) -> tuple[int, int]:
        """Put the records of consecutive batches into the table, from the batch at `position` in
        `data` on. The function skips batches that end below `first_offset`. It stops after the last
        whole batch of `data`, or before a batch that the caller must handle: one that is
        compressed, transactional, damaged or empty, a control batch, or one for which the table has
        no room. In the last case the table may already have some keys of that batch. The pure
        Python implementation handles no batch and returns `position`.

        Return the position where it stopped, and the offset after the last batch that it handled or
        skipped (0 if there is none)."""


class SelectBatches(Protocol):
    """The interface of both implementations of `select_batches`."""

    def __call__(
        self,
        table: Any,
        data: Buffer,
        position: int,
        now_ms: int,
        output: bytearray,
        length: int,
    ) -> tuple[int, int, list[tuple[int, int, int, int]]]:
        """Copy consecutive batches, with only their retained records, from `data` to `output`.
        Reading begins with the batch at `position` in `data`, writing at the position `length` in
        `output`. `Table.select` decides which records are retained; tombstones of a batch are
        removed if its delete horizon is at or before `now_ms`. The function stops after the last
        whole batch, or before a batch that the caller must handle: one before which `put_batches`
        stops, one that does not fit into `output`, one that gets a delete horizon, or one of an
        idempotent producer of which no record is retained. The pure Python implementation handles
        no batch and returns `position`.

        Return the position where it stopped, the new length of the content of `output`, and for
        each copied batch: its position in `output`, its size, its last offset and its largest
        timestamp."""


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
