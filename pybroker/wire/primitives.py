"""The smallest parts of the protocol: varints, strings and tagged sections, bounds checked.

Functions take a memoryview and a position and return a value and the next position, or raise
MalformedInput. They know no fields of messages.
"""

from __future__ import annotations

import struct
from typing import Final

from pybroker.errors import MalformedInput

Buffer = bytes | bytearray | memoryview

STRING_LENGTH_MAX: Final = (
    0x7FFF  # bytes of UTF-8; the int16 prefix of old versions sets it for all
)
REQUEST_ELEMENTS_MAX: Final = 131_072
"""Elements of all arrays of a request together. A few bytes may cause much work, and the event loop
handles no other request meanwhile; 100,000 partitions, more than a broker should have, fit."""
ANY_NUMBER: Final = 1 << 62
TAGS_MAX: Final = 127
"""Tagged fields in one section; no version of any message has more than a few."""
UVARINT_LENGTH_MAX: Final = 5  # bytes of an unsigned varint of 32 bits

# The errors of decoders at the end of the data, or for text that is not UTF-8; the codec turns each
# into MalformedInput instead of paying for a check at every field.
DECODING_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError)

_INT16 = struct.Struct(">h")


def read_uvarint(data: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits (KIP-482) and the position after it."""
    value = shift = 0
    for index in range(position, position + UVARINT_LENGTH_MAX):
        if index >= len(data):
            raise MalformedInput(f"a varint at byte {position} is cut off")
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, index + 1
        shift += 7
    raise MalformedInput(f"the varint at byte {position} has more than 32 bits")


def encode_uvarint(value: int) -> bytes:
    """Return the shortest unsigned varint of `value` (0 to 2**32 - 1)."""
    if not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"{value} does not fit an unsigned varint of 32 bits")
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_nullable_string(data: memoryview, position: int) -> tuple[str | None, int]:
    """Return a string with an int16 length, -1 meaning null, and the position after it."""
    start = position + 2
    if start > len(data):
        raise MalformedInput(f"the length of a string at byte {position} is cut off")
    length = _INT16.unpack_from(data, position)[0]
    if length == -1:
        return None, start
    end = start + length
    if length < 0 or end > len(data):
        raise MalformedInput(f"a string at byte {position} says {length} bytes")
    try:
        return str(data[start:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise MalformedInput(f"the string at byte {position} is not UTF-8") from error


def encode_nullable_string(value: str | None) -> bytes:
    """Return a string with an int16 length; None becomes -1."""
    if value is None:
        return b"\xff\xff"
    text = value.encode()
    if len(text) > STRING_LENGTH_MAX:
        raise ValueError(f"a string of {len(text)} bytes; at most {STRING_LENGTH_MAX} fit")
    return _INT16.pack(len(text)) + text


def skip_tagged_fields(data: memoryview, position: int) -> int:
    """Return the position after a section of unknown tagged fields. Unknown tags are no error
    (KIP-482); a tag given twice, or one that reaches beyond the end, is."""
    count, position = read_uvarint(data, position)
    if count > TAGS_MAX:
        raise MalformedInput(f"{count} tagged fields; at most {TAGS_MAX} are allowed")
    if 2 * count > len(data) - position:
        raise MalformedInput(f"{count} tagged fields cannot fit into {len(data) - position} bytes")
    seen: set[int] = set()
    for _ in range(count):
        tag, size, position = read_tag(data, position)
        if tag in seen:
            raise MalformedInput(f"tag {tag} is given twice")
        seen.add(tag)
        position += size
    return position


def read_tag(data: memoryview, position: int) -> tuple[int, int, int]:
    """Return the head of one tagged field: tag, size in bytes, and the position of its content,
    which lies inside `data`."""
    tag, position = read_uvarint(data, position)
    size, position = read_uvarint(data, position)
    if size > len(data) - position:
        raise MalformedInput(f"tag {tag} says {size} bytes, {len(data) - position} remain")
    return tag, size, position
