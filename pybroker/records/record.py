"""Records, as consumers, the log cleaner and the coordinators see them.

The broker itself moves batches without looking inside (`batch.py`). Checksums are the business of
whoever received the bytes (`batch.crc_matches`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer
from pybroker.records._pure import iter_times
from pybroker.records.batch import HEADER_SIZE, BatchHeader, TimestampType, read_header
from pybroker.records.compression import Codec, decompress
from pybroker.records.loops import read_records

Headers = tuple[tuple[str, bytes | None], ...]
"""Name and value of each header, in order; names may repeat (KIP-82)."""


class Record(NamedTuple):
    """One record. `timestamp` is in ms since 1970, -1 where the producer set none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


def decode_records(batch: Buffer, *, decompressed_bytes_max: int) -> list[Record]:
    """The records of the batch with which `batch` begins; empty where compaction left none.

    Control batches are decoded as any other (see `control.py`). Raises CorruptionError if the
    bytes contradict themselves, BrokerError MESSAGE_TOO_LARGE if the records are longer than
    `decompressed_bytes_max`, UNSUPPORTED_COMPRESSION_TYPE for codec bits without meaning.
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
    """Offset and timestamp of each record of a batch, without keeping any of them. Raises as
    `decode_records`, also while it is read."""
    header = read_header(batch)
    payload = records_payload(batch, header, decompressed_bytes_max)
    for time_delta, offset_delta in iter_times(payload, header.record_count):
        timestamp = header.base_timestamp + time_delta
        if header.uses_log_append_time:
            timestamp = header.max_timestamp
        yield header.base_offset + offset_delta, timestamp


def records_payload(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int) -> bytes:
    """The encoded records of a batch, decompressed. Raises as `decode_records`."""
    return bytes(encoded_records(batch, header, decompressed_bytes_max))


def encoded_records(batch: Buffer, header: BatchHeader, decompressed_bytes_max: int) -> Buffer:
    """As `records_payload`, but in place where nothing is compressed."""
    if len(batch) < header.size:
        raise CorruptionError(f"batch of {header.size} bytes: only {len(batch)} are there")
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    if header.codec == Codec.NONE and len(payload) <= decompressed_bytes_max:
        return payload
    if not payload and header.codec <= Codec.ZSTD:
        # A batch that compaction emptied keeps its codec bits but has no compressed block.
        return b""
    return decompress(header.codec, payload, decompressed_bytes_max)
