"""The builder of record batches, for producers and for the broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pybroker.ports import Buffer
from pybroker.records.batch import (
    BATCH_LENGTH_MIN,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    seal,
)
from pybroker.records.compression import Codec, compress
from pybroker.records.record_buffer import RecordBuffer

_UNLIMITED: Final = 2**62
_RECORD_OVERHEAD_MAX: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
"""The maximum number of bytes that a record's length, attributes, timestamp delta, offset delta,
key length, value length and header count take together."""
_HEADER_OVERHEAD_MAX: Final = 5 + 5
_UTF8_BYTES_MAX: Final = 4


class BatchBuilder:
    """A builder of one batch. `build` keeps the records, so `build` can be called again with
    another sequence number."""

    def __init__(self, codec: Codec = Codec.NONE) -> None:
        self._codec = codec
        self._records = RecordBuffer()

    @property
    def record_count(self) -> int:
        return self._records.count

    @property
    def estimated_size(self) -> int:
        """The size in bytes of the batch before compression."""
        return HEADER_SIZE + self._records.size

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
    ) -> None:
        """Add a record. `timestamp` is in ms since 1970, -1 for none. Raises the errors of
        `RecordBuffer.append`; the batch is then unchanged."""
        self._records.append(timestamp, key, value, headers, _UNLIMITED)

    def build(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
    ) -> bytes:
        """Return the encoded batch, with base offset 0 as Kafka requires of producers. Raises
        ValueError if the batch has no records."""
        records = self._records
        if not records.count:
            raise ValueError("the batch has no records: call append() before build()")
        return pack_batch(
            compress(self._codec, records.encoded()),
            records.count,
            attributes=self._codec | (TRANSACTIONAL_FLAG if transactional else 0),
            base_timestamp=records.base_timestamp,
            max_timestamp=records.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


def record_size_max(
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]] = (),
) -> int:
    """Return an upper limit (bytes) for the size of a record with this key, value and headers,
    before compression."""
    size = _RECORD_OVERHEAD_MAX + len(key or b"") + len(value or b"")
    for name, header_value in headers:
        size += _HEADER_OVERHEAD_MAX + _UTF8_BYTES_MAX * len(name) + len(header_value or b"")
    return size


def pack_batch(
    payload: bytes,
    record_count: int,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """Return an encoded batch with its checksum. `payload` has the encoded records, compressed with
    the codec in `attributes`."""
    header = BatchHeader(
        base_offset=0,
        batch_length=BATCH_LENGTH_MIN + len(payload),
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=record_count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    batch = bytearray(HEADER.pack(*header))
    batch += payload
    seal(batch, 0, len(batch))
    return bytes(batch)
