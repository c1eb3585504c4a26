"""The compaction of one batch: removes records from the batch, and sets its delete horizon
(KIP-534)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, NamedTuple

from pybroker.compaction.offset_map import Kept, OffsetMap
from pybroker.errors import CorruptionError
from pybroker.ports import Buffer
from pybroker.records.batch import (
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER,
    BatchHeader,
    seal,
)
from pybroker.records.compression import Codec, compress
from pybroker.records.key_table import shift_times
from pybroker.records.loops import scan_records
from pybroker.records.record import encoded_records
from pybroker.storage.lookup import DECOMPRESSED_BYTES_MAX

NO_HORIZON: Final = -1
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


class Batch(NamedTuple):
    """A batch with its header."""

    data: Buffer
    header: BatchHeader


class Fate(NamedTuple):
    """The decision about a batch, before its records are read.

    - `drops_records`: the batch is aborted, or is a marker that is no longer needed.
    - `keeps_header`: the batch has the last sequence number of the producer.
    - `begins_horizon`: the batch is a marker, and the log has no other batch of the marker's
      transaction. The marker gets a delete horizon.
    """

    drops_records: bool = False
    keeps_header: bool = False
    begins_horizon: bool = False


def remains(
    batch: Batch,
    fate: Fate,
    keys: OffsetMap,
    horizon: int,
    *,
    drops_tombstones: bool,
    level: int | None = None,
) -> Generator[int, None, Batch | None]:
    """Return the batch with its retained records; None if neither a record nor the header is
    retained. Yields 0 between slices of the records.

    A batch without a delete horizon gets `horizon` (ms since 1970) if it retains a tombstone, or if
    it retains any record and `fate.begins_horizon` is true.

    Raises CorruptionError for a damaged record, and the errors of `encoded_records`.
    """
    header = batch.header
    if fate.drops_records or not header.record_count:
        return _without_records(batch) if fate.keeps_header else None
    payload = encoded_records(batch.data, header, DECOMPRESSED_BYTES_MAX)
    if header.is_control:
        *_, latest = scan_records(bytes(payload), header.record_count)
        kept = Kept(header.record_count, False, latest, payload)
    else:
        kept = yield from keys.select(payload, header, drops_tombstones=drops_tombstones)
    if not kept.number:
        return _without_records(batch) if fate.keeps_header else None
    begins_horizon = fate.begins_horizon or kept.has_tombstone
    if not begins_horizon or header.has_delete_horizon:
        if kept.number == header.record_count:
            return batch
        horizon = NO_HORIZON
    return _with(header, kept, horizon, level)


def _without_records(batch: Batch) -> Batch:
    """Return the batch without its records. A batch that has no records is returned unchanged."""
    header = batch.header
    if not header.record_count:
        return batch
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
    bare = header._replace(
        batch_length=BATCH_LENGTH_MIN,
        attributes=attributes,
        base_timestamp=header.max_timestamp,
        record_count=0,
    )
    return _sealed(bare, b"")


def _with(header: BatchHeader, kept: Kept, horizon: int, level: int | None) -> Batch:
    """Return the batch with only the records `kept`, and with the delete horizon `horizon` unless
    it is NO_HORIZON."""
    if not header.uses_log_append_time:
        latest = header.base_timestamp + kept.latest_delta
        if not _INT64_MIN <= latest <= _INT64_MAX:
            raise CorruptionError(
                f"batch at offset {header.base_offset}: timestamp {header.base_timestamp} +"
                f" {kept.latest_delta} exceeds 64 bits"
            )
        header = header._replace(max_timestamp=latest)
    records = kept.records
    if horizon != NO_HORIZON:
        shift = header.base_timestamp - horizon
        if not _INT64_MIN <= shift <= _INT64_MAX:
            raise CorruptionError(
                f"batch at offset {header.base_offset}: its base timestamp {header.base_timestamp}"
                f" differs by 2^63 ms or more from the delete horizon {horizon}"
            )
        records = shift_times(records, kept.number, shift)
        header = header._replace(
            base_timestamp=horizon, attributes=header.attributes | DELETE_HORIZON_FLAG
        )
    stored = compress(Codec(header.codec), records, level)
    return _sealed(
        header._replace(batch_length=BATCH_LENGTH_MIN + len(stored), record_count=kept.number),
        stored,
    )


def _sealed(header: BatchHeader, records: bytes) -> Batch:
    data = bytearray(HEADER.pack(*header))
    data += records
    seal(data, 0, len(data))
    return Batch(data, BatchHeader._make(HEADER.unpack_from(data)))
