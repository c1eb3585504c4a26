"""The position in a range, and the effect of a Fetch answer on it. Plain code.

The position moves by whole batches, whatever they hold: it passes markers, aborted records and
batches emptied by compaction, and so reaches the end of a range whose last offsets are such. It
never goes back.
"""

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
"""The first offset, and the one after the last."""

OFFSET_BYTES = 8
"""The base offset, the first field of a batch."""
CONTROL_BYTES_MAX = 1 << 20
"""A marker is less than a hundred bytes, and never compressed."""


class RangeCursor:
    """`start` <= `position` <= `end`. `end` moves only down, if the rest turns out to be lost."""

    def __init__(self, wanted: PartitionRange, *, committed_only: bool) -> None:
        self.position = wanted.start
        self.end = wanted.end
        self.first = wanted.start
        """Records before this offset are not part of the range, although a batch may hold them."""
        self.delivered = NO_OFFSET
        """The end of the last batch that was returned, -1 if there was none."""
        self.gaps: list[Gap] = []
        """Offsets below the position that no batch covered. Compaction leaves such gaps, and so
        does a log start that moves meanwhile: the log start afterwards shows which."""
        self.damage: str | None = None
        """Why the batch at the position cannot be used."""
        self._committed_only = committed_only
        self._follows_batch = False
        """The position is the end of a batch, so the next batch must not begin before it."""

    @property
    def done(self) -> bool:
        return self.position >= self.end

    def skip_to(self, offset: int) -> None:
        """Continue behind offsets that are known to be missing."""
        self.position = self.first = max(self.position, min(offset, self.end))
        self._follows_batch = False

    def accept(
        self, data: Buffer, aborted: Iterable[tuple[int, int]], committed_end: int
    ) -> list[Batch]:
        """Return the data batches of an answer that overlap the range, in order. The first and the
        last may reach beyond it. `aborted` are (first offset, producer id) of aborted transactions,
        and no batch may reach beyond `committed_end`, the high watermark.

        It stops at a damaged batch, with `damage` set and the position before the batch.
        """
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
            self.damage = f"the batch at {self.position} is cut off"
        return found

    def _check(self, header: BatchHeader, rest: memoryview, committed_end: int) -> None:
        """Check a batch. Raises CorruptionError. Offsets lie outside the checksum, but must agree
        with the committed end and with the next batch."""
        base, beyond = header.base_offset, header.next_offset
        if not crc_matches(rest, 0, header.size):
            raise CorruptionError(f"the checksum of the batch at {base} is wrong")
        if not 0 <= base < beyond <= committed_end:
            raise CorruptionError(
                f"a batch has the offsets {base} to {beyond - 1}, where {self.position} was due and"
                f" {committed_end} is the end"
            )
        behind = bytes(rest[header.size :][:OFFSET_BYTES])
        if len(behind) == OFFSET_BYTES and int.from_bytes(behind, "big", signed=True) < beyond:
            raise CorruptionError(
                f"a batch has the offsets {base} to {beyond - 1}, and the one behind it begins at"
                f" {int.from_bytes(behind, 'big', signed=True)}"
            )
        if base < self.position < beyond and self._follows_batch:
            raise CorruptionError(f"a batch begins at {base}, where {self.position} was due")

    def _step(self, header: BatchHeader, is_aborted: bool) -> bool:
        """Move past a batch. Return whether the user gets its records."""
        base, beyond = header.base_offset, header.next_offset
        if beyond <= self.position:
            return False
        if base > self.position:
            self.gaps.append((self.position, min(base, self.end)))
        self.position = min(beyond, self.end)
        self._follows_batch = True
        is_data = not header.is_control and header.record_count > 0
        return base < self.end and is_data and not is_aborted


class _Aborts:
    """Tells, batch by batch, which producers' batches belong to an aborted transaction."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._waiting = deque(sorted(aborted))
        self._aborting: set[int] = set()

    def meet(self, header: BatchHeader, batch: memoryview) -> bool:
        """Whether the next batch is left out. Raises CorruptionError."""
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
    """Return the header of the batch there; None if less than a whole batch is left, as brokers may
    cut off the last one. Raises CorruptionError."""
    if len(data) - place < HEADER_SIZE:
        return None
    header = read_header(data, place)
    return header if header.size <= len(data) - place else None
