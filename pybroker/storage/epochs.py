"""Which leader epoch wrote which part of a log (KIP-101), the base of every truncation.

A list of (epoch, first offset). Pure: the file is `checkpoints.py`'s.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

from pybroker.model import NO_EPOCH, NO_OFFSET

UNDEFINED: Final = (NO_EPOCH, NO_OFFSET)
EPOCH_MAX: Final = 2**31 - 1


class EpochStart(NamedTuple):
    """The first offset that the leader of `epoch` wrote, or would have written."""

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
        """The log goes on from `start_offset` with `epoch`. Entries that this contradicts (a later
        epoch, or one that would begin at or after that offset) are dropped. True if anything
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
        """Hold what `other` holds."""
        self._entries = list(other.entries)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch that is at most `epoch`, and where it ends (KIP-279).

        `epoch` is above all known, or nothing is known: (-1, -1). `epoch` is below all known:
        itself and where the first known one begins.
        """
        entries = self._entries  # another thread may put others in their place
        if epoch < 0 or not entries or epoch > entries[-1].epoch:
            return UNDEFINED
        after = bisect.bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        end = entries[after].start_offset if after < len(entries) else log_end_offset
        return (entries[after - 1].epoch if after else epoch, end)

    def epoch_of(self, offset: int) -> int:
        """The epoch that wrote `offset`, NO_EPOCH if not known."""
        entries = self._entries
        after = bisect.bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[after - 1].epoch if after else NO_EPOCH

    def truncate_end(self, end_offset: int) -> bool:
        """The log now ends at `end_offset`: epochs that begin there or later never were. True if
        anything changed."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """The log now begins at `start_offset`: of what ended before only the epoch that is still
        in force there stays, beginning there. True if anything changed."""
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
