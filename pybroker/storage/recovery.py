"""Recovery of a log that was not closed cleanly. It checks every batch from the recovery point on.

- An incomplete last write (a torn tail) has no valid batch after it. Recovery saves its bytes in a
  file beside the log, and cuts them off.
- A corrupt range was once written completely. Recovery keeps it, because later records may have
  been acknowledged. Readers get only the records before the range.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.ports import Disk, File
from pybroker.records.batch import (
    CHECKED_POSITION,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    crc_matches,
    read_header,
)
from pybroker.records.crc32c import checksum
from pybroker.storage.filename import corrupt_file
from pybroker.storage.log_parts import Damage
from pybroker.storage.segment import Segment
from pybroker.storage.segment_files import set_aside

log = logging.getLogger(__name__)
CHUNK_BYTES: Final = 4 * 1024**2
SEARCH_BYTES_MAX: Final = 128 * 1024**2
"""The number of bytes in which recovery searches for a valid batch after an invalid one. It is
longer than any batch, since requests are limited to 100 MiB."""
_BATCH_SEARCHED_MAX: Final = 101 * 1024**2
_OFFSET_BYTES: Final = 8
_ENDS_TRIED_MAX: Final = 64


class ScanEnd(NamedTuple):
    """The end of the valid batches of a segment. `reason` says why the next batch is invalid; None
    at the end of the file. `is_complete`: the invalid batch has its full length."""

    position: int
    next_offset: int
    reason: str | None
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of recovery. `damage` is the first corrupt range; `unreachable` are the segments
    after it, and `segments` are all others. `cut_bytes` is the number of bytes cut off."""

    segments: tuple[Segment, ...]
    damage: Damage | None = None
    unreachable: tuple[Segment, ...] = ()
    cut_bytes: int = 0


Visit = Callable[[int, BatchHeader], str | None]
"""Called with the position and the header of a valid batch. Returns a reason to reject the batch,
or None to accept it."""


def scan(
    file: File,
    size: int,
    position: int,
    next_offset: int,
    visit: Visit,
    *,
    may_have_gaps: bool = True,
) -> ScanEnd:
    """Call `visit` for each valid batch in `file` from `position` on, and return the end of the
    valid batches. If `may_have_gaps` is False, a gap between the offsets of the last two batches
    ends the valid batches before the last one."""
    chunk = b""
    start = position
    while position < size:
        left = size - position
        if start + len(chunk) - position < min(HEADER_SIZE, left):
            start, chunk = position, file.pread(position, min(CHUNK_BYTES, left))
        try:
            header = read_header(chunk, position - start)
        except CorruptionError as error:
            return ScanEnd(position, next_offset, str(error), _is_complete(file, position, size))
        if header.size > left:
            reason = f"the batch has {header.size} bytes, the file has only {left} more bytes"
            is_complete = _is_complete(file, position, size)
            return ScanEnd(position, next_offset, reason, is_complete)
        if position + header.size > start + len(chunk):
            start, chunk = position, file.pread(position, min(max(CHUNK_BYTES, header.size), left))
        if not crc_matches(chunk, position - start, header.size):
            is_next = header.base_offset >= next_offset
            return ScanEnd(position, next_offset, "the batch's checksum is wrong", is_next)
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            return ScanEnd(
                position,
                next_offset,
                f"the batch begins at offset {header.base_offset}, expected {next_offset} or more",
                True,
            )
        if header.base_offset > next_offset and _is_too_high(file, position, size, next_offset):
            return ScanEnd(
                position,
                next_offset,
                f"the batch begins at offset {header.base_offset}, expected {next_offset}: the"
                " next batch has a lower offset",
            )
        if (
            header.base_offset > next_offset
            and not may_have_gaps
            and not _is_plausible_batch(file, position + header.size, size)
        ):
            reason = f"the last batch begins at offset {header.base_offset}, expected {next_offset}"
            return ScanEnd(position, next_offset, reason, True)
        objection = visit(position, header)
        if objection is not None:
            return ScanEnd(position, next_offset, objection, True)
        position += header.size
        next_offset = header.next_offset
    return ScanEnd(position, next_offset, None)


def _is_plausible_batch(file: File, position: int, size: int) -> bool:
    """Return whether a complete batch with a plausible header begins at `position`."""
    try:
        return position + read_header(file.pread(position, HEADER_SIZE), 0).size <= size
    except CorruptionError:
        return False


def _is_too_high(file: File, position: int, size: int, expected: int) -> bool:
    """Return whether the base offset of the batch at `position` is too high. `expected` is the end
    offset of the previous batch. The proof is the next batch: it is valid, and it begins at or
    above `expected`, but below the end offset of the batch at `position`."""
    header = read_header(file.pread(position, HEADER_SIZE), 0)
    behind = position + header.size
    chunk = file.pread(behind, HEADER_SIZE)
    try:
        successor = read_header(chunk, 0)
    except CorruptionError:
        return False
    is_between = expected <= successor.base_offset < header.next_offset
    return is_between and _is_batch(file, chunk, 0, behind, size, expected)


def _is_complete(file: File, position: int, size: int) -> bool:
    """Return whether all bytes of the invalid batch at `position` are in the file. The batch's
    length field or magic byte may be corrupt, so several batch ends are tried."""
    # The checksum covers neither field. So it is computed for several ends of the batch: each
    # position where the next base offset follows, and the last 8 positions of the file.
    left = size - position
    if left < HEADER_SIZE:
        return False
    data = file.pread(position, min(left, _BATCH_SEARCHED_MAX))
    header = BatchHeader._make(HEADER.unpack_from(data))
    ends = [left - few for few in range(_OFFSET_BYTES) if HEADER_SIZE <= left - few <= len(data)]
    if 0 <= header.next_offset < 2**63:
        following, end = header.next_offset.to_bytes(_OFFSET_BYTES, "big"), HEADER_SIZE
        while len(ends) < _ENDS_TRIED_MAX and (end := data.find(following, end)) >= 0:
            ends.append(end)
            end += 1
    view = memoryview(data)
    return any(checksum(view[CHECKED_POSITION:end]) == header.crc for end in ends)


def valid_batch_after(file: File, position: int, size: int, next_offset: int) -> int | None:
    """Return the position of the first valid batch after `position` with a base offset of at least
    `next_offset`; None if there is none within SEARCH_BYTES_MAX."""
    end = min(size, position + SEARCH_BYTES_MAX)
    place = position + 1
    while place + HEADER_SIZE <= end:
        chunk = file.pread(place, min(CHUNK_BYTES, end - place))
        found = chunk.find(MAGIC, MAGIC_POSITION)
        while found >= 0:
            begin = found - MAGIC_POSITION
            if _is_batch(file, chunk, begin, place + begin, size, next_offset):
                return place + begin
            found = chunk.find(MAGIC, found + 1)
        place += max(1, len(chunk) - HEADER_SIZE + 1)
    return None


def _is_batch(
    file: File, chunk: bytes, begin: int, position: int, size: int, next_offset: int
) -> bool:
    try:
        header = read_header(chunk, begin)
    except CorruptionError:
        return False
    plausible = (
        header.base_offset >= next_offset
        and header.last_offset_delta >= 0
        and position + header.size <= size
        and header.size <= _BATCH_SEARCHED_MAX
    )
    if not plausible:
        return False
    if begin + header.size <= len(chunk):
        return crc_matches(chunk, begin, header.size)
    return crc_matches(file.pread(position, header.size), 0, header.size)


def recover(
    segments: Sequence[Segment],
    disk: Disk,
    *,
    recovery_point: int,
    floor_offset: int,
    gapless_from: int,
    trusts_indexes: bool,
    index_interval_bytes: int,
    visit: Visit,
    accepts_loss: bool = False,
) -> Recovered:
    """Check a log from its recovery point on, and cut off a torn tail.

    - `floor_offset`: a log that ends below this offset is damaged.
    - `gapless_from`: a gap between two segments must end at or below this offset.
    - `trusts_indexes`: True if neither the machine nor a disk has failed. If False, rebuild the
      index files; a complete batch with a wrong checksum or header may then be a torn tail.
    - `accepts_loss`: cut off all records from the first corrupt range on.
    """
    first = max(
        (n for n, segment in enumerate(segments) if segment.base_offset <= recovery_point),
        default=0,
    )
    if not trusts_indexes:
        # The segment before may have ended shortly before the crash. Only the next flush would
        # have synced its indexes.
        for segment in segments[max(0, first - 1) : first]:
            segment.rebuild_indexes(index_interval_bytes)
    expected = segments[first].base_offset
    for number in range(first, len(segments)):
        segment = segments[number]
        if segment.base_offset < expected:
            reason = f"the segment begins below offset {expected}, where the previous segment ends"
            return _damaged(segments, number, ScanEnd(0, expected, reason))
        if not trusts_indexes:
            segment.clear_indexes()
        may_have_gaps = gapless_from > 0
        end = _recover_segment(segment, recovery_point, index_interval_bytes, visit, may_have_gaps)
        segment.end_at(end.position, end.next_offset)
        if end.reason is None and number + 1 < len(segments):
            following = segments[number + 1].base_offset
            if following > max(end.next_offset, gapless_from):
                reason = (
                    f"the segment ends at {end.next_offset}, the next one begins at {following}"
                )
                end = end._replace(reason=reason)
        if end.reason is None:
            expected = end.next_offset
            continue
        # After a kill of the process the last write has left a prefix of its bytes, and never a
        # whole corrupt batch.
        is_corrupt_header = trusts_indexes and end.is_complete
        if accepts_loss or (
            not is_corrupt_header and _is_torn_tail(segments, number, end, floor_offset)
        ):
            cut = _cut(segments, number, end, disk)
            return _end_of(segments[: number + 1], floor_offset, cut)
        return _damaged(segments, number, end)
    return _end_of(segments, floor_offset, 0)


def _end_of(segments: Sequence[Segment], floor_offset: int, cut_bytes: int) -> Recovered:
    """Return the result for a log in which all batches are valid. If the log ends below
    `floor_offset`, records are missing at its end: the result then has a Damage."""
    last = segments[-1]
    for segment in segments[:-1]:
        segment.seal()
    if last.next_offset >= floor_offset:
        return Recovered(tuple(segments), None, (), cut_bytes)
    reason = f"the log ends at offset {last.next_offset}, expected {floor_offset} or more"
    return Recovered(
        tuple(segments),
        Damage(last.next_offset, last.path, last.size, reason),
        (),
        cut_bytes,
    )


def _recover_segment(
    segment: Segment,
    recovery_point: int,
    index_interval_bytes: int,
    visit: Visit,
    may_have_gaps: bool,
) -> ScanEnd:
    size = segment.size
    position, next_offset = _end_of_offsets_below(segment, recovery_point)
    segment.resume_at(position, next_offset)

    def note(place: int, header: BatchHeader) -> str | None:
        objection = visit(place, header)
        if objection is None:
            segment.note(place, header, index_interval_bytes)
        return objection

    end = scan(segment.file, size, position, next_offset, note, may_have_gaps=may_have_gaps)
    segment.transactions.doubt()
    segment.transactions.truncate(end.next_offset)
    return end


def _end_of_offsets_below(segment: Segment, offset: int) -> tuple[int, int]:
    """Return the position after the last batch below `offset`, and the offset that follows this
    batch. Checksums are not computed."""
    position, next_offset = 0, segment.base_offset
    if offset <= segment.base_offset:
        return position, next_offset
    if segment.offsets.is_plausible(segment.size):
        entry = segment.offsets.floor(offset - 1)
        header = None if entry is None else segment.batch_of(entry)
        if entry is not None and header is not None:
            position, next_offset = entry.position, header.base_offset
    try:
        for place, header in segment.headers(position, segment.size):
            if header.next_offset > offset:
                break
            position, next_offset = place + header.size, header.next_offset
    except CorruptionError:
        # The scan from here reports the damage.
        return position, next_offset
    return position, next_offset


def _is_torn_tail(
    segments: Sequence[Segment], number: int, end: ScanEnd, floor_offset: int
) -> bool:
    """Return whether the bytes after `end` are a torn tail: no valid batch is among them, and all
    records below `floor_offset` are before `end`."""
    if end.next_offset < floor_offset:
        return False
    for later in segments[number + 1 :]:
        if valid_batch_after(later.file, -1, later.size, end.next_offset) is not None:
            return False
    segment = segments[number]
    size = segment.file.size()
    return valid_batch_after(segment.file, end.position, size, end.next_offset) is None


def _cut(segments: Sequence[Segment], number: int, end: ScanEnd, disk: Disk) -> int:
    """Cut the log off at `end`. Save the cut bytes in other files, unless all are zero. Return the
    number of cut bytes."""
    segment = segments[number]
    file = segment.file
    cut_bytes = file.size() - end.position
    kept_at = ""
    if not _all_zero(file, end.position):
        kept_at = _free_name(segment, end.position, disk)
        copy_from(file, end.position, disk, kept_at)
    file.truncate(end.position)
    for later in segments[number + 1 :]:
        cut_bytes += later.size
        set_aside(later, disk)
    log.warning(
        "torn tail cut path=%s position=%d bytes=%d next_offset=%d reason=%r kept_at=%s",
        segment.path,
        end.position,
        cut_bytes,
        end.next_offset,
        end.reason,
        kept_at or "- (all zero)",
    )
    return cut_bytes


def _free_name(segment: Segment, position: int, disk: Disk) -> str:
    name = segment.path.rpartition("/")[2]
    candidates = (
        f"{segment.directory}/{corrupt_file(name, position, number)}"
        for number in itertools.count()
    )
    return next(path for path in candidates if not disk.exists(path))


def _all_zero(file: File, position: int) -> bool:
    size = file.size()
    while position < size:
        chunk = file.pread(position, min(CHUNK_BYTES, size - position))
        if any(chunk):
            return False
        position += len(chunk)
    return True


def copy_from(file: File, position: int, disk: Disk, path: str) -> None:
    """Create a file at `path` with the bytes of `file` from `position` on, and sync it."""
    copy = disk.open(path, create=True)
    size = file.size()
    while position < size:
        chunk = file.pread(position, min(CHUNK_BYTES, size - position))
        copy.append(chunk)
        position += len(chunk)
    copy.sync()
    copy.close()


def _damaged(segments: Sequence[Segment], number: int, end: ScanEnd) -> Recovered:
    segment = segments[number]
    reason = end.reason or "unknown"
    log.error(
        "log damaged path=%s position=%d offset=%d reason=%r: the broker serves no"
        " records at or after this offset",
        segment.path,
        end.position,
        end.next_offset,
        reason,
    )
    if segment.base_offset < end.next_offset and not end.position:
        # The segment overlaps the previous one, so the log ends with the previous one.
        kept, unreachable = segments[:number], segments[number:]
    else:
        kept, unreachable = segments[: number + 1], segments[number + 1 :]
    return Recovered(
        tuple(kept),
        Damage(end.next_offset, segment.path, end.position, reason),
        tuple(unreachable),
    )
