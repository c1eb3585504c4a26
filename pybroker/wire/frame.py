"""The framing of requests and responses: a size as a signed 32-bit integer, then `size` bytes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from pybroker.errors import MalformedInput
from pybroker.wire.primitives import Buffer

SIZE_PREFIX_LENGTH: Final = 4
REQUEST_SIZE_MAX: Final = 100 * 1024 * 1024  # Kafka's default of socket.request.max.bytes
RESPONSE_SIZE_MAX: Final = 0x7FFFFFFF

_SIZE = struct.Struct(">i")


def frame_size(prefix: Buffer, limit: int = REQUEST_SIZE_MAX) -> int:
    """Return the frame size in `prefix`, the first four bytes of a frame. Raises MalformedInput if
    the size is negative or exceeds `limit` bytes."""
    if len(prefix) < SIZE_PREFIX_LENGTH:
        raise MalformedInput(
            f"the size prefix of a frame has {len(prefix)} bytes, expected {SIZE_PREFIX_LENGTH}"
        )
    size: int = _SIZE.unpack_from(prefix)[0]
    if not 0 <= size <= limit:
        raise MalformedInput(f"the frame size is {size} bytes, expected 0 to {limit}")
    return size


def size_prefix(size: int) -> bytes:
    """Return the size prefix of a frame: four bytes with `size`, the number of bytes that follow.
    Raises ValueError if `size` is negative, or 2 GiB or more."""
    if not 0 <= size <= RESPONSE_SIZE_MAX:
        raise ValueError(f"the frame size is {size} bytes, expected 0 to {RESPONSE_SIZE_MAX}")
    return _SIZE.pack(size)


def framed(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return a frame as a list of buffers: the size prefix, then all of `parts`, without a copy."""
    total = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    return [size_prefix(total), *parts]
