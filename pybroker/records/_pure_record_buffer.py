"""The encoded records of a batch under construction, in Python. `_record_buffer.pxi` is the same
code in C: change both together."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from pybroker.ports import Buffer
from pybroker.records._pure import append_record
from pybroker.records._pure_arrow_column import ArrowColumn

_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_OVERHEAD_MAX: Final = 36
"""The maximum size of a record's fields without the key and the value, and without headers."""
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


class RecordBuffer:
    """The encoded records of a batch under construction. `size` is in bytes, without the batch
    header. The timestamps are in ms since 1970, -1 without records. `full`: a further record as
    large as the last record would exceed the limit."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.full = False

    @property
    def size(self) -> int:
        return len(self._data)

    def append(
        self,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        limit: int,
    ) -> int:
        """Append a record and return its index; -1 if the size would exceed `limit` bytes. The
        first record may exceed `limit`. `timestamp` is in ms since 1970, -1 for none.

        Raises ValueError for a timestamp below -1, a timestamp delta above 64 bits, a record of 2
        GiB or more, or a header name that UTF-8 cannot encode; TypeError for a key, value or header
        of a wrong type. An error leaves the buffer unchanged.
        """
        pairs = [
            (_header_name(name), to_bytes(content, f"header {name}")) for name, content in headers
        ]
        base = timestamp if self.count == 0 else self.base_timestamp
        if timestamp < -1:
            raise ValueError(f"timestamp is {timestamp}, expected -1 or ms since 1970")
        if timestamp - base > _INT64_MAX:
            raise ValueError(
                f"timestamp is {timestamp}, expected at most {base + _INT64_MAX}: a record's"
                f" timestamp may exceed that of the batch's first record, {base},"
                " by 2^63 - 1 ms at most"
            )
        record = bytearray()
        append_record(
            record,
            timestamp - base,
            self.count,
            to_bytes(key, "key"),
            to_bytes(value, "value"),
            pairs,
        )
        if len(record) > _INT32_MAX:
            raise ValueError(f"a record of {len(record)} bytes does not fit into a batch")
        size = len(self._data) + len(record)
        if self.count and size > limit:
            return -1
        self._data += record
        self.base_timestamp = base
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.count += 1
        self.full = size + len(record) > limit
        return self.count - 1

    def encoded(self) -> bytearray:
        """Return the encoded records, not a copy."""
        return self._data

    def release(self) -> None:
        """Release the memory of the encoded records. `count`, the timestamps and `full` keep their
        values."""
        self._data = bytearray()


def to_bytes(value: Buffer | None, what: str) -> bytes | None:
    """Return the value as bytes, None for None. Raises TypeError for another type. The text of the
    TypeError calls the value `what`."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the {what} of a record must be bytes, not {type(value).__name__}")


def record_bytes(
    values: list[Buffer | None] | ArrowColumn, keys: list[Buffer | None] | ArrowColumn | None
) -> tuple[int, int]:
    """Convert the values and keys in lists to bytes, in place. Return the size of all values and
    keys, and of the largest pair of value and key, in bytes. Raises TypeError for a value or key of
    a wrong type. Raises ValueError for different numbers of keys and values, or a damaged
    ArrowColumn."""
    if keys is not None and len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values, expected a key for each")
    sizes = [0] * len(values)
    for what, column in (("value", values), ("key", keys or [])):
        for index, item in enumerate(column):
            if isinstance(column, list):
                column[index] = to_bytes(item, f"{what} {index}")
            sizes[index] += len(item or b"")
    return sum(sizes), max(sizes, default=0)


def append_records(
    buffers: list[RecordBuffer | None],
    values: list[bytes | None] | ArrowColumn,
    keys: list[bytes | None] | ArrowColumn | None,
    chosen: list[int | None] | None,
    timestamp: int,
    start: int,
    without_key: int,
    limit: int,
    room: int,
    places: list[int],
) -> tuple[int, int, int]:
    """Append the records from the index `start` on to the buffers of their partitions, until a
    record does not fit. Add the partition of each appended record to `places`.

    The partition is the one in `chosen`, else that of the key (as in Kafka's Java client), else
    `without_key`.

    A record fits if its partition has a buffer with room (`limit` bytes per buffer), and the
    records of this call certainly stay within `room` bytes.

    Return the index of the first record that does not fit (the number of values if all fit), the
    partition of that record, and the appended bytes.
    """
    if keys is not None and len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values, expected a key for each")
    used = 0
    at = without_key
    for index in range(start, len(values)):
        value = values[index]
        key = None if keys is None else keys[index]
        number = None if chosen is None else chosen[index]
        if number is not None:
            at = number
            if not 0 <= at < len(buffers):
                raise IndexError(f"partition {at} was chosen, expected 0 to {len(buffers) - 1}")
        elif key is None:
            at = without_key
        else:
            at = partition_of_key(key, len(buffers))
        buffer = buffers[at]
        bound = used + _OVERHEAD_MAX + len(key or b"") + len(value or b"")
        if buffer is None or bound > room:
            return index, at, used
        before = buffer.size
        if buffer.append(timestamp, key, value, (), limit) < 0:
            return index, at, used
        used += buffer.size - before
        places.append(at)
    return len(values), at, used


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of `data` as an unsigned number, with the seed of Kafka's
    clients."""
    whole = len(data) & ~3
    state = (_SEED ^ len(data)) & _MASK
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = (state * _MULTIPLIER & _MASK) ^ word
    rest = data[whole:]
    if rest:
        state = (state ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Return the number of the partition for records with this key, the same as in Kafka's Java
    client."""
    return (murmur2(key) & _POSITIVE) % partition_count


def _header_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header name must be str, not {type(name).__name__}")
    name.encode()  # a UnicodeEncodeError is a ValueError
    return name
