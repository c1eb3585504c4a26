"""When a segment ends and the next one begins. Does no I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from pybroker.model import NO_TIMESTAMP
from pybroker.ports import Rng
from pybroker.storage.log_config import LogConfig
from pybroker.storage.offset_index import ENTRY as OFFSET_ENTRY
from pybroker.storage.segment import Appended, Segment
from pybroker.storage.time_index import ENTRY as TIME_ENTRY

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""What an index entry can hold."""


def is_due(
    active: Segment,
    batch: Appended,
    config: LogConfig,
    *,
    pending_bytes: int,
    jitter_ms: int,
    age_ms: int,
) -> bool:
    """Whether `active` must end before `batch` is written to it, behind `pending_bytes` that are
    about to be: it would get too large, its index is full, the offset is too far from its base, or
    it is too old.

    The age is the time between its first batch and this one by their timestamps; `age_ms`, the
    time since the segment was begun, serves records without timestamps. Jitter ends segments
    earlier, so that those of many partitions do not all end together.
    """
    size = active.size + pending_bytes
    if not size:
        return False
    if size + batch.size > config.segment_bytes:
        return True
    if batch.last_offset - active.base_offset > RELATIVE_OFFSET_MAX:
        return True
    if active.indexes_reach(config.segment_index_bytes):
        return True
    first_ms = active.first_timestamp() if active.size else NO_TIMESTAMP
    if first_ms >= 0 and batch.max_timestamp >= 0:
        age_ms = batch.max_timestamp - first_ms
    return age_ms > config.segment_ms - jitter_ms


class Room(NamedTuple):
    """Up to where a segment surely goes on: no batch that keeps to these is due. Beyond them only
    `is_due` knows."""

    size_bytes: int
    last_offset: int
    timestamp_ms: int
    """-1: the age has to be looked at for each batch."""


NO_ROOM: Final = Room(-1, -1, -1)


def room_of(active: Segment, config: LogConfig, jitter_ms: int) -> Room:
    """The room of a segment as it is now. Looking at everything for each batch costs more than
    writing it.

    An index entry is only made behind more than `index_interval_bytes` of log, so a number of
    entries that are free stands for a number of bytes.
    """
    first_ms = active.first_timestamp() if active.size else NO_TIMESTAMP
    free_entries = min(
        (config.segment_index_bytes - active.offsets.table.size_bytes) // OFFSET_ENTRY.size,
        (config.segment_index_bytes - active.times.table.size_bytes) // TIME_ENTRY.size,
    )
    indexed_bytes = max(free_entries - 2, 0) * config.index_interval_bytes
    return Room(
        min(config.segment_bytes, active.size + indexed_bytes),
        active.base_offset + RELATIVE_OFFSET_MAX,
        first_ms + config.segment_ms - jitter_ms if first_ms >= 0 else -1,
    )


class SegmentRoll:
    """What one log remembers of its active segment, to tell when it ends."""

    __slots__ = ("_begun_ms", "_jitter_ms", "_rng", "room")

    def __init__(self, rng: Rng, config: LogConfig) -> None:
        self._rng = rng
        self._begun_ms = 0
        self.begin(config, 0)

    def begin(self, config: LogConfig, now_ms: int) -> None:
        """A new segment is active, or another configuration holds (`now_ms` 0: the segment is as
        old as it was)."""
        self.room = NO_ROOM
        """Of the active segment, or less."""
        self._begun_ms = now_ms or self._begun_ms
        # As in Kafka; with more, every batch would get a segment of its own.
        limit = min(config.segment_jitter_ms, config.segment_ms)
        self._jitter_ms = self._rng.randrange(limit) if limit > 0 else 0

    def written(self, now_ms: int) -> None:
        """A batch was written; the first tells when the segment begins."""
        if not self._begun_ms:
            self._begun_ms = now_ms

    def measure(self, active: Segment, config: LogConfig) -> None:
        """Find out how much room the segment has."""
        self.room = room_of(active, config, self._jitter_ms)

    def is_due(
        self, active: Segment, batch: Appended, config: LogConfig, now_ms: int, pending_bytes: int
    ) -> bool:
        """Whether the active segment must end before `batch`, with `pending_bytes` about to be
        written to it."""
        return is_due(
            active,
            batch,
            config,
            pending_bytes=pending_bytes,
            jitter_ms=self._jitter_ms,
            age_ms=now_ms - self._begun_ms if self._begun_ms else 0,
        )
