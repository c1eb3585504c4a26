"""The header of a record batch (magic 2, KIP-98). Layout, big-endian; a batch has `12 +
batch_length` bytes:

    0 base_offset i64            21 attributes i16             43 producer_id i64
    8 batch_length i32           23 last_offset_delta i32      51 producer_epoch i16
    12 leader_epoch i32          27 base_timestamp i64         53 base_sequence i32
    16 magic i8                  35 max_timestamp i64          57 record_count i32
    17 crc u32 over 21..end                                    61 records
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer
from pybroker.records.crc32c import checksum

HEADER_SIZE: Final = 61
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
LOG_OVERHEAD: Final = 12
"""The number of bytes up to the end of the `batch_length` field. `batch_length` does not count
them."""
BATCH_LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC: Final = 2
MAGIC_POSITION: Final = 16
"""The position of the magic byte, which is the same in all message formats."""

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_MAX: Final = 2**31 - 1

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

_LEADER_EPOCH_POSITION: Final = 12
_CRC_POSITION: Final = 17
CHECKED_POSITION: Final = 21
"""The start of the bytes that the checksum covers."""
_MAX_TIMESTAMP_POSITION: Final = 35
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_UINT32: Final = struct.Struct(">I")
_INT64: Final = struct.Struct(">q")


class TimestampType(enum.IntEnum):
    """The source of the records' timestamps (KIP-32): the producer, or the leader's clock at the
    time of the append."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class BatchHeader(NamedTuple):
    """The header of a record batch. Leader epoch, producer id, producer epoch, base sequence and
    timestamps (ms since 1970) are -1 if not set."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes, header included."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of the last record that the producer put into the batch; compaction may have
        removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The number of the compression codec: a `compression.Codec`, or an unassigned number (5 to
        7)."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch (a transaction marker), which consumers skip."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which tombstones may be removed (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)

    @property
    def uses_log_append_time(self) -> bool:
        """Whether all records have the timestamp `max_timestamp`, which the leader set at the
        append."""
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def timestamp_type(self) -> TimestampType:
        return (
            TimestampType.LOG_APPEND_TIME
            if self.attributes & LOG_APPEND_TIME_FLAG
            else TimestampType.CREATE_TIME
        )

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record of the batch, -1 without an idempotent producer.
        Sequence numbers wrap from 2^31 - 1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch, possibly incomplete, at `position`. Raises CorruptionError if
    fewer than 61 bytes are left, the magic is not 2, or `batch_length` is below 49."""
    if len(data) - position < HEADER_SIZE:
        raise CorruptionError(
            f"batch header at position {position}: {len(data) - position} bytes are left,"
            f" expected {HEADER_SIZE}"
        )
    header = BatchHeader._make(HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptionError(
            f"batch header at position {position}: magic is {header.magic}, expected {MAGIC}"
        )
    if header.batch_length < BATCH_LENGTH_MIN:
        raise CorruptionError(
            f"batch header at position {position}: batch length is {header.batch_length},"
            f" expected at least {BATCH_LENGTH_MIN}"
        )
    return header


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and the header of each whole batch in `data`. Checksums are not checked.
    Raises the errors of `read_header`."""
    position = 0
    end = len(data)
    while end - position >= HEADER_SIZE:
        header = read_header(data, position)
        if header.size > end - position:
            return
        yield position, header
        position += header.size


def crc_matches(data: Buffer, position: int, size: int) -> bool:
    """Return whether `data` has at `position` a batch of `size` bytes with a correct checksum.
    False if `data` ends before the end of the batch."""
    if size < HEADER_SIZE or len(data) - position < size:
        return False
    stored: int = _UINT32.unpack_from(data, position + _CRC_POSITION)[0]
    return checksum(memoryview(data)[position + CHECKED_POSITION : position + size]) == stored


def stamp(data: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of the batch at `position`, in place. The checksum
    does not cover these fields."""
    _INT64.pack_into(data, position, base_offset)
    _INT32.pack_into(data, position + _LEADER_EPOCH_POSITION, leader_epoch)


def restamp_log_append_time(
    data: bytearray | memoryview, position: int, size: int, timestamp_ms: int
) -> BatchHeader:
    """Give the batch the timestamp type LogAppendTime (KIP-32) with `timestamp_ms`, and return the
    new header. Only the batch header in `data` changes."""
    (attributes,) = _INT16.unpack_from(data, position + CHECKED_POSITION)
    _INT16.pack_into(data, position + CHECKED_POSITION, attributes | LOG_APPEND_TIME_FLAG)
    _INT64.pack_into(data, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    seal(data, position, size)
    return read_header(data, position)


def seal(data: bytearray | memoryview, position: int, size: int) -> None:
    """Compute the checksum of the batch of `size` bytes at `position`, and write it into the batch
    header. All other fields must be written before."""
    with memoryview(data) as view:
        value = checksum(view[position + CHECKED_POSITION : position + size])
    _UINT32.pack_into(data, position + _CRC_POSITION, value)
