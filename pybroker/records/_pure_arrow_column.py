"""The rows of a binary column in Arrow's layout, in Python.

`_arrow_column.pxi` is the same code in Cython: change both together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pybroker.ports import Buffer

_FORMATS: Final = {4: "i", 8: "q"}


class ArrowColumn:
    """The rows of a binary or text column in Arrow's layout, as bytes or None. The column begins at
    row `first` of an Arrow array with the buffers `offsets`, `data` and `validity` (None without
    nulls). `offset_bytes` is 4 or 8.

    Raises ValueError if `offsets` or `validity` is too short, or when a row with offsets outside of
    `data` is read.
    """

    def __init__(
        self,
        rows: int,
        offsets: Buffer | None,
        data: Buffer | None,
        validity: Buffer | None,
        first: int,
        offset_bytes: int,
    ) -> None:
        if rows < 0 or first < 0 or offset_bytes not in _FORMATS:
            raise ValueError(
                f"the column has rows={rows}, first={first} and offset_bytes={offset_bytes},"
                " expected rows and first to be 0 or more, and offset_bytes to be 4 or 8"
            )
        self._rows = rows
        self._first = first
        self._data = memoryview(b"" if data is None else data).cast("B")
        self._validity = None if validity is None else memoryview(validity).cast("B")
        if rows == 0:
            return
        assert offsets is not None
        size = memoryview(offsets).nbytes
        if size // offset_bytes - 1 - first < rows:
            raise ValueError(
                f"the column has {size} bytes of offsets, too few for {rows} rows from row {first}"
                " on"
            )
        used = memoryview(offsets).cast("B")[: (first + rows + 1) * offset_bytes]
        self._offsets = used.cast(_FORMATS[offset_bytes])  # type: ignore[call-overload]
        if self._validity is not None and len(self._validity) * 8 - first < rows:
            raise ValueError(
                f"the column has {len(self._validity)} bytes of validity bits, too few for"
                f" {rows} rows from row {first} on"
            )

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> bytes | None:
        if not 0 <= index < self._rows:
            raise IndexError(f"there is no row {index}: the column has {self._rows} rows")
        at = self._first + index
        if self._validity is not None and not self._validity[at >> 3] >> (at & 7) & 1:
            return None
        start, end = self._offsets[at], self._offsets[at + 1]
        if not 0 <= start <= end <= len(self._data):
            raise ValueError(
                f"row {index} of the column has the offsets {start} and {end}, expected"
                f" ascending offsets from 0 to {len(self._data)}"
            )
        return bytes(self._data[start:end])

    def __iter__(self) -> Iterator[bytes | None]:
        return iter([self[index] for index in range(self._rows)])
