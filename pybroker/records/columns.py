"""Records as columns in Apache Arrow's memory layout, without a Python object for each record.
Numbers are little-endian; a validity bitmap begins with the least significant bit."""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple, Protocol

from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader, TimestampType
from pybroker.records.record import encoded_records

INT32_MAX: Final = 2**31 - 1
NAME_GROWTH: Final = 3
"""The maximum growth of a header name: each invalid byte becomes U+FFFD, which has three bytes."""
ENCODED_BYTES_MAX: Final = INT32_MAX // NAME_GROWTH
"""The maximum size of a batch's records, because Arrow's offsets have 32 bits."""

_IMPLEMENTATIONS: Final[tuple[str, ...]] = (
    "pybroker.records._speedups",
    "pybroker.records._numpy_columns",
)
_CREATED: Final = int(TimestampType.CREATE_TIME)
_APPENDED: Final = int(TimestampType.LOG_APPEND_TIME)


class BinaryColumn(NamedTuple):
    """A column of byte strings. Entry i is `data[offsets[i]:offsets[i + 1]]`, or null if bit i of
    `validity` is 0. `validity` is None if the column has no nulls."""

    offsets: Buffer
    """int32; the number of offsets is the number of entries plus one."""
    data: Buffer
    validity: Buffer | None
    nulls: int


class HeaderColumns(NamedTuple):
    """The headers of all rows: row i has the entries `offsets[i]` to `offsets[i + 1]` (exclusive)
    of `names` and `values`. A row without headers is null in `validity`."""

    offsets: Buffer
    """int32; the number of offsets is the number of rows plus one."""
    validity: Buffer | None
    nulls: int
    names: BinaryColumn
    """Header names in UTF-8, without nulls."""
    values: BinaryColumn


class Columns(NamedTuple):
    """The records of one or more batches as columns. Each record is one row; rows are in the order
    in which batches were added."""

    rows: int
    offsets: Buffer
    """int64, the offset of each record."""
    timestamps: Buffer
    """int64, microseconds since 1970, -1000 if the record has no timestamp. A timestamp after the
    year 294246 does not fit and becomes the last whole millisecond that fits."""
    timestamp_types: Buffer
    """int32, a `TimestampType`."""
    keys: BinaryColumn | None
    """None if the caller did not ask for keys. The same holds for `values` and `headers`."""
    values: BinaryColumn | None
    headers: HeaderColumns | None


_Binary = tuple[Buffer, Buffer, Buffer | None, int]
_Headers = tuple[Buffer, Buffer | None, int, _Binary, _Binary]
Stored = tuple[int, Buffer, Buffer, Buffer, _Binary | None, _Binary | None, _Headers | None]
"""The fields of `Columns` as plain tuples, as `Store.finish` returns them."""


class Store(Protocol):
    """Columns to which batches are added one by one: the interface of the compiled and the NumPy
    implementation."""

    def __init__(self, *, headers: bool, keys: bool, values: bool) -> None: ...

    @property
    def rows(self) -> int: ...

    @property
    def size(self) -> int:
        """The number of bytes in all binary columns."""

    @property
    def weight(self) -> int:
        """The sum of three numbers: the rows, the entries of all binary columns (including nulls),
        and the bytes in these columns. The caller must keep the weight below 2**31: Arrow's
        offsets, which never exceed the weight, have 32 bits."""

    def add(
        self,
        payload: Buffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        timestamp_type: int,
        first_delta: int,
        end_delta: int,
    ) -> int:
        """Add the records in `payload` with offset deltas in [first_delta, end_delta), and return
        their number. The other arguments and the errors are those of `_pure.read_records`. An error
        leaves the columns unchanged."""

    def finish(self) -> Stored:
        """Return the columns with the records added since the last call, and start again with empty
        columns."""


class ColumnBuilder:
    """A builder of columns from the records of many batches. One thread at a time may use it. The
    compiled implementation releases the GIL while it decodes."""

    def __init__(self, *, headers: bool = False, keys: bool = True, values: bool = True) -> None:
        """`headers`, `keys` and `values` select the columns to store. Raises ImportError if neither
        the compiled module nor NumPy is installed."""
        self._store = _store_type()(headers=headers, keys=keys, values=values)
        self.has_headers: Final = headers

    @property
    def rows(self) -> int:
        return self._store.rows

    @property
    def size(self) -> int:
        """The number of bytes of all keys, values, header names and header values in the
        builder."""
        return self._store.size

    def add(
        self,
        batch: Buffer,
        header: BatchHeader,
        first_offset: int,
        end_offset: int,
        *,
        decompressed_bytes_max: int,
    ) -> int:
        """Add those records of a batch whose offsets are in [first_offset, end_offset), and return
        their number. `batch` may contain more bytes after the encoded batch.

        The caller must check the checksum, and skip control batches and aborted batches. Raises the
        errors of `decode_records`. Raises ValueError if the columns could exceed 2 GiB: call
        `finish` first. An error leaves the builder unchanged.
        """
        payload = encoded_records(batch, header, min(decompressed_bytes_max, ENCODED_BYTES_MAX))
        return self.add_encoded(payload, header, first_offset, end_offset)

    def add_encoded(
        self, payload: Buffer, header: BatchHeader, first_offset: int, end_offset: int
    ) -> int:
        """Add records as `add` does. `payload` has the decompressed, still encoded records of the
        batch. Raises the errors of `add`."""
        if self._store.weight + NAME_GROWTH * len(payload) > INT32_MAX:
            raise ValueError(
                f"the builder has {self.size} bytes in {self.rows} rows, and could exceed"
                f" 2 GiB with the {len(payload)} bytes of records in this batch: call finish()"
                " before add()"
            )
        is_appended = header.uses_log_append_time
        return self._store.add(
            payload,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp if is_appended else None,
            _APPENDED if is_appended else _CREATED,
            _delta(first_offset, header),
            _delta(end_offset, header),
        )

    def finish(self) -> Columns:
        """Return the columns with the records added since the last call of `finish`, and empty the
        builder."""
        rows, offsets, timestamps, types, keys, values, headers = self._store.finish()
        return Columns(
            rows,
            offsets,
            timestamps,
            types,
            None if keys is None else BinaryColumn(*keys),
            None if values is None else BinaryColumn(*values),
            None if headers is None else _header_columns(headers),
        )


def _store_type() -> type[Store]:
    for name in _IMPLEMENTATIONS:
        try:
            found: type[Store] = importlib.import_module(name).ColumnStore
        except (ImportError, AttributeError):
            continue  # AttributeError: an older build of `_speedups`, without columns
        return found
    raise ImportError(
        "decoding records as columns needs the compiled module pybroker.records._speedups or NumPy,"
        " and neither is installed: pip install 'pybroker[arrow]'"
    )


def _header_columns(stored: _Headers) -> HeaderColumns:
    offsets, validity, nulls, names, values = stored
    return HeaderColumns(offsets, validity, nulls, BinaryColumn(*names), BinaryColumn(*values))


def _delta(offset: int, header: BatchHeader) -> int:
    return max(-1, min(offset - header.base_offset, 2**31))
