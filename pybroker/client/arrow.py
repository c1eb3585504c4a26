"""Records as Arrow record batches, with the columns of Spark's Kafka source. pyarrow is optional
(extra `arrow`), and imported only when a function is called."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pybroker.ports import Buffer
from pybroker.records.columns import BinaryColumn, Columns, HeaderColumns
from pybroker.records.record_buffer import ArrowColumn

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch, Schema

__all__ = ["RecordBatch", "arrow_schema", "keys_and_values", "record_batch"]

_INT32_BYTES: Final = 4


def arrow_schema(*, headers: bool = False) -> Schema:
    """Return the schema of `record_batch`: the columns of Spark's Kafka source. `timestamp` is in
    microseconds (UTC). `timestampType` is 0 (CreateTime) or 1 (LogAppendTime). Raises ImportError
    without pyarrow."""
    found: Schema = _pyarrow().schema(
        [(name, kind) for name, kind in _types().items() if headers or name != "headers"]
    )
    return found


def record_batch(
    topic: str, partition: int, columns: Columns, names: Sequence[str] | None = None
) -> RecordBatch:
    """Return the records of one partition as an Arrow record batch. Keys, values and headers are
    not copied. `names` selects and orders the columns (None: all in `columns`). Raises ValueError
    for a name that `columns` lacks. Raises ImportError if pyarrow is missing."""
    built = {
        "key": columns.keys,
        "value": columns.values,
        "topic": topic,
        "partition": partition,
        "offset": columns.offsets,
        "timestamp": columns.timestamps,
        "timestampType": columns.timestamp_types,
        "headers": columns.headers,
    }
    if names is None:
        names = [name for name, found in built.items() if found is not None]
    for name in names:
        if name not in built:
            raise ValueError(f"column {name!r} is unknown, expected one of {', '.join(built)}")
        if built[name] is None:
            raise ValueError(
                f"column {name!r} was not built: pass it to the ColumnBuilder when you "
                "create the builder"
            )
    types = {name: _types()[name] for name in names}
    arrow = _pyarrow()
    batch: RecordBatch = arrow.RecordBatch.from_arrays(
        [_array(kind, columns.rows, built[name]) for name, kind in types.items()],
        schema=arrow.schema(list(types.items())),
    )
    return batch


def keys_and_values(batch: RecordBatch) -> tuple[ArrowColumn | None, ArrowColumn]:
    """Return the columns "key" (None if missing) and "value", without a copy. Raises ValueError if
    "value" is missing, if the batch has more columns, or if a column is neither binary nor text."""
    names = batch.schema.names
    extra = sorted(set(names) - {"key", "value"})
    if "value" not in names or extra:
        raise ValueError(
            f"the record batch has the columns {names}, expected ['value'] or ['key', 'value']:"
            " use select([...]) on the record batch to choose columns"
        )
    keys = _column_of(batch, "key") if "key" in names else None
    return keys, _column_of(batch, "value")


def _column_of(batch: RecordBatch, name: str) -> ArrowColumn:
    column: Any = batch.column(name)
    offset_bytes = _offset_bytes().get(column.type)
    if offset_bytes is None:
        raise ValueError(f"the column {name} has the type {column.type}, expected binary or string")
    validity, offsets, data = column.buffers()
    if not column.null_count:
        validity = None
    return ArrowColumn(len(column), offsets, data, validity, column.offset, offset_bytes)


@functools.cache
def _offset_bytes() -> dict[DataType, int]:
    """Return the Arrow types allowed for keys and values, each with the size in bytes of an entry
    in Arrow's buffer of value offsets."""
    arrow = _pyarrow()
    return {
        arrow.binary(): 4, arrow.string(): 4, arrow.large_binary(): 8, arrow.large_string(): 8,
    }  # fmt: skip


@functools.cache
def _pyarrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError(
            "records as Arrow columns need the package pyarrow: pip install 'pybroker[arrow]'"
        ) from error


@functools.cache
def _types() -> dict[str, DataType]:
    arrow = _pyarrow()
    header = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    return {
        "key": arrow.binary(),
        "value": arrow.binary(),
        "topic": arrow.string(),
        "partition": arrow.int32(),
        "offset": arrow.int64(),
        "timestamp": arrow.timestamp("us", "UTC"),
        "timestampType": arrow.int32(),
        # Spark checks the name of the list's field, too.
        "headers": arrow.list_(arrow.field("element", header)),
    }


def _array(kind: DataType, rows: int, found: object) -> Any:
    arrow = _pyarrow()
    if isinstance(found, BinaryColumn):
        return _binary(kind, rows, found)
    if isinstance(found, HeaderColumns):
        return _headers(kind, rows, found)
    if isinstance(found, (str, int)):
        return arrow.repeat(arrow.scalar(found, kind), rows)
    return arrow.Array.from_buffers(kind, rows, [None, arrow.py_buffer(found)])


def _binary(kind: DataType, entries: int, column: BinaryColumn) -> Any:
    arrow = _pyarrow()
    buffers = [_bitmap(column.validity), *map(arrow.py_buffer, (column.offsets, column.data))]
    return arrow.Array.from_buffers(kind, entries, buffers, column.nulls)


def _headers(kind: Any, rows: int, headers: HeaderColumns) -> Any:
    arrow = _pyarrow()
    header = kind.value_type
    entries = len(headers.names.offsets) // _INT32_BYTES - 1
    fields = [
        _binary(header.field(0).type, entries, headers.names),
        _binary(header.field(1).type, entries, headers.values),
    ]
    return arrow.Array.from_buffers(
        kind,
        rows,
        [_bitmap(headers.validity), arrow.py_buffer(headers.offsets)],
        headers.nulls,
        children=[arrow.Array.from_buffers(header, entries, [None], 0, children=fields)],
    )


def _bitmap(validity: Buffer | None) -> Any:
    return None if validity is None else _pyarrow().py_buffer(validity)
