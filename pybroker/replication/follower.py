"""Decides the next step of a follower after each answer of its leader. Pure functions.

The log is the only state: its end and its last leader epoch determine the next fetch. A diverging
log is truncated epoch by epoch (KIP-101, KIP-279, KIP-595). The leader returns its largest leader
epoch that is not above the follower's last one, and the end offset of that epoch. The follower
truncates to the smaller end of that epoch in the two logs, and fetches again until the leader
reports no divergence.

Records below the high watermark are committed, and the follower does not truncate them
(`cuts_committed`), unless a loss receipt says that the controller elected a leader without them.
Records above it may be committed as well (`may_cut_committed`): then the receipt names them.
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
"""The place of the partition leader epoch in a batch."""


class ReplicaLog(Protocol):
    """The properties of a log that the decisions read."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def latest_epoch(self) -> int: ...

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class Append:
    """Append the answer's records, if it has any, and adopt its high watermark and log start."""


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Truncate the log to `offset`, then fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Discard the whole log and begin a new one at `offset`. Then append the answer's records, if
    it has any, or fetch again. The leader's log starts at `leader_start`."""

    offset: int
    leader_start: int


@dataclass(frozen=True, slots=True)
class AskEnds:
    """Ask for the leader's log start and log end; `after_ends` returns the next step."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Do not fetch the partition during a pause."""

    error: ErrorCode
    reason: str


Step = Append | TruncateTo | StartOver | AskEnds | Pause
Truncation = TruncateTo | StartOver


def position(log: ReplicaLog, leader_epoch: int) -> FetchPosition:
    """Return the position of the next fetch from the leader of `leader_epoch`."""
    return FetchPosition(
        log.log_end_offset, log.log_start_offset, leader_epoch, last_epoch=log.latest_epoch
    )


def after_answer(log: ReplicaLog, answer: FetchedPartition) -> Step:
    """Return the step after an answer of the leader. `position` must be the same now as in the
    request."""
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
    """Return the leader epoch of the first batch; NO_EPOCH if there is none."""
    if len(records) < _LEADER_EPOCH.stop:
        return NO_EPOCH
    return int.from_bytes(records[_LEADER_EPOCH], "big", signed=True)


def after_ends(log: ReplicaLog, leader_start: int, leader_end: int) -> Truncation | Pause:
    """Return the step after OFFSET_OUT_OF_RANGE, given the leader's log start and log end. A
    follower whose log end is within the leader's log pauses and fetches again: equal ends do not
    prove equal logs."""
    if log.log_end_offset < leader_start:
        return StartOver(leader_start, leader_start)
    if log.log_end_offset > leader_end:
        return _cut(log, leader_end, leader_start)
    return Pause(ErrorCode.OFFSET_OUT_OF_RANGE, "the leader's log has changed meanwhile")


def _cut(log: ReplicaLog, end: int, leader_start: int) -> Truncation:
    """Return the step that truncates the log to `end`, or discards the log.

    A log that starts above `end` shares no record with the leader's log. The follower discards it
    and begins at the leader's log start; a log that began at `end` would lack the leader's records
    below `end`. The follower also discards its log if the leader's log starts at or above `end`.
    The leader has deleted the point of divergence then, and returns the latest possible one. The
    follower's records below it and their producer sequences may never have been in the leader's
    log."""
    is_before = end < log.log_start_offset and leader_start < log.log_start_offset
    if is_before or end <= leader_start:
        return StartOver(leader_start, leader_start)
    return TruncateTo(end)


def common_end(log: ReplicaLog, leader_epoch: int, leader_end: int) -> int:
    """Return the largest offset below which the logs may be equal, if the leader's `leader_epoch`
    ends at `leader_end`."""
    if leader_epoch == NO_EPOCH:
        return min(leader_end, log.log_end_offset)
    _, own_end = log.epoch_end_offset(leader_epoch)
    if own_end == NO_OFFSET:
        return min(leader_end, log.log_end_offset)
    return min(leader_end, own_end, log.log_end_offset)


def cut_offsets(log: ReplicaLog, step: Truncation) -> tuple[int, int]:
    """Return the offsets [start, end) of the records that the step removes and that the leader has
    not deleted. Equal offsets: there are none."""
    start = max(step.offset, log.log_start_offset)
    if isinstance(step, StartOver):
        start = max(start, step.leader_start)
    return start, max(start, log.log_end_offset)


def cuts_committed(log: ReplicaLog, high_watermark: int, step: Truncation) -> bool:
    """Return whether the step removes records that are known to be committed."""
    start, end = cut_offsets(log, step)
    return start < min(high_watermark, end)


def may_cut_committed(
    log: ReplicaLog, high_watermark: int, step: Truncation, *, in_sync: bool
) -> bool:
    """Return whether the step may remove acknowledged records. `in_sync`: the replica is in the ISR
    of the controller's last command, so its leader has all committed records.

    For a replica outside the ISR the high watermark is only a lower bound. After a kill it comes
    from the last checkpoint, and this replica may have led and acknowledged more records since.
    """
    start, end = cut_offsets(log, step)
    return start < end and (not in_sync or cuts_committed(log, high_watermark, step))
