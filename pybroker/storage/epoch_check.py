"""Decides whether a log uses the leader epochs of its epoch file or those of its batch headers. No
checksum covers leader epochs, and wrong ones cause wrong truncations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pybroker.errors import CorruptionError
from pybroker.model import NO_EPOCH
from pybroker.records.batch import BatchHeader
from pybroker.storage.epochs import EpochHistory
from pybroker.storage.log_parts import Damage
from pybroker.storage.segment import SCRUB_BYTES
from pybroker.storage.segments import Segments


def contradiction(history: EpochHistory, segments: Segments, log_start: int) -> str | None:
    """Return a text about the first batch whose leader epoch contradicts `history`, or None. Reads
    only the last batch, and the batches next to each start of an epoch."""
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
                f"offset {offset} has leader epoch {epoch} in the epoch file, and"
                f" {header.leader_epoch} in the batch at offset {header.base_offset}"
            )
    return None


def _batch_at(segments: Segments, offset: int) -> BatchHeader | None:
    """Return the header of the batch that contains the offset; None if that batch is missing or
    unreadable."""
    try:
        for segment in segments.from_offset(offset):
            position = segment.locate(offset)
            if position is not None:
                _, header = next(segment.headers(position, segment.size))
                return header if header.base_offset <= offset else None
    except (CorruptionError, StopIteration):
        return None
    return None


def agrees(history: EpochHistory, header: BatchHeader, log_start: int) -> bool:
    """Return whether the batch's leader epoch agrees with `history`. True if the batch has no
    leader epoch, if `history` has none for the batch's last offset, or if the batch ends below the
    log start offset."""
    if header.leader_epoch == NO_EPOCH or header.last_offset < log_start:
        return True
    known = history.epoch_of(header.last_offset)
    if known == NO_EPOCH:
        return True
    return known == header.leader_epoch and not _begins_inside(history, header)


def _begins_inside(history: EpochHistory, header: BatchHeader) -> bool:
    """Return whether an epoch begins inside the batch. The first epoch is exempt, because its start
    moves with the log start offset, which may be inside a batch."""
    first = history.entries[0].start_offset if history.entries else 0
    begin = max(header.base_offset, first)
    return history.epoch_of(begin) != history.epoch_of(header.last_offset)


class Verdict(NamedTuple):
    """The leader epochs to use for a log. `corrupt_header` is the first batch whose leader epoch is
    or may be corrupt; None if there is none."""

    history: EpochHistory
    corrupt_header: Damage | None


@dataclass(slots=True)
class _Run:
    """Consecutive batches of one leader epoch. Offset, file and position are those of the first
    batch."""

    epoch: int
    start_offset: int
    path: str
    position: int
    count: int = 1

    def damage(self, reason: str, *, is_doubt: bool = False) -> Damage:
        start, path, position = self.start_offset, self.path, self.position
        return Damage(start, path, position, reason, is_doubt, is_whole=True)


def judge(filed: EpochHistory | None, segments: Segments, log_start: int) -> Verdict:
    """Return the leader epochs to use for a log: those in the epoch file (`filed`), or those in
    the batch headers if the file seems wrong or is unusable (`filed` is None). Raises
    CorruptionError."""
    # An epoch is durable in the file before its first batch is written, so a correct file has all
    # epochs. Where epochs fall, a batch is corrupt. If a single batch contradicts the file, either
    # may be corrupt. If several batches do, or an epoch begins inside a batch, the file is corrupt.
    runs: list[_Run] = []
    odd: list[_Run] = []
    is_file_corrupt = filed is None
    for segment in segments.all:
        for position, header in segment.headers(0, segment.size, scan_bytes=SCRUB_BYTES):
            if header.leader_epoch == NO_EPOCH or header.last_offset < log_start:
                continue  # the batch has no leader epoch, or is below the log start
            run = _Run(header.leader_epoch, header.base_offset, segment.path, position)
            if runs and runs[-1].epoch == run.epoch:
                runs[-1].count += 1
            else:
                runs.append(run)
            if not is_file_corrupt and filed is not None and not agrees(filed, header, log_start):
                odd.append(run)
                is_file_corrupt = len(odd) > 1 or _begins_inside(filed, header)
    rises = _rise(runs)
    if filed is None or is_file_corrupt:
        if rises:
            return Verdict(_history(runs), None)
        corrupt = _corrupt_run(runs)
        whole = [run for run in runs if run.start_offset < corrupt.start_offset]
        reason = (
            f"the batch at offset {corrupt.start_offset} has leader epoch "
            f"{corrupt.epoch}, which contradicts the leader epochs of other batches: "
            "they must not decrease within a log"
        )
        return Verdict(_history(whole), corrupt.damage(reason))
    if not odd:
        return Verdict(filed, None)
    corrupt, known = odd[0], filed.epoch_of(odd[0].start_offset)
    reason = (
        f"the batch at offset {corrupt.start_offset} has leader epoch {corrupt.epoch},"
        f" expected {known}"
    )
    if rises:
        return Verdict(
            _history(runs), corrupt.damage(f"{reason} according to the epoch file", is_doubt=True)
        )
    return Verdict(filed, corrupt.damage(reason))


def _history(runs: Sequence[_Run]) -> EpochHistory:
    history = EpochHistory()
    for run in runs:
        if run.epoch > history.latest_epoch:
            history.assign(run.epoch, run.start_offset)
    return history


def _rise(runs: Sequence[_Run]) -> bool:
    return all(before.epoch <= after.epoch for before, after in itertools.pairwise(runs))


def _corrupt_run(runs: Sequence[_Run]) -> _Run:
    """Return the batches whose leader epoch is probably corrupt. Call this only if a leader epoch
    in `runs` is lower than the one before it."""
    # If removing a single batch leaves epochs that never fall, that batch is to blame. Otherwise it
    # is the first run whose epoch is higher than that of a later run.
    number = next(n for n, run in enumerate(runs) if run.epoch > runs[n + 1].epoch)
    for each in (number, number + 1):
        if runs[each].count == 1 and _rise([*runs[:each], *runs[each + 1 :]]):
            return runs[each]
    least = min(run.epoch for run in runs[number + 1 :])
    return next(run for run in runs if run.epoch > least)
