"""The loops over the records of a batch (magic 2, KIP-82 and KIP-98), in Python.

A record, every varint zig-zag: length, attributes i8 (0), timestamp delta (64 bits), offset delta,
key length (-1: null) and key, value length and value, number of headers, and for each header the
length of its name, the name in UTF-8, length (-1: null) and value.

`_speedups.pyx` is the same in C: change both together. Values only: the callers handle compression,
headers of batches and checksums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer

IMPLEMENTATION: Final = "pure"

RECORD_BYTES_MIN: Final = 7
"""The shortest record: seven fields of one byte each."""
HEADER_BYTES_MIN: Final = 2

_INT32_BITS: Final = 32
_INT64_BITS: Final = 64
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

R = TypeVar("R", bound=tuple[Any, ...])


def append_record(
    output: bytearray,
    timestamp_delta: int,
    offset_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]],
) -> None:
    """Append one encoded record to `output`. Raises UnicodeEncodeError for a header name that is
    not text, and then leaves `output` unchanged."""
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    pairs = tuple(headers)
    _put_varint(body, len(pairs))
    for name, header_value in pairs:
        _put_bytes(body, name.encode())
        _put_bytes(body, header_value)
    _put_varint(output, len(body))
    output += body


def read_records(
    data: bytes,
    record_count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
    timestamp_type: object,
    record_type: type[R],
) -> list[R]:
    """Return the `record_count` records in `data`, as `record_type`: a named tuple of offset,
    timestamp, key, value, headers, timestamp type.

    With `append_time` all records have that time. Raises CorruptionError unless `data` holds
    exactly that many whole records, with increasing offset deltas up to `last_offset_delta`.
    """
    check_count(record_count, len(data))
    records: list[R] = []
    make = tuple.__new__
    position = 0
    delta_before = -1
    try:
        for _ in range(record_count):
            position, end = _record_bounds(data, position)
            delta, position = _varint(data, position, _INT64_BITS)
            timestamp = base_timestamp + delta if append_time is None else append_time
            offset_delta, position = _varint(data, position, _INT32_BITS)
            if not delta_before < offset_delta <= last_offset_delta:
                raise CorruptionError(f"offset delta {offset_delta} follows {delta_before}")
            delta_before = offset_delta
            offset = base_offset + offset_delta
            if offset > _INT64_MAX or not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise CorruptionError("offset or timestamp do not fit into 64 bits")
            key, position = _bytes_or_none(data, position, end)
            value, position = _bytes_or_none(data, position, end)
            header_count, position = _varint(data, position, _INT32_BITS)
            headers: tuple[tuple[str, bytes | None], ...] = ()
            if header_count:
                headers, position = _headers(data, position, end, header_count)
            if position != end:
                raise CorruptionError(f"fields end at byte {position}, the record at byte {end}")
            fields = (offset, timestamp, key, value, headers, timestamp_type)
            records.append(make(record_type, fields))
    except IndexError:
        raise CorruptionError(f"record {len(records)} of {record_count}: cut off") from None
    except CorruptionError as error:
        raise CorruptionError(f"record {len(records)} of {record_count}: {error}") from error
    _check_end(position, len(data))
    return records


def scan_records(data: bytes, record_count: int) -> tuple[int, int, int, int]:
    """Return the facts of the records in `data` for validation: index of the first record without
    key (-1: all have one), index and timestamp delta of the earliest, and delta of the latest (of
    no records: -1, -1, 0, 0).

    Values and headers are skipped, not decoded. Raises the CorruptionError of `read_records`, but
    does not check offset deltas and headers.
    """
    check_count(record_count, len(data))
    keyless = earliest = -1
    lowest = highest = 0
    position = 0
    index = 0
    try:
        for index in range(record_count):
            position, end = _record_bounds(data, position)
            delta, position = _varint(data, position, _INT64_BITS)
            _, position = _varint(data, position, _INT32_BITS)
            key_length, position = _varint(data, position, _INT32_BITS)
            if position > end or not -1 <= key_length <= end - position:
                raise CorruptionError(f"a length of {key_length} does not fit into the record")
            if key_length < 0 and keyless < 0:
                keyless = index
            if earliest < 0 or delta < lowest:
                earliest, lowest = index, delta
            highest = delta if index == 0 else max(highest, delta)
            position = end
    except IndexError:
        raise CorruptionError(f"record {index} of {record_count}: cut off") from None
    except CorruptionError as error:
        raise CorruptionError(f"record {index} of {record_count}: {error}") from error
    _check_end(position, len(data))
    return keyless, earliest, lowest, highest


def iter_times(data: bytes, record_count: int) -> Iterator[tuple[int, int]]:
    """Yield timestamp delta and offset delta of each record in `data`, so that a batch of many
    records takes no memory. Raises the CorruptionError of `read_records`."""
    check_count(record_count, len(data))
    position = 0
    try:
        for _ in range(record_count):
            position, end = _record_bounds(data, position)
            time_delta, position = _varint(data, position, _INT64_BITS)
            offset_delta, position = _varint(data, position, _INT32_BITS)
            yield time_delta, offset_delta
            position = end
    except IndexError:
        raise CorruptionError(f"a record is cut off at byte {position}") from None


def iter_outlines(data: bytes, record_count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield timestamp delta, offset delta, and the lengths of key and value (-1: null) of each
    record in `data`. Raises the CorruptionError of `read_records`."""
    check_count(record_count, len(data))
    position = 0
    try:
        for _ in range(record_count):
            position, end = _record_bounds(data, position)
            time_delta, position = _varint(data, position, _INT64_BITS)
            offset_delta, position = _varint(data, position, _INT32_BITS)
            key_length, position = _varint(data, position, _INT32_BITS)
            value_length, _ = _varint(data, position + max(key_length, 0), _INT32_BITS)
            yield time_delta, offset_delta, key_length, value_length
            position = end
    except IndexError:
        raise CorruptionError(f"a record is cut off at byte {position}") from None


def check_count(record_count: int, length: int) -> None:
    """Raise CorruptionError if `length` bytes cannot hold `record_count` records, before any
    work."""
    if not 0 <= record_count * RECORD_BYTES_MIN <= length:
        raise CorruptionError(f"{length} bytes cannot hold {record_count} records")


def _check_end(position: int, length: int) -> None:
    if position != length:
        raise CorruptionError(f"{length - position} bytes follow the last record")


def _record_bounds(data: bytes, position: int) -> tuple[int, int]:
    """Read the length and attributes of a record. Return the start of its next field, and its
    end."""
    length, position = _varint(data, position, _INT32_BITS)
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(data):
        raise CorruptionError(f"length {length} at byte {position} of {len(data)}")
    return position + 1, end


def _headers(
    data: bytes, position: int, end: int, count: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if not 0 <= count * HEADER_BYTES_MIN <= end - position:
        raise CorruptionError(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        name, position = _bytes_or_none(data, position, end)
        if name is None:
            raise CorruptionError("a header has no name")
        value, position = _bytes_or_none(data, position, end)
        # Producers do not check names; Java shows broken ones in the same way.
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position


def _bytes_or_none(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position, _INT32_BITS)
    stop = position + length
    if length < 0:
        if length != -1:
            raise CorruptionError(f"a length is {length}")
        return None, position
    if stop > end:
        raise CorruptionError(f"a length of {length} does not fit into the record")
    return data[position:stop], stop


def _varint(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Return a zig-zag number of at most `bits` bits and the position behind it. Raises IndexError
    at the end of `data`."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    raw = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift >= bits:
            raise CorruptionError(f"a number at byte {position} is longer than {bits} bits")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    if raw >> bits:
        raise CorruptionError(f"a number at byte {position} is larger than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position


def _put_varint(output: bytearray, value: int) -> None:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw > 0x7F:
        output.append((raw & 0x7F) | 0x80)
        raw >>= 7
    output.append(raw)


def _put_bytes(output: bytearray, value: Buffer | None) -> None:
    if value is None:
        output.append(1)
    else:
        _put_varint(output, len(value))
        output += value
