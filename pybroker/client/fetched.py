"""The fetched batches of a partition. The application gets neither transaction markers nor, with
read_committed, aborted records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pybroker.ports import Buffer
from pybroker.records.batch import HEADER_SIZE, BatchHeader, read_header
from pybroker.records.control import ControlType, parse_control
from pybroker.records.record import decode_records

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""The maximum size of a decompressed batch. Brokers limit batches to a few MB."""

OFFSET_END: Final = 2**63
"""A value above all offsets."""


@dataclass(slots=True, eq=False)
class FetchedData:
    """The record batches of one partition in one Fetch response, which are decoded one by one when
    the application reads them."""

    data: memoryview
    aborted: deque[tuple[int, int]]
    """The first offset and the producer id of each aborted transaction, sorted by offset. Filled
    only for read_committed."""
    aborting: set[int] = field(default_factory=set)
    position: int = 0
    """The byte position of the next batch."""
    decoded_from: int = 0
    """The byte position of the batch that was decoded last. `decoded_base` is its base offset."""
    decoded_base: int = OFFSET_END

    @property
    def rest_bytes(self) -> int:
        return len(self.data) - self.position

    def next_batch(self) -> tuple[BatchHeader, memoryview] | None:
        """Return the header and the bytes of the next whole batch; None if there is none."""
        position = self.position
        if len(self.data) - position < HEADER_SIZE:
            return None
        header = read_header(self.data, position)
        batch = self.data[position : position + header.size]
        return (header, batch) if len(batch) == header.size else None

    def pass_batch(self, header: BatchHeader) -> None:
        """Go to the batch after the one with this header."""
        self.decoded_from, self.decoded_base = self.position, header.base_offset
        self.position += header.size

    def go_back(self, offset: int) -> bool:
        """Let `next_batch` return the last decoded batch again. `offset` is the first wanted
        offset. If that batch begins above `offset`, do nothing and return False, because the batch
        does not contain `offset`."""
        if offset < self.decoded_base:
            return False
        self.position = self.decoded_from
        return True

    def is_shown(self, header: BatchHeader, batch: memoryview, *, committed_only: bool) -> bool:
        """Return whether the application gets the records of the next batch. It does not get
        transaction markers. With `committed_only`, it does not get the records of aborted
        transactions."""
        while self.aborted and self.aborted[0][0] <= header.last_offset:
            self.aborting.add(self.aborted.popleft()[1])
        if header.is_control:
            self._end_of_transaction(header, batch)
            return False
        return not (
            committed_only and header.is_transactional and header.producer_id in self.aborting
        )

    def _end_of_transaction(self, header: BatchHeader, batch: memoryview) -> None:
        for record in decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            marker = parse_control(record)
            if marker is not None and marker.type == ControlType.ABORT:
                self.aborting.discard(header.producer_id)


def begin_data(data: Buffer, aborted: list[tuple[int, int]]) -> FetchedData:
    return FetchedData(memoryview(data), deque(sorted(aborted)))
