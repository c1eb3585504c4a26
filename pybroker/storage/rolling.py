"""When a segment ends and the next one begins. Pure."""

from __future__ import annotations

from typing import Final

from pybroker.model import NO_TIMESTAMP
from pybroker.storage.log_config import LogConfig
from pybroker.storage.segment import Appended, Segment

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
    if active.indexes_reach(config.index_size_bytes_max):
        return True
    first_ms = active.first_timestamp() if active.size else NO_TIMESTAMP
    if first_ms >= 0 and batch.max_timestamp >= 0:
        age_ms = batch.max_timestamp - first_ms
    return age_ms > config.segment_ms - jitter_ms
