"""The compaction of one batch: removes records from the batch, and sets its delete horizon
(KIP-534)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pybroker.ports import Buffer
from pybroker.records._pure import Slice, iter_slices, put_varint
from pybroker.records.batch import (
    BATCH_LENGTH_MIN,
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER,
    BatchHeader,
    seal,
)
from pybroker.records.compression import Codec, compress
from pybroker.records.record import records_payload
from pybroker.storage.lookup import DECOMPRESSED_BYTES_MAX

NO_HORIZON: Final = -1


class Batch(NamedTuple):
    """A batch with its header."""

    data: Buffer
    header: BatchHeader


class Fate(NamedTuple):
    """The decision about a batch, made before its records are read.

    - `drops_records`: remove all records of the batch, because their transaction was aborted or
      because the batch is a marker that is no longer needed.
    - `keeps_header`: retain the header even if no record is left, because it has the last sequence
      number of the producer.
    - `begins_horizon`: the batch is the marker of a transaction that has no batches left. The batch
      gets a delete horizon (a time), and the first pass after that time removes the batch.
    """

    drops_records: bool = False
    keeps_header: bool = False
    begins_horizon: bool = False


def remains(batch: Batch, fate: Fate, keeps: Callable[[Slice], bool], horizon: int) -> Batch | None:
    """Return the batch with its retained records, or None if neither a record nor the header is
    retained. If the batch does not change, return the same object. `keeps` returns for each record
    whether to retain it; it is not called for a marker. A retained batch gets the delete `horizon`
    (ms since 1970) if it has none yet, and if it has a retained tombstone or
    `fate.begins_horizon` is True.

    Raises the errors of `records_payload`."""
    header = batch.header
    if fate.drops_records or not header.record_count:
        return _without_records(batch) if fate.keeps_header else None
    payload = records_payload(batch.data, header, DECOMPRESSED_BYTES_MAX)
    records = list(iter_slices(payload, header.record_count))
    kept = records if header.is_control else [each for each in records if keeps(each)]
    if not kept:
        return _without_records(batch) if fate.keeps_header else None
    has_tombstone = not header.is_control and any(not each.has_value for each in kept)
    begins_horizon = fate.begins_horizon or has_tombstone
    if not begins_horizon or header.has_delete_horizon:
        if len(kept) == len(records):
            return batch
        horizon = NO_HORIZON
    return _with(header, payload, kept, horizon)


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


def _with(header: BatchHeader, payload: bytes, kept: Sequence[Slice], horizon: int) -> Batch:
    """Return the batch with only the records `kept`. If `horizon` is not NO_HORIZON, also set it as
    the delete horizon. The offsets, sequences and timestamps of the records do not change."""
    if not header.uses_log_append_time:
        latest = max(header.base_timestamp + each.time_delta for each in kept)
        header = header._replace(max_timestamp=latest)
    if horizon == NO_HORIZON:
        records = b"".join(payload[each.start : each.end] for each in kept)
    else:
        shift = header.base_timestamp - horizon
        records = b"".join(_shifted(payload, each, shift) for each in kept)
        header = header._replace(
            base_timestamp=horizon, attributes=header.attributes | DELETE_HORIZON_FLAG
        )
    stored = compress(Codec(header.codec), records)
    return _sealed(
        header._replace(batch_length=BATCH_LENGTH_MIN + len(stored), record_count=len(kept)), stored
    )


def _shifted(payload: bytes, record: Slice, shift: int) -> bytes:
    """Return the encoded record with `shift` added to its timestamp delta."""
    body = bytearray(1)
    put_varint(body, record.time_delta + shift)
    body += payload[record.after_time : record.end]
    encoded = bytearray()
    put_varint(encoded, len(body))
    return bytes(encoded + body)


def _sealed(header: BatchHeader, records: bytes) -> Batch:
    data = bytearray(HEADER.pack(*header))
    data += records
    seal(data, 0, len(data))
    return Batch(data, BatchHeader._make(HEADER.unpack_from(data)))
