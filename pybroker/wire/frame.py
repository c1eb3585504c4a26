"""The outermost layer of the protocol: a signed 32 bit size, then that many bytes.

Other modules read from sockets; this one has the arithmetic and its limits.
"""

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
    """Return the size in the four bytes of `prefix`. Raises MalformedInput if it is negative or
    above `limit` bytes, before anything is allocated for it."""
    if len(prefix) < SIZE_PREFIX_LENGTH:
        raise MalformedInput(f"a size prefix of {len(prefix)} bytes")
    size: int = _SIZE.unpack_from(prefix)[0]
    if not 0 <= size <= limit:
        raise MalformedInput(f"a frame of {size} bytes; at most {limit} are allowed")
    return size


def size_prefix(size: int) -> bytes:
    """Return the four bytes in front of a frame of `size` bytes. Raises ValueError beyond 2 GiB."""
    if not 0 <= size <= RESPONSE_SIZE_MAX:
        raise ValueError(f"a frame of {size} bytes cannot be sent")
    return _SIZE.pack(size)


def framed(parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts with their size in front, ready for a vectored write; nothing is copied."""
    total = sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in parts)
    return [size_prefix(total), *parts]
