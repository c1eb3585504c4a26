"""Computes the content of checkpoint files. The high watermark and the recovery point of a damaged
log are never lowered. With lower values, recovery would mistake the corrupt range for an incomplete
last write, and cut it off."""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.model import TopicPartition
from pybroker.storage.log import Log

Offsets = Mapping[TopicPartition, int]
Logs = Mapping[TopicPartition, Log]


def high_watermarks(logs: Logs, known: Offsets, current: Offsets) -> dict[TopicPartition, int]:
    """Return partition -> the high watermark that the new checkpoint contains. `current` has the
    values in memory, `known` the values in the present checkpoint file."""
    result = {}
    for key, log in logs.items():
        old = known.get(key, 0)
        result[key] = old if log.damage else min(current.get(key, old), log.log_end_offset)
    return result


def recovery_points(logs: Logs, known: Offsets) -> dict[TopicPartition, int]:
    return {
        key: known.get(key, log.recovery_point) if log.damage else log.recovery_point
        for key, log in logs.items()
    }


def log_starts(logs: Logs) -> dict[TopicPartition, int]:
    """Return partition -> log start offset, for each log whose log start offset is above the base
    offset of its first segment."""
    return {
        key: log.log_start_offset
        for key, log in logs.items()
        if log.log_start_offset > log.first_base_offset
    }
