"""Searches a log for batches that have changed since they were written. The check uses the checksum
of each batch, and compares header fields of neighbouring batches. Read-only."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.model import NO_EPOCH
from pybroker.ports import Buffer
from pybroker.records.batch import (
    BATCH_LENGTH_MIN,
    CHECKED_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    crc_matches,
    read_header,
)
from pybroker.records.crc32c import checksum
from pybroker.storage.epochs import EPOCH_MAX
from pybroker.storage.log import Log
from pybroker.storage.log_parts import Damage
from pybroker.storage.segment import Segment

_OUTLINE: Final = struct.Struct(">qiibI2xi")
"""The header fields of a batch that are checked: base offset, batch length, leader epoch, magic,
checksum, last offset delta."""
OFFSET_END: Final = 2**63 - 1

EpochOf = Callable[[int], int]
"""Returns the leader epoch of the record at an offset; -1 if it is unknown."""


class Whole(NamedTuple):
    """How far some data, read from its start, has only valid batches. `position` is the byte
    position after the last of these batches. `next_offset` is the offset after their last
    record."""

    position: int
    next_offset: int


def whole(
    data: Buffer, offset: int = 0, end_offset: int = OFFSET_END, epoch_of: EpochOf | None = None
) -> Whole:
    """Return the end of the valid batches at the start of `data`. A batch is valid if all hold:

    - Its checksum is right.
    - Its first offset is at least `offset`, and above the last offset of the previous batch.
    - Its last offset is below `end_offset`.
    - Its leader epoch does not contradict `epoch_of`, if given.
    """
    view = memoryview(data)
    size, position, epoch = len(view), 0, NO_EPOCH
    while position + HEADER_SIZE <= size:
        base, length, its_epoch, magic, stored, delta = _OUTLINE.unpack_from(view, position)
        end = position + LOG_OVERHEAD + length
        if (
            length < BATCH_LENGTH_MIN
            or magic != MAGIC
            or end > size
            or delta < 0
            or not offset <= base <= base + delta < end_offset
            or checksum(view[position + CHECKED_POSITION : end]) != stored
        ):
            break
        if epoch_of is not None and its_epoch != epoch:
            if _epoch_fault(base, its_epoch, epoch_of) is not None:
                break
            epoch = its_epoch
        offset, position = base + delta + 1, end
    return Whole(position, offset)


@dataclass(frozen=True, slots=True)
class Place:
    """The place where the check of a log continues: a position in the segment with `base_offset`.
    The batch there must begin at `offset` or later."""

    base_offset: int
    position: int
    offset: int


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of a check. `place` is where the check continues; None at the end of the log, or
    after damage. `segment` is the damaged segment."""

    place: Place | None
    checked_bytes: int
    damage: Damage | None = None
    segment: Segment | None = None


def look(log: Log, place: Place | None, bytes_max: int, epoch_max: int = EPOCH_MAX) -> Looked:
    """Check about `bytes_max` bytes of the log from `place` on (None: from its beginning). Leader
    epochs above `epoch_max` are invalid. Waits for the disk. Raises StorageError."""
    epoch_of = _bounded(log.epoch_of, epoch_max)
    segment = log.segments.first if place is None else _segment_at(log, place)
    if segment is None:
        return Looked(None, 0)
    size, next_offset = segment.end
    if place is None or place.base_offset != segment.base_offset:
        place = Place(segment.base_offset, 0, segment.base_offset)
    position, offset = place.position, place.offset
    if position < size:
        data = segment.file.pread(position, min(bytes_max, size - position))
        length, offset = whole(data, offset, next_offset, epoch_of)
        if not length:
            fault, length, offset = _check(segment, position, offset, epoch_of)
            if fault is not None:
                return Looked(None, 0, Damage(offset, segment.path, position, fault), segment)
        position += length
    checked = position - place.position
    if position < size:
        return Looked(Place(segment.base_offset, position, offset), checked)
    following = _segment_at(log, Place(segment.base_offset + 1, 0, 0))
    if following is None:
        return Looked(None, checked)
    return Looked(Place(following.base_offset, 0, following.base_offset), checked)


def is_confirmed(log: Log, looked: Looked, epoch_max: int = EPOCH_MAX) -> bool:
    """Check again the batch in which `look` has found damage. Return False if the batch is intact,
    truncated or deleted. Call this in the thread that changes the log."""
    damage, segment = looked.damage, looked.segment
    if damage is None or segment is None or log.failure is not None or log.damage is not None:
        return False
    if not any(each is segment for each in log.segments.all) or damage.position >= segment.size:
        return False
    epoch_of = _bounded(log.epoch_of, epoch_max)
    return _check(segment, damage.position, damage.offset, epoch_of)[0] is not None


def _bounded(epoch_of: EpochOf, epoch_max: int) -> EpochOf:
    """Return a function like `epoch_of` whose results are at most `epoch_max`."""
    # The broker may have learned a higher leader epoch from a corrupt batch.
    return lambda offset: min(epoch_of(offset), epoch_max)


def _segment_at(log: Log, place: Place) -> Segment | None:
    """Return the segment that contains `place`. If this segment was deleted, return the next
    segment. Return None if there is no next segment."""
    return next((s for s in log.segments.all if s.base_offset >= place.base_offset), None)


def _check(
    segment: Segment, position: int, offset: int, epoch_of: EpochOf
) -> tuple[str | None, int, int]:
    """Return the fault of the batch at `position` (None if it is valid), its length in bytes, and
    the lowest allowed offset of the next batch."""
    size, next_offset = segment.end
    try:
        header = read_header(segment.file.pread(position, HEADER_SIZE))
    except CorruptionError as error:
        return str(error), 0, offset
    if header.size > size - position:
        left = size - position
        return f"the batch has {header.size} bytes, the file has only {left} more", 0, offset
    if not crc_matches(segment.file.pread(position, header.size), 0, header.size):
        return "the batch's checksum is wrong", 0, offset
    if not offset <= header.base_offset <= header.last_offset < next_offset:
        return (
            f"the batch has the offsets {header.base_offset} to {header.last_offset},"
            f" expected {offset} to {next_offset - 1}",
            0,
            offset,
        )
    fault = _epoch_fault(header.base_offset, header.leader_epoch, epoch_of)
    return fault, header.size, offset if fault is not None else header.next_offset


def _epoch_fault(base_offset: int, epoch: int, epoch_of: EpochOf) -> str | None:
    """Return the fault of `epoch`, the leader epoch of the batch at `base_offset`. Return None if
    `epoch` is right, or if `epoch` or the expected epoch is unknown."""
    known = epoch_of(base_offset)
    if NO_EPOCH in (known, epoch) or known == epoch:
        return None
    return f"the batch at offset {base_offset} has leader epoch {epoch}, expected {known}"
