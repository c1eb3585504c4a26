"""Records as columns: the memory of Apache Arrow, without a Python object for each record.

For readers of many records (Spark, data frames): one call decodes a batch and copies its keys and
values once, to their place in Arrow's memory. All numbers are little-endian. In a bitmap the lowest
bit comes first, and 1 means that there is a value; without a bitmap all entries have one.

`_columns.pxi` does the work if a C compiler was found at installation, otherwise
`_numpy_columns.py`; the same tests run over both.
"""

from __future__ import annotations

import importlib
from typing import Final, NamedTuple, Protocol

from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader, TimestampType
from pybroker.records.record import encoded_records

INT32_MAX: Final = 2**31 - 1
NAME_GROWTH: Final = 3
"""The maximal growth of a header's name: each broken byte is shown as U+FFFD."""
ENCODED_BYTES_MAX: Final = INT32_MAX // NAME_GROWTH
"""The limit of a batch's records, since Arrow counts in 32 bits."""

_IMPLEMENTATIONS: Final[tuple[str, ...]] = (
    "pybroker.records._speedups",
    "pybroker.records._numpy_columns",
)
_CREATED: Final = int(TimestampType.CREATE_TIME)
_APPENDED: Final = int(TimestampType.LOG_APPEND_TIME)


class BinaryColumn(NamedTuple):
    """Entry i is `data[offsets[i]:offsets[i + 1]]`, or null if its bit in `validity` is 0."""

    offsets: Buffer
    """int32, one more than entries."""
    data: Buffer
    validity: Buffer | None
    nulls: int


class HeaderColumns(NamedTuple):
    """The headers of row i are the entries `offsets[i]` to `offsets[i + 1]` of names and values; a
    row without headers is null, as in Spark."""

    offsets: Buffer
    """int32, one more than rows."""
    validity: Buffer | None
    nulls: int
    names: BinaryColumn
    """UTF-8; none is null."""
    values: BinaryColumn


class Columns(NamedTuple):
    """Records, one row each, in the order of their offsets."""

    rows: int
    offsets: Buffer
    """int64."""
    timestamps: Buffer
    """int64, microseconds since 1970, -1000 if the producer set no time. Times that do not fit
    (after the year 294246) become the last whole millisecond that does."""
    timestamp_types: Buffer
    """int32, a `TimestampType`."""
    keys: BinaryColumn | None
    """None if not wanted, like `values` and `headers`."""
    values: BinaryColumn | None
    headers: HeaderColumns | None


_Binary = tuple[Buffer, Buffer, Buffer | None, int]
_Headers = tuple[Buffer, Buffer | None, int, _Binary, _Binary]
Stored = tuple[int, Buffer, Buffer, Buffer, _Binary | None, _Binary | None, _Headers | None]
"""`Columns`, in plain tuples."""


class Store(Protocol):
    """The interface of both implementations: columns that grow by one batch after the other."""

    def __init__(self, *, headers: bool, keys: bool, values: bool) -> None: ...

    @property
    def rows(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes in binary columns."""

    @property
    def weight(self) -> int:
        """Bytes in binary columns and entries of columns: no number in offsets is larger."""

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
        """Add the encoded records in `payload` with offset deltas from `first_delta` up to, not
        including, `end_delta`, and return their number. The other arguments and the errors are
        those of `read_records`; after an error, nothing was added."""

    def finish(self) -> Stored:
        """Return the added records, and begin again."""


class ColumnBuilder:
    """Collects the records of batches. Used by one thread at a time; the compiled form releases the
    GIL while it decodes."""

    def __init__(self, *, headers: bool = False, keys: bool = True, values: bool = True) -> None:
        """`headers`, `keys`, `values`: the wanted columns; unwanted ones are checked, but not kept.
        Raises ImportError if neither the compiled module nor NumPy is installed."""
        self._store = _store_type()(headers=headers, keys=keys, values=values)

    @property
    def rows(self) -> int:
        return self._store.rows

    @property
    def size(self) -> int:
        """Bytes of keys, values, and names and values of headers in the builder."""
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
        """Add the records of a batch with offsets from `first_offset` up to, not including,
        `end_offset`, and return their number.

        `header` is the batch's own; `batch` begins with it and may extend beyond the batch. The
        caller checks the checksum and the kind of the batch (control, aborted). Raises the errors
        of `decode_records` for any damage in the batch, even outside the range, and has then added
        nothing; ValueError if columns could grow beyond 2 GiB: call `finish` before.
        """
        payload = encoded_records(batch, header, min(decompressed_bytes_max, ENCODED_BYTES_MAX))
        if self._store.weight + NAME_GROWTH * len(payload) > INT32_MAX:
            raise ValueError(
                f"{self.size} bytes in {self.rows} rows are held, and {len(payload)} more may not"
                " fit into one set of columns: call finish() before"
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
        """Return the records added since the last call. The builder is empty again, and does not
        change these columns any more."""
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
            continue  # AttributeError: compiled before there were columns
        return found
    raise ImportError(
        "records become columns by the compiled module or by NumPy, and neither is installed:"
        " pip install 'pybroker[arrow]'"
    )


def _header_columns(stored: _Headers) -> HeaderColumns:
    offsets, validity, nulls, names, values = stored
    return HeaderColumns(offsets, validity, nulls, BinaryColumn(*names), BinaryColumn(*values))


def _delta(offset: int, header: BatchHeader) -> int:
    return max(-1, min(offset - header.base_offset, 2**31))
