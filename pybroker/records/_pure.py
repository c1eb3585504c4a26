"""The loops over the records of a batch (magic 2, KIP-82 and KIP-98), in Python. `_speedups.pyx` is
the same code in C: change both together.

Fields of a record: length, attributes (one byte, 0), timestamp delta (64 bits), offset delta, key,
value, number of headers, headers (name, value). A length (-1 for null) precedes each key, name and
value. All numbers except the attributes are zig-zag varints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from pybroker.errors import CorruptionError
from pybroker.ports import Buffer

IMPLEMENTATION: Final = "pure"

RECORD_BYTES_MIN: Final = 7
"""The size of the shortest record, in bytes: seven fields of one byte each."""
HEADER_BYTES_MIN: Final = 2

INT32_BITS: Final = 32
INT64_BITS: Final = 64
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
    """Append an encoded record to `output`. Raises UnicodeEncodeError if a header name cannot be
    encoded in UTF-8, and then leaves `output` unchanged."""
    body = bytearray(1)
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    pairs = tuple(headers)
    put_varint(body, len(pairs))
    for name, header_value in pairs:
        _put_bytes(body, name.encode())
        _put_bytes(body, header_value)
    put_varint(output, len(body))
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
    """Decode the records in `data`, which is already decompressed. Return each as a `record_type`
    of offset, timestamp, key, value, headers, timestamp type. `append_time`, if not None, replaces
    all timestamps.

    Raises CorruptionError unless `data` has exactly `record_count` records, with increasing offset
    deltas up to `last_offset_delta`.
    """
    return list(
        iter_records(
            data, record_count, base_offset, last_offset_delta, base_timestamp, append_time,
            timestamp_type, record_type,
        )
    )  # fmt: skip


def iter_records(
    data: bytes,
    record_count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
    timestamp_type: object,
    record_type: type[R],
) -> Iterator[R]:
    """Yield the records that `read_records` returns, one by one. Raises the errors of
    `read_records`, possibly after some records were yielded."""
    check_count(record_count, len(data))
    make = tuple.__new__
    index = position = 0
    delta_before = -1
    try:
        for index in range(record_count):  # noqa: B007 (the message names the record)
            position, end = record_bounds(data, position)
            delta, position = read_varint(data, position, INT64_BITS)
            timestamp = base_timestamp + delta if append_time is None else append_time
            offset_delta, position = read_varint(data, position, INT32_BITS)
            if not delta_before < offset_delta <= last_offset_delta:
                raise CorruptionError(
                    f"offset delta is {offset_delta}, expected more than {delta_before} and at most"
                    f" {last_offset_delta}"
                )
            delta_before = offset_delta
            offset = base_offset + offset_delta
            if offset > _INT64_MAX:
                raise CorruptionError(f"offset {base_offset} + {offset_delta} exceeds 64 bits")
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise CorruptionError(f"timestamp {base_timestamp} + {delta} exceeds 64 bits")
            key, position = _bytes_or_none(data, position, end)
            value, position = _bytes_or_none(data, position, end)
            header_count, position = read_varint(data, position, INT32_BITS)
            headers: tuple[tuple[str, bytes | None], ...] = ()
            if header_count:
                headers, position = _headers(data, position, end, header_count)
            if position != end:
                raise CorruptionError(f"{end - position} bytes follow the last field of the record")
            yield make(record_type, (offset, timestamp, key, value, headers, timestamp_type))
    except IndexError:
        raise CorruptionError(
            f"record {index} of {record_count}: the data ends inside a field"
        ) from None
    except CorruptionError as error:
        raise CorruptionError(f"record {index} of {record_count}: {error}") from error
    _check_end(position, len(data))


def scan_records(data: bytes, record_count: int) -> tuple[int, int, int, int]:
    """Return, for the decompressed records in `data`: the index of the first record without a key
    (-1 if none), the index of the record with the earliest timestamp (-1 if none), the smallest and
    the largest timestamp delta.

    Raises CorruptionError. Offset deltas, values and headers are not checked.
    """
    check_count(record_count, len(data))
    keyless = earliest = -1
    lowest = highest = 0
    position = 0
    index = 0
    try:
        for index in range(record_count):
            position, end = record_bounds(data, position)
            delta, position = read_varint(data, position, INT64_BITS)
            _, position = read_varint(data, position, INT32_BITS)
            key_length, position = read_varint(data, position, INT32_BITS)
            if position > end or not -1 <= key_length <= end - position:
                raise CorruptionError(
                    f"key length is {key_length}, expected -1 (null) or 0 to {end - position}, the"
                    " bytes left in the record"
                )
            if key_length < 0 and keyless < 0:
                keyless = index
            if earliest < 0 or delta < lowest:
                earliest, lowest = index, delta
            highest = delta if index == 0 else max(highest, delta)
            position = end
    except IndexError:
        raise CorruptionError(
            f"record {index} of {record_count}: the data ends inside a field"
        ) from None
    except CorruptionError as error:
        raise CorruptionError(f"record {index} of {record_count}: {error}") from error
    _check_end(position, len(data))
    return keyless, earliest, lowest, highest


def iter_times(data: bytes, record_count: int) -> Iterator[tuple[int, int]]:
    """Yield the timestamp delta and the offset delta of each record in `data`, the decompressed
    records of a batch. Raises CorruptionError for a wrong record count or record length."""
    check_count(record_count, len(data))
    position = 0
    try:
        for _ in range(record_count):
            position, end = record_bounds(data, position)
            time_delta, position = read_varint(data, position, INT64_BITS)
            offset_delta, position = read_varint(data, position, INT32_BITS)
            yield time_delta, offset_delta
            position = end
    except IndexError:
        raise CorruptionError(
            f"incomplete record near byte {position}: the data ends at byte {len(data)}"
        ) from None


def iter_outlines(data: bytes, record_count: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield timestamp delta, offset delta, key length and value length (-1 for null) of each
    decompressed record in `data`. Raises the errors of `iter_times`."""
    check_count(record_count, len(data))
    position = 0
    try:
        for _ in range(record_count):
            position, end = record_bounds(data, position)
            time_delta, position = read_varint(data, position, INT64_BITS)
            offset_delta, position = read_varint(data, position, INT32_BITS)
            key_length, position = read_varint(data, position, INT32_BITS)
            value_length, _ = read_varint(data, position + max(key_length, 0), INT32_BITS)
            yield time_delta, offset_delta, key_length, value_length
            position = end
    except IndexError:
        raise CorruptionError(
            f"incomplete record near byte {position}: the data ends at byte {len(data)}"
        ) from None


def check_count(record_count: int, length: int) -> None:
    """Raise CorruptionError unless 0 <= `record_count` * RECORD_BYTES_MIN <= `length` (bytes)."""
    if not 0 <= record_count * RECORD_BYTES_MIN <= length:
        raise CorruptionError(
            f"record count is {record_count}, expected 0 to {length // RECORD_BYTES_MIN} in"
            f" {length} bytes of records"
        )


def _check_end(position: int, length: int) -> None:
    if position != length:
        raise CorruptionError(
            f"{length - position} bytes follow the last record of the batch, expected 0"
        )


def record_bounds(data: Buffer, position: int) -> tuple[int, int]:
    """Return two positions for the record that begins at `position`: where its timestamp delta
    begins, and where the record ends. Raises CorruptionError for an impossible length."""
    length, position = read_varint(data, position, INT32_BITS)
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(data):
        raise CorruptionError(
            f"record length is {length}, expected {RECORD_BYTES_MIN - 1} to"
            f" {len(data) - position}, the bytes left in the batch"
        )
    return position + 1, end


def _headers(
    data: bytes, position: int, end: int, count: int
) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    if not 0 <= count * HEADER_BYTES_MIN <= end - position:
        raise CorruptionError(
            f"header count is {count}, expected 0 to {(end - position) // HEADER_BYTES_MIN} in the"
            f" {end - position} bytes left in the record"
        )
    headers = []
    for _ in range(count):
        name, position = _bytes_or_none(data, position, end)
        if name is None:
            raise CorruptionError("a header name is null")
        value, position = _bytes_or_none(data, position, end)
        # Producers do not validate header names; the Java client replaces invalid UTF-8, too.
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position


def _bytes_or_none(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(data, position, INT32_BITS)
    stop = position + length
    if length < 0:
        if length != -1:
            raise CorruptionError(
                f"length of a key, value or header is {length}, expected -1 (null) or more"
            )
        return None, position
    if stop > end:
        raise CorruptionError(
            f"length of a key, value or header is {length}, but only {end - position} bytes are"
            " left in the record"
        )
    return data[position:stop], stop


def read_varint(data: Buffer, position: int, bits: int) -> tuple[int, int]:
    """Return the zig-zag varint at `position`, and the position after the varint. Raises
    CorruptionError if the varint has more than `bits` bits. Raises IndexError if `data` ends inside
    the varint."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    raw = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if shift >= bits:
            raise CorruptionError(f"a varint is longer than {bits} bits")
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
    if raw >> bits:
        raise CorruptionError(f"a varint is larger than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position


def put_varint(output: bytearray, value: int) -> None:
    """Append `value` to `output` as a zig-zag varint."""
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    while raw > 0x7F:
        output.append((raw & 0x7F) | 0x80)
        raw >>= 7
    output.append(raw)


def _put_bytes(output: bytearray, value: Buffer | None) -> None:
    if value is None:
        output.append(1)
    else:
        put_varint(output, len(value))
        output += value
