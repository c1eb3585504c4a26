"""The rules of retention: which segments of a log are deleted. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pybroker.storage.log_config import UNLIMITED, LogConfig


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """The facts about a segment that retention needs. `size` is in bytes. `timestamp` returns the
    time (ms since 1970) from which the age counts."""

    next_offset: int
    size: int
    timestamp: Callable[[], int]


def expired(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    now_ms: int,
    log_start_offset: int,
    high_watermark: int,
    by_age: bool = True,
) -> int:
    """Return how many of the oldest segments may be deleted.

    A segment with records at or above the high watermark must stay, and so must an empty last
    segment. Any other segment may be deleted in two cases:

    - It is below the log start offset.
    - The cleanup policy is delete, `by_age` is True, and retention.ms or retention.bytes permits
      it. retention.bytes permits it if the later segments together have at least that many bytes.
    """
    surplus = sum(segment.size for segment in segments) - config.retention_bytes
    count = 0
    for segment in segments:
        if segment.next_offset > high_watermark:
            break
        if segment is segments[-1] and not segment.size:
            break
        below_start = segment.next_offset <= log_start_offset
        too_large = config.retention_bytes != UNLIMITED and surplus >= segment.size
        if not below_start:
            if not (config.deletes and by_age):
                break
            too_old = (
                config.retention_ms != UNLIMITED
                and now_ms - segment.timestamp() > config.retention_ms
            )
            if not (too_large or too_old):
                break
        surplus -= segment.size
        count += 1
    return count
