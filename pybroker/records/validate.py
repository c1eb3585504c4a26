"""The checks of a leader before it appends a producer's batch. Records are decoded only for a
compacted topic, for a limit `message.timestamp.before.max.ms`, or if the topic's compression codec
differs from the batch's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.model import NO_TIMESTAMP
from pybroker.ports import Buffer
from pybroker.records.batch import (
    BATCH_LENGTH_MIN,
    CHECKED_POSITION,
    CODEC_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    TimestampType,
    crc_matches,
    seal,
)
from pybroker.records.compression import Codec, compress
from pybroker.records.crc32c import checksum
from pybroker.records.loops import scan_records
from pybroker.records.record import records_payload
from pybroker.records.refusals import Expected, RecordsRefused, Times, name_records

NO_TIMESTAMP_LIMIT: Final = 2**63 - 1
"""The default of `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`, as in
Kafka: no limit."""

_CODEC_POSITION: Final = 22
"""The position of the low byte of a batch's attributes, which has the codec bits."""
_BATCH_API_VERSION_MIN: Final = 3
"""The first version of Produce that allows record batches of magic 2 only (KIP-98)."""
_ZSTD_API_VERSION_MIN: Final = 7
"""The first version of Produce that allows batches compressed with zstd (KIP-110)."""
_RECORD_BYTES_MIN: Final = 7
"""The size in bytes of the smallest record, without key, value and headers: seven fields of one
byte each."""
_DECOMPRESSED_RATIO_MAX: Final = 64
_DECOMPRESSED_BYTES_MIN: Final = 32 * 1024 * 1024
"""A batch's decompressed size is limited to this number of bytes, or to `_DECOMPRESSED_RATIO_MAX`
times `max.message.bytes` if that is larger."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """The conditions that a produced batch must meet. They depend on the topic's configuration and
    the version of the Produce request."""

    max_message_bytes: int
    """The maximum size of a batch (`max.message.bytes`)."""
    segment_bytes: int
    compacted: bool = False
    """Whether the topic is compacted, so that every record needs a key."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = NO_TIMESTAMP_LIMIT
    """The maximum age of a record in ms (`message.timestamp.before.max.ms`, KIP-937)."""
    timestamp_after_max_ms: int = NO_TIMESTAMP_LIMIT
    """The maximum time in ms by which a record's timestamp may be ahead of the broker's clock
    (`message.timestamp.after.max.ms`)."""
    stored_codec: Codec | None = None
    """The codec with which the leader stores batches (`compression.type`); None keeps the
    producer's codec."""
    stored_level: int | None = None
    """The compression level of `stored_codec`; None is the codec's default level."""
    api_version: int = 9
    """The version of the Produce request."""
    partition: str = ""
    """The name of the partition, for messages to the producer."""
    _bytes_max: int = field(init=False, repr=False, compare=False)
    _ahead_max_ms: int = field(init=False, repr=False, compare=False)
    _codec_max: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the limits that `validate_quickly` needs for every batch."""
        creates = self.timestamp_type is TimestampType.CREATE_TIME
        walks = self.compacted or _limits_age(self)
        zstd = self.api_version >= _ZSTD_API_VERSION_MIN
        codec_max = Codec.ZSTD if zstd else Codec.LZ4
        looks_again = walks or self.stored_codec is not None
        bytes_max = -1 if looks_again else min(self.max_message_bytes, self.segment_bytes)
        ahead_max_ms = self.timestamp_after_max_ms if creates else NO_TIMESTAMP_LIMIT
        object.__setattr__(self, "_bytes_max", bytes_max)
        object.__setattr__(self, "_ahead_max_ms", ahead_max_ms)
        object.__setattr__(self, "_codec_max", int(codec_max))


def validate_produced(data: Buffer | None, rules: BatchRules, now_ms: int) -> BatchHeader:
    """Check `data`, the batch in a Produce request for one partition, and return the batch header.

    Raises BrokerError with Kafka's code: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE,
    INVALID_TIMESTAMP, UNSUPPORTED_FOR_MESSAGE_FORMAT, UNSUPPORTED_COMPRESSION_TYPE or
    INVALID_RECORD. If a record is refused, the error is a RecordsRefused with empty `records`. To
    get an error that lists the refused records, call `stored_form`.
    """
    if data is None or not len(data):
        raise _invalid("the request has no records for the partition, expected one batch")
    accepted = validate_quickly(data, rules, now_ms)
    if accepted is not None:
        return accepted
    header = _read_one_batch(data, rules)
    _check_size(header, rules)
    if not crc_matches(data, 0, header.size):
        raise BrokerError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the checksum {header.crc:#010x} in the batch header does not match the batch",
        )
    _check_codec(header, rules.api_version)
    _check_offsets(header, rules)
    _check_producer(header)
    _check_times(header, rules, now_ms)
    if rules.compacted or _limits_age(rules):
        _check_records(data, header, rules, now_ms)
    return header


def validate_quickly(data: Buffer, rules: BatchRules, now_ms: int) -> BatchHeader | None:
    """Check a batch quickly, by one combined condition. Return the header if the batch is certainly
    valid. Otherwise return None: the batch needs the separate checks of `validate_produced`."""
    size = len(data)
    if not HEADER_SIZE <= size <= rules._bytes_max:
        return None
    fields = HEADER.unpack_from(data)
    base, length, _, magic, crc, attributes, delta, _, latest, producer, epoch, sequence, count = (
        fields
    )
    codec = attributes & ~TRANSACTIONAL_FLAG  # all other flags make the value too large
    if (
        magic != MAGIC
        or length != size - LOG_OVERHEAD
        or base
        or not 0 <= codec <= rules._codec_max
        or delta != count - 1
        or delta < 0
        or (epoch < 0 or sequence < 0 if producer > NO_PRODUCER_ID else attributes != codec)
        or latest - now_ms > rules._ahead_max_ms
        or count * _RECORD_BYTES_MIN
        > (_decompressed_bytes_max(rules) if codec else size - HEADER_SIZE)
        or checksum(memoryview(data)[CHECKED_POSITION:]) != crc
    ):
        return None
    return tuple.__new__(BatchHeader, fields)


def has_to_decompress(data: Buffer, rules: BatchRules) -> bool:
    """Return whether `stored_form` has to change the codec of the batch in `data`, or to decompress
    the batch for a check of its records."""
    if len(data) <= _CODEC_POSITION:
        return False
    codec = data[_CODEC_POSITION] & CODEC_MASK
    if rules.stored_codec is not None and codec != rules.stored_codec:
        return True
    return bool(codec) and (rules.compacted or _limits_age(rules))


def stored_form(data: memoryview, rules: BatchRules, now_ms: int) -> tuple[memoryview, BatchHeader]:
    """Check the batch in `data`. Return the batch as the leader stores it (recompressed if the
    topic requires another codec), and its header. Raises the errors of `validate_produced`.
    RecordsRefused lists the invalid records, if the records can be decoded."""
    try:
        header = validate_produced(data, rules, now_ms)
    except RecordsRefused as refused:
        raise _named(refused, data, rules, now_ms) from None
    codec = rules.stored_codec
    if codec is None or codec == header.codec:
        return data, header
    try:
        payload = records_payload(data, header, _decompressed_bytes_max(rules))
        scan_records(payload, header.record_count)
    except CorruptionError as error:
        raise _invalid(str(error)) from error
    records = compress(codec, payload, rules.stored_level)
    attributes = header.attributes & ~CODEC_MASK | codec
    length = HEADER_SIZE - LOG_OVERHEAD + len(records)
    header = header._replace(attributes=attributes, batch_length=length)
    _check_size(header, rules)
    stored = bytearray(HEADER.pack(*header) + records)
    seal(stored, 0, len(stored))
    return memoryview(stored), BatchHeader._make(HEADER.unpack_from(stored))


def _named(
    refused: RecordsRefused, data: memoryview, rules: BatchRules, now_ms: int
) -> RecordsRefused:
    header = BatchHeader._make(HEADER.unpack_from(data))
    appended_at = header.max_timestamp if header.uses_log_append_time else None
    looks = rules.timestamp_type is TimestampType.CREATE_TIME
    expected = Expected(
        rules.compacted,
        now_ms - rules.timestamp_before_max_ms if looks else None,
        now_ms + rules.timestamp_after_max_ms if looks else None,
        rules.partition,
    )
    try:
        payload = records_payload(data, header, _decompressed_bytes_max(rules))
        times = Times(header.base_timestamp, appended_at)
        return name_records(refused, payload, header.record_count, times, expected)
    except (BrokerError, CorruptionError):
        return refused  # without a list of records


def _invalid(detail: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_RECORD, detail)


def _corrupt(detail: str) -> BrokerError:
    return BrokerError(ErrorCode.CORRUPT_MESSAGE, detail)


def _read_one_batch(data: Buffer, rules: BatchRules) -> BatchHeader:
    if len(data) <= MAGIC_POSITION:
        raise _corrupt(f"the batch has {len(data)} bytes, expected at least {HEADER_SIZE}")
    magic = memoryview(data)[MAGIC_POSITION]
    if magic < MAGIC and rules.api_version < _BATCH_API_VERSION_MIN:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            f"the message format is {magic}, expected {MAGIC}: use a newer producer",
        )
    if magic < MAGIC:
        raise _invalid(
            f"the message format is {magic}, expected {MAGIC} in version {rules.api_version} of"
            " Produce"
        )
    if magic > MAGIC:
        raise _corrupt(f"the message format is {magic}, expected {MAGIC}")
    if len(data) < HEADER_SIZE:
        raise _corrupt(f"the batch has {len(data)} bytes, expected at least {HEADER_SIZE}")
    header = BatchHeader._make(HEADER.unpack_from(data))
    if not BATCH_LENGTH_MIN <= header.batch_length <= len(data) - LOG_OVERHEAD:
        raise _corrupt(
            f"the batch length in the header is {header.batch_length},"
            f" expected {BATCH_LENGTH_MIN} to {len(data) - LOG_OVERHEAD}"
        )
    if header.size < len(data):
        raise _invalid(
            f"{len(data) - header.size} bytes follow the batch of {header.size} bytes,"
            " expected exactly one batch for the partition"
        )
    return header


def _check_codec(header: BatchHeader, api_version: int) -> None:
    if header.codec > Codec.ZSTD:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {header.codec} is unknown, expected 0 to {max(Codec)}",
        )
    if header.codec == Codec.ZSTD and api_version < _ZSTD_API_VERSION_MIN:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"the batch is compressed with zstd, which needs version {_ZSTD_API_VERSION_MIN} of"
            f" Produce or later, but the request has version {api_version}",
        )


def _check_size(header: BatchHeader, rules: BatchRules) -> None:
    if header.size > rules.max_message_bytes:
        raise BrokerError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, expected at most {rules.max_message_bytes}"
            " (max.message.bytes)",
        )
    if header.size > rules.segment_bytes:
        raise BrokerError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {header.size} bytes, expected at most {rules.segment_bytes}"
            " (segment.bytes)",
        )


def _check_offsets(header: BatchHeader, rules: BatchRules) -> None:
    if header.base_offset != 0:
        raise _invalid(f"the base offset is {header.base_offset}, expected 0")
    if header.record_count <= 0:
        raise _invalid(f"the record count is {header.record_count}, expected at least 1")
    if header.last_offset_delta != header.record_count - 1:
        raise _invalid(
            f"the last offset delta is {header.last_offset_delta},"
            f" expected {header.record_count - 1} for {header.record_count} records"
        )
    # The leader assigns an offset to each record that the header counts, so the count is limited.
    plain = header.codec == Codec.NONE
    bytes_max = header.size - HEADER_SIZE if plain else _decompressed_bytes_max(rules)
    if header.record_count * _RECORD_BYTES_MIN > bytes_max:
        raise _invalid(
            f"the record count is {header.record_count}, expected at most"
            f" {bytes_max // _RECORD_BYTES_MIN} in a batch of {header.size} bytes with compression"
            f" codec {header.codec}"
        )


def _check_producer(header: BatchHeader) -> None:
    if header.is_control:
        raise _invalid("the batch is a control batch, which only brokers may write")
    if header.has_delete_horizon:
        raise _invalid("the batch has a delete horizon, which only the log cleaner may set")
    if header.has_producer:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise _invalid(
                f"the batch of producer id {header.producer_id} has producer epoch"
                f" {header.producer_epoch} and base sequence {header.base_sequence}, expected both"
                " to be 0 or more"
            )
    elif header.is_transactional:
        raise _invalid("the batch is transactional but has no producer id")


def _check_times(header: BatchHeader, rules: BatchRules, now_ms: int) -> None:
    if header.uses_log_append_time:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            "the producer set the timestamp type to LogAppendTime, expected CreateTime",
        )
    if rules.timestamp_type is TimestampType.CREATE_TIME:
        _check_ahead(header.max_timestamp, "the latest record", rules, now_ms)


def _check_ahead(timestamp: int, what: str, rules: BatchRules, now_ms: int) -> None:
    if timestamp - now_ms > rules.timestamp_after_max_ms:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"{what} has timestamp {timestamp}, expected at most"
            f" {now_ms + rules.timestamp_after_max_ms} (message.timestamp.after.max.ms)",
        )


def _limits_age(rules: BatchRules) -> bool:
    return (
        rules.timestamp_type is TimestampType.CREATE_TIME
        and rules.timestamp_before_max_ms != NO_TIMESTAMP_LIMIT
    )


def _decompressed_bytes_max(rules: BatchRules) -> int:
    return max(_DECOMPRESSED_BYTES_MIN, _DECOMPRESSED_RATIO_MAX * rules.max_message_bytes)


def _check_records(data: Buffer, header: BatchHeader, rules: BatchRules, now_ms: int) -> None:
    """Decompress the records up to a limit, and check their keys and timestamps. Raises
    RecordsRefused, BrokerError."""
    try:
        payload = records_payload(data, header, _decompressed_bytes_max(rules))
        keyless, earliest, lowest, highest = scan_records(payload, header.record_count)
    except CorruptionError as error:
        raise _invalid(str(error)) from error
    if rules.compacted and keyless >= 0:
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            f"record {keyless} of the batch has no key, but the topic is compacted",
        )
    if not _limits_age(rules):
        return
    oldest = header.base_timestamp + lowest
    if oldest != NO_TIMESTAMP and now_ms - oldest > rules.timestamp_before_max_ms:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            f"record {earliest} of the batch has timestamp {oldest}, expected at least"
            f" {now_ms - rules.timestamp_before_max_ms} (message.timestamp.before.max.ms)",
        )
    _check_ahead(header.base_timestamp + highest, "a record", rules, now_ms)
