"""Whether leader epochs that were read from their file are those of the batches: the file has no
checksum, and a wrong one would cut logs in the wrong place."""

from __future__ import annotations

import itertools

from pybroker.errors import CorruptionError
from pybroker.model import NO_EPOCH
from pybroker.records.batch import BatchHeader
from pybroker.storage.epochs import EpochHistory
from pybroker.storage.segments import Segments


def contradiction(history: EpochHistory, segments: Segments, log_start: int) -> str | None:
    """What the batches on both sides of each start, and the last one, say against it; None if it is
    right as far as they tell. Batches of the time before there were epochs say nothing."""
    entries = history.entries
    expected = [
        (offset, entry.epoch)
        for before, after in itertools.pairwise(entries)
        for offset, entry in ((after.start_offset - 1, before), (after.start_offset, after))
    ]
    end = segments.active.next_offset
    if entries and entries[-1].start_offset < end:
        expected.append((end - 1, entries[-1].epoch))
    starts = {entry.start_offset for entry in entries[1:]}
    for offset, epoch in expected:
        if not max(log_start, segments.first.base_offset) <= offset < end:
            continue
        header = _batch_at(segments, offset)
        if header is None or NO_EPOCH in (header.leader_epoch, epoch):
            continue
        if header.leader_epoch != epoch or (offset in starts and header.base_offset < offset):
            return (
                f"offset {offset} is of leader epoch {epoch} by the file,"
                f" and the batch from {header.base_offset} on of {header.leader_epoch}"
            )
    return None


def _batch_at(segments: Segments, offset: int) -> BatchHeader | None:
    """The header of the batch that holds the offset; None if there is none, or no telling."""
    try:
        for segment in segments.from_offset(offset):
            position = segment.locate(offset)
            if position is not None:
                _, header = next(segment.headers(position, segment.size))
                return header if header.base_offset <= offset else None
    except (CorruptionError, StopIteration):
        return None
    return None
