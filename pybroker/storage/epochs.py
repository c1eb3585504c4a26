"""The leader epochs of a log with their start offsets (KIP-101). No I/O."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final, NamedTuple

from pybroker.model import NO_EPOCH, NO_OFFSET

UNDEFINED: Final = (NO_EPOCH, NO_OFFSET)
EPOCH_MAX: Final = 2**31 - 1


class EpochStart(NamedTuple):
    """A leader epoch and its first offset. The epoch may be empty: the log then has no batch of
    this epoch."""

    epoch: int
    start_offset: int


class EpochHistory:
    """The leader epochs of one log. Invariant: the epochs and their start offsets rise strictly."""

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
        """The largest leader epoch; NO_EPOCH if the history is empty."""
        return self._entries[-1].epoch if self._entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Let the leader epoch `epoch` begin at `start_offset`. Remove larger epochs, and epochs
        that begin at or after this offset. Return False if `epoch` is already the last one."""
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
        """Replace the entries by those of `other`."""
        self._entries = list(other.entries)

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known leader epoch up to `epoch`, and its end offset (KIP-279).

        Return (-1, -1) if `epoch` is larger than all known epochs, or none is known. If `epoch` is
        smaller than all known epochs, return `epoch` and the start offset of the first known one.
        """
        entries = self._entries  # another thread may replace the list
        if epoch < 0 or not entries or epoch > entries[-1].epoch:
            return UNDEFINED
        if epoch == entries[-1].epoch:
            return (epoch, log_end_offset)
        after = bisect.bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        end = entries[after].start_offset if after < len(entries) else log_end_offset
        return (entries[after - 1].epoch if after else epoch, end)

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`; NO_EPOCH if unknown."""
        entries = self._entries
        after = bisect.bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[after - 1].epoch if after else NO_EPOCH

    def truncate_end(self, end_offset: int) -> bool:
        """Remove the leader epochs that begin at `end_offset` or later. Return whether the history
        changed."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_start(self, start_offset: int) -> bool:
        """Remove the leader epochs that end at or below `start_offset`. If an epoch contains
        `start_offset`, move the beginning of this epoch to `start_offset`. Return whether the
        history changed."""
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
