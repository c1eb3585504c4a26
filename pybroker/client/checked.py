"""Checks of the records that an application gives to the producer."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, cast

from pybroker.client.group_values import OffsetAndMetadata
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.builder import record_size_max
from pybroker.records.record import Headers
from pybroker.records.record_buffer import ArrowColumn, ByteColumn, record_bytes, to_bytes

HeadersLike = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

_TIMESTAMP_MAX: Final = 2**63 - 1


class CheckedRecord(NamedTuple):
    """A producer's record after the check of its arguments. `timestamp` is in ms since 1970
    (None: the append time). `size_max` is an upper limit (bytes) for the record's size before
    compression."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    size_max: int


def checked_record(
    value: Buffer | None, key: Buffer | None, headers: Headers, timestamp_ms: int | None
) -> CheckedRecord:
    timestamp = None if timestamp_ms is None else checked_time(timestamp_ms)
    key_bytes, value_bytes = to_bytes(key, "key"), to_bytes(value, "value")
    size_max = record_size_max(key_bytes, value_bytes, headers)
    return CheckedRecord(timestamp, key_bytes, value_bytes, headers, size_max)


def checked_columns(
    values: Iterable[Buffer | None], keys: Iterable[Buffer | None] | None
) -> tuple[ByteColumn, ByteColumn | None, int]:
    """Return the values, the keys, and the size in bytes of the largest record (key and value).
    Raises TypeError if a key or value is neither bytes nor None. Raises ValueError if the columns
    differ in length."""
    value_column = values if isinstance(values, ArrowColumn) else list(values)
    key_column = keys if keys is None or isinstance(keys, ArrowColumn) else list(keys)
    _, largest = record_bytes(value_column, key_column)
    return cast(ByteColumn, value_column), cast("ByteColumn | None", key_column), largest


def checked_time(timestamp_ms: int) -> int:
    if not 0 <= (time := operator.index(timestamp_ms)) <= _TIMESTAMP_MAX:
        raise ValueError(
            f"timestamp_ms is {time}, expected a time in ms since 1970 (0 or more), or None for now"
        )
    return time


def checked_offset(key: TopicPartition, value: OffsetAndMetadata | int) -> OffsetAndMetadata:
    offset = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    if offset.offset < 0:
        place = TopicPartition(*key)
        raise ValueError(f"the offset to commit for {place} is {offset.offset}, expected 0 or more")
    return offset


def checked_headers(headers: HeadersLike) -> Headers:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return tuple((_name(name), to_bytes(content, f"header {name}")) for name, content in pairs)


def _name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header name must be str, not {type(name).__name__}")
    if not name.isascii():
        name.encode()  # a UnicodeEncodeError is a ValueError
    return name
