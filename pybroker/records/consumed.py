"""The records that a consumer returns, and the reader that decodes the records of a batch.

`outline_batches` reads the headers of the whole batches in `data` that do not end below
`first_offset`. The result is the offset after the last batch (-1 if none), and (epoch, base offset
of the first batch) for each leader epoch.

`record_slice` returns the position after the next slice of encoded, already checked records, and
the number of records in the slice.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader, TimestampType
from pybroker.records.record import Headers

__all__ = [
    "RECORDS_PER_TURN",
    "BatchReader",
    "ConsumerRecord",
    "Reader",
    "batch_reader",
    "outline_batches",
    "record_slice",
    "reduce_record",
]

if TYPE_CHECKING:
    from pybroker.records._pure_consumed import (
        RECORDS_PER_TURN,
        BatchReader,
        ConsumerRecord,
        outline_batches,
        record_slice,
    )
else:
    try:
        from pybroker.records._speedups import (
            RECORDS_PER_TURN,
            BatchReader,
            ConsumerRecord,
            outline_batches,
            record_slice,
        )
    except ImportError:
        from pybroker.records._pure_consumed import (
            RECORDS_PER_TURN,
            BatchReader,
            ConsumerRecord,
            outline_batches,
            record_slice,
        )

K = TypeVar("K")
V = TypeVar("V")
SLICE_BYTES: Final = 65_536
"""A record whose fields were not read keeps at most this number of encoded bytes in memory, or its
own bytes if it is larger."""


class Reader(Protocol):
    """Decodes the records of one batch, slice by slice."""

    @property
    def done(self) -> bool:
        """Whether `read` has returned all records."""

    def check(self, bytes_max: int) -> bool:
        """Check the next records, about `bytes_max` encoded bytes, without returning them. Return
        whether all records of the batch are checked now. Raises the errors of `decode_records`."""

    def read(self) -> list[ConsumerRecord]:
        """Return the records of the next slice (see SLICE_BYTES), without those below
        `first_offset`. If the batch is larger than a slice, `check` must have returned True before.
        Raises the errors of `decode_records`."""


def batch_reader(
    topic: str, partition: int, header: BatchHeader, payload: Buffer, first_offset: int
) -> Reader:
    """Return a reader of the records at or above `first_offset` in a batch. `payload` has the
    decompressed, still encoded records. Raises CorruptionError for an impossible record count."""
    return BatchReader(
        topic,
        partition,
        header.leader_epoch,
        payload,
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.uses_log_append_time else None,
        header.timestamp_type,
        first_offset,
    )


def _restore(
    topic: str,
    partition: int,
    offset: int,
    timestamp: int,
    timestamp_type: TimestampType,
    key: K,
    value: V,
    headers: Headers,
    leader_epoch: int,
) -> ConsumerRecord[K, V]:
    return ConsumerRecord(
        topic, partition, offset, timestamp, timestamp_type, key, value, headers, leader_epoch
    )


def reduce_record(
    record: ConsumerRecord[Any, Any],
) -> tuple[Callable[..., Any], tuple[object, ...]]:
    """Return a function and its arguments for pickle. A call of the function returns a record that
    is equal to the given one."""
    return _restore, tuple(getattr(record, name) for name in ConsumerRecord.__match_args__)


# A pickled record names neither implementation, so that a process with the other one can load it.
copyreg.pickle(ConsumerRecord, reduce_record)
