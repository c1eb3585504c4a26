"""Decides when a log begins a new segment (rolls). No I/O."""

from __future__ import annotations

from typing import Final, NamedTuple

from pybroker.model import NO_TIMESTAMP
from pybroker.ports import Rng
from pybroker.storage.log_config import LogConfig
from pybroker.storage.offset_index import ENTRY as OFFSET_ENTRY
from pybroker.storage.segment import Appended, Segment
from pybroker.storage.time_index import ENTRY as TIME_ENTRY

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
"""The largest offset, relative to the base offset of a segment, that fits in an index entry."""


def is_due(
    active: Segment,
    batch: Appended,
    config: LogConfig,
    *,
    pending_bytes: int,
    jitter_ms: int,
    age_ms: int,
) -> bool:
    """Return whether `batch` must go to a new segment. `pending_bytes` is the size of earlier
    batches still to be written to `active`. The age of `active` is measured by record timestamps,
    or is `age_ms` if a timestamp is missing."""
    if batch.last_offset - active.base_offset > RELATIVE_OFFSET_MAX:
        return True
    size = active.size + pending_bytes
    if not size:
        return False
    if size + batch.size > config.segment_bytes:
        return True
    if active.indexes_reach(config.segment_index_bytes):
        return True
    first_ms = active.first_timestamp() if active.size else NO_TIMESTAMP
    if first_ms >= 0 and batch.max_timestamp >= 0:
        age_ms = batch.max_timestamp - first_ms
    return age_ms > config.segment_ms - jitter_ms


class Room(NamedTuple):
    """Limits for a batch. A batch within the limits certainly needs no new segment."""

    size_bytes: int
    last_offset: int
    timestamp_ms: int
    """The limit of the batch's timestamp; -1 if `is_due` must check the age for each batch."""


NO_ROOM: Final = Room(-1, -1, -1)


def room_of(active: Segment, config: LogConfig, jitter_ms: int) -> Room:
    """Return the limits for batches in the segment `active`. A batch within these limits certainly
    needs no new segment."""
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
    """The state that decides when one log begins its next segment."""

    __slots__ = ("_begun_ms", "_jitter_ms", "_rng", "room")

    def __init__(self, rng: Rng, config: LogConfig) -> None:
        self._rng = rng
        self._begun_ms = 0
        self.begin(config, 0)

    def begin(self, config: LogConfig, now_ms: int) -> None:
        """Adapt to a new segment or to a new configuration. `now_ms` is the wall-clock time at
        which the new segment was begun. If only the configuration is new, `now_ms` is 0, and the
        active segment keeps its age."""
        self.room = NO_ROOM
        """The limits for the next batch in the active segment; NO_ROOM if they are unknown."""
        self._begun_ms = now_ms or self._begun_ms
        # As in Kafka; with more jitter, every batch would get a segment of its own.
        limit = min(config.segment_jitter_ms, config.segment_ms)
        self._jitter_ms = self._rng.randrange(limit) if limit > 0 else 0

    def written(self, now_ms: int) -> None:
        """Record that a batch was written at the wall-clock time `now_ms`."""
        if not self._begun_ms:
            self._begun_ms = now_ms

    def is_due(
        self, active: Segment, batch: Appended, config: LogConfig, now_ms: int, pending_bytes: int
    ) -> bool:
        """Return whether `batch` must go to a new segment. `pending_bytes` is the size of earlier
        batches still to be written. If the result is False, `room` has limits afterwards: a later
        batch within the limits needs no new segment."""
        room = self.room
        if (
            active.size + pending_bytes + batch.size <= room.size_bytes
            and batch.last_offset <= room.last_offset
            and 0 <= batch.max_timestamp <= room.timestamp_ms
        ):
            return False
        if is_due(
            active,
            batch,
            config,
            pending_bytes=pending_bytes,
            jitter_ms=self._jitter_ms,
            age_ms=now_ms - self._begun_ms if self._begun_ms else 0,
        ):
            return True
        self.room = room_of(active, config, self._jitter_ms)
        return False
