"""The checksum of record batches: CRC-32C (Castagnoli). The package `crc32c` uses the processor's
CRC-32C instruction if the processor has one.

No other module of the broker imports the package. The message formats 0 and 1 use CRC-32 with
another polynomial (`zlib.crc32`), which this module does not compute.
"""

from __future__ import annotations

import crc32c as _library

from pybroker.ports import Buffer


def checksum(data: Buffer, before: int = 0) -> int:
    """Return the CRC-32C of `data` as an unsigned integer. `data` must be contiguous; it is not
    copied. `before` is the checksum of the bytes before `data`."""
    return _library.crc32c(data, before)
