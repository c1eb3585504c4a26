"""The position in a range, and its update by Fetch responses. The position advances by whole
batches, also past transaction markers, aborted records and empty batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pybroker.client.ranges.model import PartitionRange
from pybroker.errors import BrokerError, CorruptionError
from pybroker.model import NO_OFFSET
from pybroker.ports import Buffer
from pybroker.records.batch import HEADER_SIZE, BatchHeader, crc_matches, read_header
from pybroker.records.control import ControlType, parse_control
from pybroker.records.record import decode_records

Batch = tuple[BatchHeader, memoryview]
Gap = tuple[int, int]
"""A range of offsets: the first offset and the end offset (exclusive)."""

OFFSET_BYTES = 8
"""The size of the base offset, the first field of a batch."""
CONTROL_BYTES_MAX = 1 << 20
"""The maximum size of a decompressed transaction marker. A marker has less than 100 bytes and is
not compressed."""


class RangeCursor:
    """The position of the next record to read in a range. `start` <= `position` <= `end`. `end`
    decreases only if an unclean election has truncated the log below `end`."""

    def __init__(self, wanted: PartitionRange, *, committed_only: bool) -> None:
        self.position = wanted.start
        self.end = wanted.end
        self.first = wanted.start
        """Records below this offset do not belong to the range, although the first batch may
        contain such records."""
        self.delivered = NO_OFFSET
        """The position after the last batch that `accept` returned, -1 before the first batch."""
        self.gaps: list[Gap] = []
        """The offsets below the position that no batch contained. Compaction removed their records,
        or the log start is above them: the next lookup of the log start offset shows which."""
        self.damage: str | None = None
        """The reason why the batch at the position is unusable."""
        self._committed_only = committed_only
        self._follows_batch = False
        """Whether the position is the end of a batch, so that the next batch must not begin below
        it."""

    @property
    def done(self) -> bool:
        return self.position >= self.end

    def skip_to(self, offset: int) -> None:
        """Move the position to `offset`, because the log does not have the offsets below it."""
        self.position = self.first = max(self.position, min(offset, self.end))
        self._follows_batch = False

    def accept(
        self, data: Buffer, aborted: Iterable[tuple[int, int]], committed_end: int
    ) -> list[Batch]:
        """Return the data batches of the Fetch response `data` that overlap the range, and move the
        position past them. `aborted` has (first offset, producer id) of each aborted transaction.
        `committed_end` is the high watermark, also with read_committed. At a damaged batch, stop
        and set `damage`."""
        self.damage = None
        view = memoryview(data)
        aborts = _Aborts(aborted if self._committed_only else ())
        found: list[Batch] = []
        before, place = self.position, 0
        while not self.done:
            try:
                header = _whole_batch(view, place)
                if header is None:
                    break
                self._check(header, view[place:], committed_end)
                batch = view[place : place + header.size]
                if self._step(header, aborts.meet(header, batch)):
                    found.append((header, batch))
                    self.delivered = self.position
            except (CorruptionError, BrokerError) as error:
                self.damage = str(error)
                break
            place += header.size
        if view and self.position == before and self.damage is None:
            self.damage = f"the batch at offset {self.position} is incomplete in the Fetch response"
        return found

    def _check(self, header: BatchHeader, rest: memoryview, committed_end: int) -> None:
        """Raise CorruptionError if the first batch in `rest` is damaged. The checksum does not
        cover the base offset. Therefore the batch's offsets are compared with the high watermark
        `committed_end`, with the reading position, and with the next batch."""
        base, beyond = header.base_offset, header.next_offset
        if not crc_matches(rest, 0, header.size):
            raise CorruptionError(f"the checksum of the batch at offset {base} is wrong")
        if not 0 <= base < beyond <= committed_end:
            raise CorruptionError(
                f"a batch has the offsets {base} to {beyond - 1}, expected ascending "
                f"offsets at or above 0 and below the high watermark {committed_end}"
            )
        behind = bytes(rest[header.size :][:OFFSET_BYTES])
        if len(behind) == OFFSET_BYTES and int.from_bytes(behind, "big", signed=True) < beyond:
            raise CorruptionError(
                f"a batch has the offsets {base} to {beyond - 1}, but the next batch begins at"
                f" {int.from_bytes(behind, 'big', signed=True)}"
            )
        if beyond <= self.position:
            raise CorruptionError(
                f"a batch has the offsets {base} to {beyond - 1}, but the client asked for the"
                f" offset {self.position} or later"
            )
        if base < self.position and self._follows_batch:
            raise CorruptionError(
                f"a batch begins at offset {base}, but the previous batch ends with offset"
                f" {self.position - 1}"
            )

    def _step(self, header: BatchHeader, is_aborted: bool) -> bool:
        """Move the position behind the batch. Return whether the application gets records of the
        batch."""
        base, beyond = header.base_offset, header.next_offset
        if base > self.position:
            self.gaps.append((self.position, min(base, self.end)))
        self.position = min(beyond, self.end)
        self._follows_batch = True
        is_data = not header.is_control and header.record_count > 0
        return base < self.end and is_data and not is_aborted


class _Aborts:
    """Finds the batches of aborted transactions. `aborted` has a pair (first offset, producer id)
    for each aborted transaction. `meet` must get the batches in offset order."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = deque(sorted(aborted))
        self._aborting: set[int] = set()

    def meet(self, header: BatchHeader, batch: memoryview) -> bool:
        """Process `batch`, the next batch in the order of offsets. Return True if the batch
        contains records of an aborted transaction. For a control batch, return False. Raises
        CorruptionError."""
        while self._waiting and self._waiting[0][0] <= header.last_offset:
            self._aborting.add(self._waiting.popleft()[1])
        if header.is_control:
            if self._aborting and _is_abort(batch):
                self._aborting.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._aborting


def _is_abort(batch: memoryview) -> bool:
    markers = map(parse_control, decode_records(batch, decompressed_bytes_max=CONTROL_BYTES_MAX))
    return any(marker is not None and marker.type is ControlType.ABORT for marker in markers)


def _whole_batch(data: memoryview, place: int) -> BatchHeader | None:
    """Return the header of the batch at the byte `place`; None if the batch is cut off. Raises
    CorruptionError."""
    if len(data) - place < HEADER_SIZE:
        return None
    header = read_header(data, place)
    return header if header.size <= len(data) - place else None
