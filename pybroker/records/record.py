"""Decoding of the records in a batch. Callers check the checksum first (`batch.crc_matches`)."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import NamedTuple

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer
from pybroker.records._pure import iter_times
from pybroker.records.batch import HEADER_SIZE, BatchHeader, TimestampType, read_header
from pybroker.records.compression import Codec, decompress, decompress_steps
from pybroker.records.loops import read_records

Headers = tuple[tuple[str, bytes | None], ...]
"""The name and the value of each header, in order. A name may occur several times (KIP-82)."""


class Record(NamedTuple):
    """A decoded record. `timestamp` is in ms since 1970, -1 if the producer set none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


def decode_records(batch: Buffer, *, decompressed_bytes_max: int) -> list[Record]:
    """Return the records of the first batch in `batch`, even if it is a control batch. The list is
    empty if compaction removed all records.

    Raises CorruptionError for a damaged batch. Raises BrokerError MESSAGE_TOO_LARGE for more than
    `decompressed_bytes_max` bytes, or UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    header = read_header(batch)
    return read_records(
        records_payload(batch, header, decompressed_bytes_max),
        header.record_count,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.uses_log_append_time else None,
        header.timestamp_type,
        Record,
    )


def record_times(batch: Buffer, *, decompressed_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield the offset and the timestamp of each record in a batch. Raises the errors of
    `decode_records`, also during the iteration."""
    header = read_header(batch)
    payload = records_payload(batch, header, decompressed_bytes_max)
    for time_delta, offset_delta in iter_times(payload, header.record_count):
        timestamp = header.base_timestamp + time_delta
        if header.uses_log_append_time:
            timestamp = header.max_timestamp
        yield header.base_offset + offset_delta, timestamp


def records_payload(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int) -> bytes:
    """Return the records of a batch, still encoded but decompressed, as a copy. Raises the errors
    of `decode_records`."""
    return bytes(encoded_records(batch, header, decompressed_bytes_max))


def encoded_records(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int) -> Buffer:
    """Return the records of a batch, still encoded but decompressed. Without compression the result
    is a slice of `batch`, not a copy. Raises the errors of `decode_records`."""
    payload = _stored_records(batch, header)
    if _is_plain(payload, header, decompressed_bytes_max):
        return payload
    return decompress(header.codec, payload, decompressed_bytes_max)


def encoded_records_steps(
    batch: Buffer, header: BatchHeader, decompressed_bytes_max: int
) -> Generator[int, None, Buffer]:
    """Return the result of `encoded_records`, in steps like those of `decompress_steps`. Raises the
    errors of `decode_records`."""
    payload = _stored_records(batch, header)
    if _is_plain(payload, header, decompressed_bytes_max):
        return payload
    return (yield from decompress_steps(header.codec, payload, decompressed_bytes_max))


def _stored_records(batch: Buffer, header: BatchHeader) -> memoryview:
    if len(batch) < header.size:
        raise CorruptionError(
            f"batch of {header.size} bytes at offset {header.base_offset}: the data ends after"
            f" {len(batch)} bytes"
        )
    return memoryview(batch)[HEADER_SIZE : header.size]


def _is_plain(payload: memoryview, header: BatchHeader, decompressed_bytes_max: int) -> bool:
    """Return whether `payload` can be decoded as it is: it is empty after compaction, or it is
    uncompressed and has at most `decompressed_bytes_max` bytes."""
    codec = header.codec
    if codec == Codec.NONE:
        return len(payload) <= decompressed_bytes_max
    return not payload and codec <= Codec.ZSTD
