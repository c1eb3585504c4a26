"""Reads a closed segment for the log cleaner, in small blocks."""

from __future__ import annotations

from typing import Final

from pybroker.compaction.rewriting import Batch
from pybroker.errors import CorruptionError, StorageError
from pybroker.ports import Buffer
from pybroker.records.batch import HEADER_SIZE, crc_matches, read_header
from pybroker.storage.segment import Segment

BLOCK_BYTES: Final = 36 * 1024
"""The number of bytes that the cleaner reads at a time, except for larger batches. While the
cleaner processes a block, Linux may let the event loop wait for the same processor. So each block
is small. This size has room for two batches of 16 KiB, the default batch.size of producers."""


class Blocks:
    """Reads the batches of a closed segment in blocks. `data` is the current block. After
    `has_more`, call `take` for the next batch. Instead of `take`, the caller can process batches
    from `position` in `data` on, and set `position` to the end of the last batch."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._start = 0
        """The position of `data` in the segment's file."""
        self.data: Buffer = b""
        self.position = 0
        """The position in `data` of the next batch."""

    def has_more(self) -> bool:
        """Return whether the segment has another batch. If so, `data` has the whole batch at
        `position`. Raises CorruptionError for an invalid header. Raises StorageError if the read
        fails."""
        left = len(self.data) - self.position
        if left >= HEADER_SIZE and read_header(self.data, self.position).size <= left:
            return True
        at = self._start + self.position
        rest = self._segment.size - at
        if not rest:
            return False
        self._read(at, min(BLOCK_BYTES, rest))
        size = read_header(self.data).size if rest >= HEADER_SIZE else HEADER_SIZE
        if size > rest:
            raise StorageError(
                f"{self._segment.path}: the segment was truncated while the cleaner read it"
            )
        if size > len(self.data):
            self._read(at, size)
        return True

    def take(self) -> Batch:
        """Return the next batch, and advance `position` beyond it. Raises CorruptionError if the
        checksum of the batch is wrong."""
        header = read_header(self.data, self.position)
        if not crc_matches(self.data, self.position, header.size):
            raise CorruptionError(
                f"{self._segment.path}: the checksum of the batch at offset"
                f" {header.base_offset} is wrong"
            )
        begin = self.position
        self.position += header.size
        return Batch(memoryview(self.data)[begin : self.position], header)

    def _read(self, at: int, length: int) -> None:
        self._start, self.position = at, 0
        self.data = self._segment.file.pread(at, length)
