"""Finds the last row of each key in a sequence of rows, in bounded memory. If the rows exceed the
memory limit, they are written to files. The hash of a row's key chooses the file. Each file is
later reduced on its own."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import numpy as np
import pyarrow as pa

from pybroker.spark.rows import BATCH_BYTES, BATCH_ROWS

WAITING_BYTES_MIN: Final = 8 * 2**20
"""The new rows are merged into the kept rows when the new rows reach this size, or the size of the
kept rows if the kept rows are larger. A kept row is therefore copied only a few times, whatever the
number of later rows."""
FILES: Final = 32
_HASH_BITS: Final = 5
_LEVELS_MAX: Final = 60 // _HASH_BITS
_ROWS_SPILLED_MIN: Final = 1_000
"""The smallest number of rows that is written to files, whatever the size of the rows."""


class NewestRows:
    """Receives rows by `add`. `finish` yields the last row for each value of the column `key`.

    The memory is about `bytes_max` bytes, and twice as much while rows are compared. Rows above the
    limit are in unnamed files.
    """

    def __init__(self, bytes_max: int, level: int = 0) -> None:
        self._bytes_max = bytes_max
        self._level = level
        self._held: pa.Table | None = None
        """One row for each key, in the order of arrival."""
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._files: _Files | None = None

    def __enter__(self) -> NewestRows:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._files is not None:
            self._files.close()

    @property
    def has_spilled(self) -> bool:
        return self._files is not None

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        held = self._held.nbytes if self._held is not None else 0
        if self._waiting_bytes >= min(max(WAITING_BYTES_MIN, held), self._bytes_max // 2):
            self._compare()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the last row of each key, in batches of a suitable size for Spark. Call this once,
        after the last `add`."""
        self._compare()
        if self._files is None:
            held, self._held = self._held, None
            yield from _portions(held)
            return
        self._spill()
        for batches in self._files.read():
            with NewestRows(self._bytes_max, self._level + 1) as newest:
                for batch in batches:
                    newest.add(batch)
                yield from newest.finish()

    def _compare(self) -> None:
        """Add the waiting rows to the kept rows, and keep only the last row of each key. Write the
        kept rows to files if the kept rows are too large, or if files exist."""
        if not self._waiting:
            return
        parts = [] if self._held is None else [self._held]
        parts.append(pa.Table.from_batches(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        self._held = _last_of_each_key(pa.concat_tables(parts))
        is_large = self._held.nbytes > self._bytes_max // 2
        if self.has_spilled or (
            is_large and self._held.num_rows >= _ROWS_SPILLED_MIN and self._level < _LEVELS_MAX
        ):
            self._spill()

    def _spill(self) -> None:
        if self._held is None:
            return
        if self._files is None:
            self._files = _Files(self._held.schema, self._level)
        self._files.write(self._held)
        self._held = None


def _last_of_each_key(table: pa.Table) -> pa.Table:
    numbers = pa.array(np.arange(table.num_rows, dtype=np.int64))
    keys = pa.Table.from_arrays([table.column("key"), numbers], names=["key", "row"])
    last = keys.group_by("key", use_threads=False).aggregate([("row", "max")]).column("row_max")
    if len(last) == table.num_rows:
        return table
    return table.take(np.sort(last.to_numpy()))


def _portions(table: pa.Table | None) -> Iterator[pa.RecordBatch]:
    if table is None or not table.num_rows:
        return
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
    yield from table.to_batches(max_chunksize=rows)


class _Files:
    """Files of rows. The hash of a row's key chooses the file. Each file keeps the order of
    writing."""

    def __init__(self, schema: pa.Schema, level: int) -> None:
        self._shift = level * _HASH_BITS
        self._files: list[io.IOBase] = []
        for _ in range(FILES):
            opened = tempfile.TemporaryFile(dir=_folder())  # noqa: SIM115
            self._files.append(cast("io.IOBase", opened))
        self._writers = [pa.ipc.new_stream(file, schema) for file in self._files]

    def close(self) -> None:
        for file in self._files:
            file.close()

    def write(self, table: pa.Table) -> None:
        # Python's hash of bytes is constant within a process, and no file outlives the process.
        hashes = np.fromiter(map(hash, table.column("key").to_pylist()), np.int64, table.num_rows)
        numbers = (hashes >> self._shift) & (FILES - 1)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=FILES))
        sorted_rows = table.take(order)
        start = 0
        for writer, end in zip(self._writers, ends.tolist(), strict=True):
            if end > start:
                writer.write_table(sorted_rows.slice(start, end - start), BATCH_ROWS)
            start = end

    def read(self) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the rows of each file in batches. Each file is closed before the next one is
        read."""
        for writer, file in zip(self._writers, self._files, strict=True):
            writer.close()
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                yield iter(reader)
            file.close()


def _folder() -> str | None:
    """Return the first folder of SPARK_LOCAL_DIRS that exists. Return None if no folder exists: the
    caller then uses the machine's temporary folder."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((folder for folder in folders if folder and Path(folder).is_dir()), None)
