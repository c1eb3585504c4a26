"""Compaction of batches in a fake log."""

from __future__ import annotations

from collections.abc import Callable

from pybroker.records.batch import BATCH_LENGTH_MIN, CODEC_MASK, HEADER, read_header, seal
from pybroker.records.compression import Codec, compress
from pybroker.records.record import decode_records
from unit_tests.client.fake_broker import Partition
from unit_tests.records.vocabulary import record_bytes


def compacted(batch: bytes, keeps: Callable[[int], bool], codec: Codec = Codec.NONE) -> bytes:
    """Return the batch with only the records (without headers) whose offsets are kept. It keeps its
    first and last offset, even if it is empty."""
    header = read_header(batch)
    payload, count = b"", 0
    for record in decode_records(batch, decompressed_bytes_max=1 << 24):
        if keeps(record.offset):
            key, value = record.key or b"", record.value or b""
            time_delta = record.timestamp - header.base_timestamp
            delta = record.offset - header.base_offset
            payload += record_bytes(time_delta, delta, len(key), key, len(value), value, 0)
            count += 1
    if payload and codec != Codec.NONE:
        payload = bytes(compress(codec, payload))
    attributes = header.attributes & ~CODEC_MASK | codec
    length = BATCH_LENGTH_MIN + len(payload)
    kept = header._replace(record_count=count, attributes=attributes, batch_length=length)
    found = bytearray(HEADER.pack(*kept) + payload)
    seal(found, 0, len(found))
    return bytes(found)


def compact(log: Partition, keeps: Callable[[int], bool]) -> None:
    """Compact all batches of a log, and remove the empty ones."""
    left = [compacted(batch, keeps) for batch in log.batches]
    log.batches = [batch for batch in left if read_header(batch).record_count]
