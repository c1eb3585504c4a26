"""Decides which part of a log may be compacted, and which log is compacted next."""

from __future__ import annotations

from dataclasses import dataclass

from pybroker.storage.log import Log
from pybroker.storage.log_config import NEVER, LogConfig
from pybroker.storage.segment import Segment


@dataclass(frozen=True, slots=True)
class Plan:
    """The part of a log that one pass of the log cleaner compacts: the first `segments`, up to the
    offset `end`.

    - `first_dirty`: the first offset that was not compacted before.
    - `dirty_bytes`: the size of the segments with offsets at or above `first_dirty`.
    - `dirty_ratio`: the share of `dirty_bytes` in all `segments`.
    - `generation`: changes with each truncation of the log.
    - `last_batches`: producer id -> last offset of its last batch; None if the batch is a marker.
    """

    log: Log
    segments: tuple[Segment, ...]
    first_dirty: int
    end: int
    dirty_bytes: int
    dirty_ratio: float
    generation: int
    last_batches: dict[int, int | None]


def plan(log: Log, cleaned_to: int | None, high_watermark: int, now_ms: int) -> Plan | None:
    """Return the part of the log that is due for compaction, or None. `cleaned_to` is the log's
    offset in cleaner-offset-checkpoint. If `cleaned_to` is None or outside the log, the whole log
    is dirty. Call this on the event loop. May raise StorageError."""
    config = log.config
    if not config.compacts or log.failure is not None or log.damage is not None:
        return None
    if cleaned_to is None or not log.log_start_offset <= cleaned_to <= log.log_end_offset:
        cleaned_to = log.log_start_offset
    segments = _cleanable(log, cleaned_to, high_watermark, now_ms)
    dirty = [each for each in segments if each.next_offset > cleaned_to]
    if not dirty:
        return None
    total = sum(each.size for each in segments)
    dirty_bytes = sum(each.size for each in dirty)
    ratio = dirty_bytes / total if total else 1.0
    is_due = config.max_compaction_lag_ms != NEVER and (
        0 <= dirty[0].first_timestamp() < now_ms - config.max_compaction_lag_ms
    )
    if ratio <= config.min_cleanable_dirty_ratio and not is_due:
        return None
    entries = log.producers.entries.values()
    last = {e.producer_id: e.batches[-1].last_offset if e.batches else None for e in entries}
    end = dirty[-1].next_offset
    generation = log.segments.generation
    return Plan(log, tuple(segments), cleaned_to, end, dirty_bytes, ratio, generation, last)


def waits_for_change(config: LogConfig) -> bool:
    """Return True if time alone cannot make the log due for compaction, because
    min.compaction.lag.ms is 0 and max.compaction.lag.ms is unlimited."""
    return config.min_compaction_lag_ms == 0 and config.max_compaction_lag_ms == NEVER


def _cleanable(log: Log, cleaned_to: int, high_watermark: int, now_ms: int) -> list[Segment]:
    first_unstable = log.producers.first_unstable
    bound = min(high_watermark, log.recovery_point)
    if first_unstable is not None:
        bound = min(bound, first_unstable)
    youngest_ms = now_ms - log.config.min_compaction_lag_ms
    found = []
    for segment in log.segments.all[:-1]:
        if segment.next_offset > bound:
            break
        has_lag = segment.next_offset > cleaned_to and log.config.min_compaction_lag_ms > 0
        if has_lag and segment.largest_timestamp()[0] > youngest_ms:
            break
        found.append(segment)
    return found
