"""The choice of the implementation that encodes records for producers: the compiled one if it
exists, otherwise `_pure_record_buffer.py` and `_pure_arrow_column.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pybroker.records._pure_record_buffer import to_bytes

__all__ = [
    "ArrowColumn",
    "ByteColumn",
    "RecordBuffer",
    "append_records",
    "partition_of_key",
    "record_bytes",
    "to_bytes",
]

if TYPE_CHECKING:
    from pybroker.records._pure_arrow_column import ArrowColumn
    from pybroker.records._pure_record_buffer import (
        RecordBuffer,
        append_records,
        partition_of_key,
        record_bytes,
    )
else:
    try:
        from pybroker.records._speedups import (
            ArrowColumn,
            RecordBuffer,
            append_records,
            partition_of_key,
            record_bytes,
        )
    except ImportError:
        from pybroker.records._pure_arrow_column import ArrowColumn
        from pybroker.records._pure_record_buffer import (
            RecordBuffer,
            append_records,
            partition_of_key,
            record_bytes,
        )

ByteColumn = list[bytes | None] | ArrowColumn
"""The keys or the values of many records."""
