"""What the checkpoints of a directory say of its logs. Pure; writing them is `directory.py`'s.

What is known of a damaged log stays as it was: it tells how far the log had reached, and without it
the next start would take the hole for a torn tail and serve a shorter log.
"""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.model import TopicPartition
from pybroker.storage.log import Log

Offsets = Mapping[TopicPartition, int]
Logs = Mapping[TopicPartition, Log]


def high_watermarks(logs: Logs, known: Offsets, told: Offsets) -> dict[TopicPartition, int]:
    """`told` are those of now, `known` those of the file."""
    wanted = {**known, **told}
    return {
        key: known.get(key, 0) if log.damage else min(wanted.get(key, 0), log.log_end_offset)
        for key, log in logs.items()
    }


def recovery_points(logs: Logs, known: Offsets) -> dict[TopicPartition, int]:
    return {
        key: known.get(key, log.recovery_point) if log.damage else log.recovery_point
        for key, log in logs.items()
    }


def log_starts(logs: Logs) -> dict[TopicPartition, int]:
    """Only where a log starts inside a segment; else the files' names say it."""
    return {
        key: log.log_start_offset
        for key, log in logs.items()
        if log.log_start_offset > log.first_base_offset
    }
