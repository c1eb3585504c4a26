"""The checksum of record batches: CRC-32C (Castagnoli), by the package `crc32c`. No other module of
the broker imports the package."""

from __future__ import annotations

import crc32c as _library

from pybroker.ports import Buffer


def checksum(data: Buffer, before: int = 0) -> int:
    """Return the CRC-32C of `data` as an unsigned integer. `data` must be contiguous. `before` is
    the checksum of the bytes before `data`."""
    return _library.crc32c(data, before)
