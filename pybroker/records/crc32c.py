"""The checksum of record batches: CRC-32C (Castagnoli), by the processor's own instruction if it
has one.

Only this module knows which library computes it. CRC-32 of zlib, which the message formats 0 and 1
use, is another polynomial and does not belong here.
"""

from __future__ import annotations

import crc32c as _library

from pybroker.ports import Buffer


def checksum(data: Buffer) -> int:
    """Return CRC-32C of `data`, unsigned. `data` is contiguous; it is read in place, never
    copied."""
    return _library.crc32c(data)
