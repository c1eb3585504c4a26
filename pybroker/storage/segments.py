"""The segments of one log in order, and the changes of their files."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Sequence
from functools import partial

from pybroker.errors import CorruptionError, StorageError
from pybroker.ports import Disk
from pybroker.storage.deletions import PendingDeletions
from pybroker.storage.filename import SWAP_SUFFIX
from pybroker.storage.segment import Segment
from pybroker.storage.segment_files import complete, decide, mark_deleted, set_aside


class Segments:
    """The segments of one log, sorted by base offset. An open log has at least one; the last one is
    the active segment. Methods may raise StorageError.

    One thread makes all changes except `replace`, which the log cleaner's thread calls. Any thread
    may call `sync`.
    """

    __slots__ = (
        "_changes",
        "_closed",
        "_directory",
        "_disk",
        "_doomed",
        "_durable_changes",
        "_files",
        "_is_released",
        "_state",
        "_swap",
        "active",
        "are_pinned",
        "generation",
        "parent_changed",
    )

    def __init__(
        self,
        directory: str,
        disk: Disk,
        segments: Iterable[Segment],
        *,
        is_new: bool = False,
        are_names_durable: bool = True,
    ) -> None:
        """`is_new`: the log's directory was just created, and its name is not durable yet.
        `are_names_durable`: the names of the files in this directory are durable."""
        self._directory = directory
        self._disk = disk
        self._set(tuple(sorted(segments, key=lambda segment: segment.base_offset)))
        self._closed: list[Segment] = []
        """The segments that have ended since the last sync: their indexes are not durable yet."""
        self._doomed = PendingDeletions(disk.unlink)
        # The number of created or renamed files, and how many of these changes are durable. A flag
        # would not suffice: a sync that began before a change must not clear it.
        self._changes = 1 if is_new or not are_names_durable else 0
        self._durable_changes = 0
        self._swap = threading.Lock()
        """Held while the tuple of segments is replaced."""
        self._files = threading.Lock()
        """Held during a truncation, a replacement and the close of the files, so that only one of
        these runs at a time."""
        self._is_released = False
        self.generation = 0
        """Grows with each truncation."""
        self.are_pinned = False
        """Whether the log cleaner reads the segments, so that retention waits."""
        self.parent_changed = is_new
        """Whether the name of the log's own directory must still be made durable."""

    def _set(self, state: tuple[Segment, ...]) -> None:
        self._state = state
        if state:
            self.active = state[-1]
            """The last segment. Appends go to it."""

    @property
    def all(self) -> tuple[Segment, ...]:
        return self._state

    @property
    def first(self) -> Segment:
        return self._state[0]

    def __len__(self) -> int:
        return len(self._state)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self._state)

    @property
    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self._state]

    @property
    def directory_changed(self) -> bool:
        """Whether files of the log, or its directory, were created or renamed since the last
        sync."""
        return self.parent_changed or self._changes != self._durable_changes

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """Return the segment with the largest base offset that is at most `offset`, and all later
        segments. Return all segments if `offset` is below the first segment."""
        segments = self._state
        if segments and segments[-1].base_offset <= offset:
            return segments[-1:]
        found = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(0, found - 1) :]

    def begin(self, base_offset: int) -> None:
        """Create a segment for records from `base_offset` on, and make it the active segment."""
        begun = Segment.created(self._directory, base_offset, self._disk)
        with self._swap:
            self._closed.append(self.active)
            self._set((*self._state, begun))
        self._changes += 1

    def remove(self, gone: Iterable[Segment], due_ms: int) -> None:
        """Take these segments out of the log, and rename their files to `*.deleted` in the given
        order. The order must be such that a crash between two segments leaves no gap in the log.
        `remove_doomed` removes the renamed files after the wall-clock time `due_ms`."""
        removed = list(gone)
        with self._swap:
            self._set(tuple(segment for segment in self._state if segment not in removed))
        self._changes += 1
        for segment in removed:
            for path in mark_deleted(segment, self._disk):
                self._doomed.add(due_ms, path)

    def truncate(self, offset: int, index_interval_bytes: int) -> None:
        """Remove the batch that contains `offset`, and all later batches, durably. The new log end
        offset is at most `offset`; it is lower if a removed batch begins below `offset`."""
        # A batch that a power loss restored would be taken for a batch of the next leader epoch.
        # Compaction may have removed the batches before the log end. At a restart the name of an
        # empty segment is then the only sign of the log end.
        # Newest first, so that a crash leaves no gap. The renames are synced before a segment is
        # truncated, because later segments that a power loss restores would also leave a gap.
        with self._files:
            self.generation += 1
            last_base = offset if self._has_gap_before(offset) else offset - 1
            for segment in reversed(self._state):
                if segment.base_offset > last_base:
                    self.remove([segment], 0)
            self._disk.sync_dir(self._directory)
            self.active.truncate(offset, index_interval_bytes)
            self.active.sync(indexes=False)
            self._mark_end()

    def _mark_end(self) -> None:
        """If compaction has removed the last batch before the log end offset, durably begin an
        empty segment at the log end offset. The segment's file name preserves this offset."""
        active, end = self.active, self.active.next_offset
        if active.base_offset < end and self._has_gap_before(end):
            active.seal()
            self.begin(end)
            self._disk.sync_dir(self._directory)

    def _has_gap_before(self, offset: int) -> bool:
        """Return whether compaction has removed the batch with `offset - 1`, and all later batches
        of the same segment."""
        before = self.from_offset(offset - 1)[0]
        try:
            return before.base_offset < offset and before.locate(offset - 1) is None
        except CorruptionError:
            return False  # the next read reports the damage

    def replace(self, old: Sequence[Segment], new: Segment, generation: int) -> Segment:
        """Replace the consecutive segments `old` by the cleaned segment `new`, which covers the
        same offsets. The files `*.cleaned` must already be synced and closed. `generation` is the
        value that `self.generation` had when the cleaning began. Return the new segment with its
        final file names. Waits for the disk.

        Raises StorageError, and changes nothing, if the log was truncated or closed during the
        cleaning.
        """
        with self._files:
            is_there = all(any(each is one for one in self._state) for each in old)
            if self._is_released or generation != self.generation or not is_there:
                raise StorageError(
                    f"{self._directory}: the log was truncated or closed during its cleaning"
                )
            base = new.base_offset
            decide(self._directory, base, self._disk)
            make = partial(Segment, self._directory, base, self._disk)
            made = partial(make, size=new.size, next_offset=new.next_offset)
            swapped = made(suffix=SWAP_SUFFIX)
            self._put(old, swapped)
            complete(self._directory, base, [each.base_offset for each in old], self._disk)
            final = made()
            self._put([swapped], final)
            self._disk.sync_dir(self._directory)
        return final

    def _put(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace the consecutive segments `old` by `new` in `all`. Readers of an old segment get
        StorageError."""
        with self._swap:
            state = self._state
            place = state.index(old[0])
            self._set((*state[:place], new, *state[place + len(old) :]))
        for segment in old:
            segment.retire()

    def start_over(self, base_offset: int, more: Iterable[Segment], *, aside: bool) -> None:
        """Replace all segments by one empty segment at `base_offset`. Also remove the segments
        `more`, which follow the damage in a damaged log. With `aside`, keep the removed batches in
        files `*.corrupt`."""
        with self._files:
            self.generation += 1
            for segment in (*self._state, *more):
                if aside:
                    set_aside(segment, self._disk)
                    continue
                for path in mark_deleted(segment, self._disk):
                    self._doomed.add(0, path)
            with self._swap:
                self._set((Segment.created(self._directory, base_offset, self._disk),))
            self._changes += 1

    @property
    def has_doomed(self) -> bool:
        """Whether files of deleted segments are still on the disk."""
        return bool(self._doomed)

    def remove_doomed(self, now_ms: int) -> None:
        """Remove the files of deleted segments whose delay has passed at the wall-clock time
        `now_ms`. Raises StorageError."""
        # Without the sync a power loss could undo some of the renames, and the log would lack the
        # segments between the restored ones.
        if self._doomed.is_due(now_ms):
            self._sync_names(self._changes)
        self._doomed.remove_due(now_ms)

    def _sync_names(self, changes: int) -> None:
        """Make the names of the log's files durable, unless the last sync already covered `changes`
        (a value of the counter `_changes`)."""
        if changes != self._durable_changes:
            self._disk.sync_dir(self._directory)
            self._durable_changes = changes

    def seal_active(self) -> None:
        """Complete and write the indexes of the active segment, without a sync."""
        active = self.active
        tables = (active.times.table, active.offsets.table)
        if not all(self._disk.exists(table.path) for table in tables):
            self._changes += 1
        active.seal()
        for table in tables:
            table.spill()  # an empty segment has index files, too

    def sync(self, recovery_point: int, end: int, *, indexes: bool = False) -> None:
        """Make the records from `recovery_point` to `end` durable, and also the directory entries
        of the log's files. With `indexes`, also sync the indexes of the active segment."""
        changes = self._changes
        active = self.active
        closed, self._closed = self._closed, []
        for segment in closed:
            if segment.next_offset <= recovery_point and segment in self._state:
                self._sync_one(segment, indexes=True)
        for segment in self.from_offset(recovery_point):
            if segment.base_offset >= end:
                break
            self._sync_one(segment, indexes=indexes or segment is not active)
        self._sync_names(changes)
        if self.parent_changed:
            self._disk.sync_dir(self._directory.rpartition("/")[0])
            self.parent_changed = False

    def _sync_one(self, segment: Segment, *, indexes: bool) -> None:
        try:
            segment.sync(indexes=indexes)
        except StorageError:
            # Retention may have deleted the segment meanwhile.
            if segment in self._state:
                raise

    def close(self) -> None:
        """Close the files. The next read or write opens them again."""
        with self._files:
            for segment in self._state:
                segment.close()

    def release(self) -> None:
        """Close the files for good. Later calls of `replace`, by the log cleaner, raise
        StorageError."""
        with self._files:
            self._is_released = True
        self.close()
