"""The primitive types of the protocol: varints, strings and tagged fields. A decoding function
returns the value and the position after the value, or raises MalformedInput."""

from __future__ import annotations

import struct
from typing import Final

from pybroker.errors import MalformedInput

Buffer = bytes | bytearray | memoryview

STRING_LENGTH_MAX: Final = 0x7FFF
"""The maximum length of a string, in bytes of UTF-8. It is the maximum of the int16 length in
versions that are not flexible, and applies to flexible versions, too."""
REQUEST_ELEMENTS_MAX: Final = 131_072
"""The maximum number of elements in all arrays of a request together. The limit bounds the time for
which one small request blocks the event loop. It allows 100,000 partitions, more than a broker
should have."""
ANY_NUMBER: Final = 1 << 62
TAGS_MAX: Final = 127
"""The maximum number of tagged fields in one structure. All known messages have far fewer."""
UVARINT_LENGTH_MAX: Final = 5  # the maximum size of an unsigned 32-bit varint, in bytes

# The errors that a generated decoder raises at the end of the data, or for text that is not UTF-8.
# The codec converts them to MalformedInput, which is faster than a check before each field.
DECODING_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError)

_INT16 = struct.Struct(">h")


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the unsigned varint of at most 32 bits (KIP-482) at `position`, and the position after
    it. Raises MalformedInput."""
    value = shift = 0
    for index in range(position, position + UVARINT_LENGTH_MAX):
        if index >= len(data):
            raise MalformedInput(f"the message ends inside the varint at byte {position}")
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, index + 1
        shift += 7
    raise MalformedInput(f"the varint at byte {position} has more than 32 bits")


def encode_uvarint(value: int) -> bytes:
    """Return `value`, 0 to 2**32 - 1, as an unsigned varint of minimum length."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"value of an unsigned varint is {value}, expected 0 to {0xFFFFFFFF}")
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_nullable_string(data: memoryview, position: int) -> tuple[str | None, int]:
    """Return the string at `position`, and the position after the string. The string begins with
    its length as an int16; the length -1 means null. Raises MalformedInput."""
    start = position + 2
    if start > len(data):
        raise MalformedInput(f"the message ends inside the string length at byte {position}")
    length = _INT16.unpack_from(data, position)[0]
    if length == -1:
        return None, start
    end = start + length
    if length < 0 or end > len(data):
        raise MalformedInput(
            f"length of the string at byte {position} is {length}, expected -1 (null) or 0 to"
            f" {len(data) - start}"
        )
    try:
        return str(data[start:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedInput(f"the string at byte {position} is not UTF-8") from error


def encode_nullable_string(value: str | None) -> bytes:
    """Return the bytes of a string with an int16 length, which is -1 for None. Raises ValueError
    for a string that is too long."""
    if value is None:
        return b"\xff\xff"
    text = value.encode()
    if len(text) > STRING_LENGTH_MAX:
        raise ValueError(f"the string has {len(text)} bytes, expected at most {STRING_LENGTH_MAX}")
    return _INT16.pack(len(text)) + text


def skip_tagged_fields(data: memoryview, position: int) -> int:
    """Return the position after the tagged fields at `position` (KIP-482). Raises MalformedInput
    for a tag that occurs twice, and for a field that ends after the end of `data`."""
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise MalformedInput(f"the count of tagged fields is {count}, expected at most {TAGS_MAX}")
    if 2 * count > len(data) - position:
        raise MalformedInput(
            f"the count of tagged fields is {count}, but only {len(data) - position} bytes remain"
        )
    seen: set[int] = set()
    for _ in range(count):
        tag, size, position = read_tag(data, position)
        if tag in seen:
            raise MalformedInput(f"tag {tag} occurs twice")
        seen.add(tag)
        position += size
    return position


def read_tag(data: memoryview, position: int) -> tuple[int, int, int]:
    """Return the tag of the tagged field at `position`, the size of its value in bytes, and the
    position of its value. Raises MalformedInput."""
    tag, position = read_uvarint(data, position)
    size, position = read_uvarint(data, position)
    if size > len(data) - position:
        raise MalformedInput(
            f"size of the tagged field {tag} is {size} bytes, but only {len(data) - position} bytes"
            " remain"
        )
    return tag, size, position
