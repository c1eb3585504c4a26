"""Decides the next step of a follower after each answer of its leader. Pure functions.

A log that differs from the leader's is truncated epoch by epoch (KIP-101, KIP-279, KIP-595). A
fetch contains the last leader epoch of the follower's log. The leader answers with E, the largest
epoch in its log that is not above the epoch in the fetch, and with the end offset of E. The
follower truncates its log to the smaller of both logs' end offsets of E, and fetches again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from pybroker.errors import ErrorCode
from pybroker.model import NO_EPOCH, NO_OFFSET
from pybroker.ports import Buffer, FetchedPartition, FetchPosition

BASE_OFFSET_LENGTH: Final = 8
"""The length in bytes of the base offset at the start of each batch."""
_LEADER_EPOCH: Final = slice(12, 16)
"""The position of the partition leader epoch in a batch."""


class ReplicaLog(Protocol):
    """The part of a follower's log that is needed to decide the follower's next step."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Append:
    """Step: append the records of the leader's answer, if any, and adopt the leader's high
    watermark and log start offset."""


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Step: truncate the log to the end offset `offset`, then fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Step: discard all records of the log, and set its log end offset to `offset`. Then append the
    records of the leader's answer, or fetch again if the answer has no records. `leader_start` is
    the leader's log start offset."""

    offset: int
    leader_start: int


@dataclass(frozen=True, slots=True)
class AskEnds:
    """Step: ask the leader for its log start offset and log end offset, then call `after_ends`."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Step: do not fetch the partition for a while. `error` and `reason` explain the pause."""

    error: ErrorCode
    reason: str


Step = Append | TruncateTo | StartOver | AskEnds | Pause
Truncation = TruncateTo | StartOver


def position(log: ReplicaLog, leader_epoch: int) -> FetchPosition:
    """Return the position of a follower's next fetch from the leader of `leader_epoch`."""
    return FetchPosition(
        log.log_end_offset, log.log_start_offset, leader_epoch, last_epoch=log.latest_epoch
    )


def after_answer(log: ReplicaLog, answer: FetchedPartition) -> Step:
    """Return the follower's next step after an answer of its leader. The follower's log must not
    have changed since the fetch."""
    if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return AskEnds()
    if answer.error is not ErrorCode.NONE:
        return Pause(answer.error, answer.error.text)
    if answer.diverging_end_offset != NO_OFFSET:
        end = common_end(log, answer.diverging_epoch, answer.diverging_end_offset)
        return _cut(log, end, answer.log_start_offset)
    if len(answer.records) >= BASE_OFFSET_LENGTH:
        first = int.from_bytes(answer.records[:BASE_OFFSET_LENGTH], "big", signed=True)
        all_deleted = log.log_end_offset in (log.log_start_offset, answer.log_start_offset)
        if 0 <= first < log.log_end_offset and all_deleted:
            # The leader's log starts within a batch, and the leader sends the whole batch.
            return StartOver(first, answer.log_start_offset)
    return Append()


def first_epoch(records: Buffer) -> int:
    """Return the leader epoch of the first batch in `records`; NO_EPOCH if `records` has no
    batch."""
    if len(records) < _LEADER_EPOCH.stop:
        return NO_EPOCH
    return int.from_bytes(records[_LEADER_EPOCH], "big", signed=True)


def after_ends(log: ReplicaLog, leader_start: int, leader_end: int) -> Truncation | Pause:
    """Return the follower's next step after OFFSET_OUT_OF_RANGE: a pause if the follower's log end
    offset is in the leader's log, from `leader_start` to `leader_end`, otherwise a truncation."""
    if log.log_end_offset < leader_start:
        return StartOver(leader_start, leader_start)
    if log.log_end_offset > leader_end:
        return _cut(log, leader_end, leader_start)
    return Pause(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        "the leader returned OFFSET_OUT_OF_RANGE, but its log now contains the fetch offset",
    )


def _cut(log: ReplicaLog, end: int, leader_start: int) -> Truncation:
    """Return the step that truncates the follower's log to the end offset `end`. If it is not
    certain that both logs have a record in common below `end`, return the step that discards the
    whole log."""
    # A log that starts above `end` shares no record with the leader's log, and would lack the
    # leader's records below `end`. If the leader's log starts at or above `end`, the leader has
    # deleted the offset at which the logs begin to differ: no record below `end` is certain.
    is_before = end < log.log_start_offset and leader_start < log.log_start_offset
    if is_before or end <= leader_start:
        return StartOver(leader_start, leader_start)
    return TruncateTo(end)


def common_end(log: ReplicaLog, leader_epoch: int, leader_end: int) -> int:
    """Return the largest offset below which this log and the leader's log can have the same
    records. `leader_end` is the end offset of `leader_epoch` in the leader's log."""
    if leader_epoch == NO_EPOCH:
        return min(leader_end, log.log_end_offset)
    _, own_end = log.epoch_end_offset(leader_epoch)
    if own_end == NO_OFFSET:
        return min(leader_end, log.log_end_offset)
    return min(leader_end, own_end, log.log_end_offset)


def cut_offsets(log: ReplicaLog, step: Truncation) -> tuple[int, int]:
    """Return the offsets [start, end) that the truncation `step` removes from this log, without
    those that the leader has deleted (below the leader's log start offset)."""
    start = max(step.offset, log.log_start_offset)
    if isinstance(step, StartOver):
        start = max(start, step.leader_start)
    return start, max(start, log.log_end_offset)


def cuts_committed(log: ReplicaLog, high_watermark: int, step: Truncation) -> bool:
    """Return whether the truncation `step` removes records below this replica's high watermark."""
    start, end = cut_offsets(log, step)
    return start < min(high_watermark, end)


def may_cut_committed(
    log: ReplicaLog, high_watermark: int, step: Truncation, *, in_sync: bool
) -> bool:
    """Return whether the truncation `step` could remove acknowledged records from this log.
    `in_sync`: whether the controller's last command lists the replica in the ISR."""
    # Outside the ISR `high_watermark` may be too low: after a kill it comes from the last
    # checkpoint, and the replica may have led and acknowledged more records since then.
    start, end = cut_offsets(log, step)
    return start < end and (not in_sync or cuts_committed(log, high_watermark, step))
