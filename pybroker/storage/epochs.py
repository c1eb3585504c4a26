"""The leader epochs of the parts of a log (KIP-101), the base of every truncation.

A list of (epoch, first offset). Pure; `checkpoints.py` has the file format.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

from pybroker.model import NO_EPOCH, NO_OFFSET

UNDEFINED: Final = (NO_EPOCH, NO_OFFSET)
EPOCH_MAX: Final = 2**31 - 1


class EpochStart(NamedTuple):
    """The first offset of a leader epoch, even if no record was written in it."""

    epoch: int
    start_offset: int


class EpochHistory:
    """Invariant: epochs rise strictly, start offsets rise strictly."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """The largest epoch, NO_EPOCH if there is none."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Continue the log from `start_offset` with `epoch`. Drop entries that contradict this: a
        later epoch, or one that would begin at or after that offset. Return whether anything
        changed."""
        if self._entries and self._entries[-1].epoch == epoch:
            return False
        kept = [
            entry
            for entry in self._entries
            if entry.epoch < epoch and entry.start_offset < start_offset
        ]
        self._entries = [*kept, EpochStart(epoch, start_offset)]
        return True

    def replace(self, other: EpochHistory) -> None:
        """Take over the entries of `other`."""
        self._entries = list(other.entries)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch that is at most `epoch`, and its end offset (KIP-279).

        If `epoch` is above all known ones, or none is known: (-1, -1). If `epoch` is below all
        known ones: `epoch` itself and the start of the first known one.
        """
        entries = self._entries  # another thread may replace the list
        if epoch < 0 or not entries or epoch > entries[-1].epoch:
            return UNDEFINED
        after = bisect.bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        end = entries[after].start_offset if after < len(entries) else log_end_offset
        return (entries[after - 1].epoch if after else epoch, end)

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that wrote `offset`, NO_EPOCH if unknown."""
        entries = self._entries
        after = bisect.bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[after - 1].epoch if after else NO_EPOCH

    def truncate_end(self, end_offset: int) -> bool:
        """End the log at `end_offset`: drop epochs that begin there or later. Return whether
        anything changed."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """Begin the log at `start_offset`: of the earlier epochs only the one in force there stays,
        and begins there. Return whether anything changed."""
        covering = bisect.bisect_right(
            self._entries, start_offset, key=lambda entry: entry.start_offset
        )
        if covering == 0:
            return False
        first = EpochStart(self._entries[covering - 1].epoch, start_offset)
        kept = [first, *self._entries[covering:]]
        changed = kept != self._entries
        self._entries = kept
        return changed
