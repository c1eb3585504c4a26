"""The segments of one log in order, and what is done to them as files. When they begin and which of
them go is decided elsewhere."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from pybroker.errors import StorageError
from pybroker.ports import Disk
from pybroker.storage.deletions import PendingDeletions
from pybroker.storage.segment import Segment


class Segments:
    """Sorted by base offset, never empty once the log is open. The last one is the active one.

    Changes come from one thread, `sync` from any. The list is replaced, never changed, so a reader
    in another thread goes on with the one that it began with. Methods may raise StorageError.
    """

    __slots__ = (
        "_changes",
        "_closed",
        "_directory",
        "_disk",
        "_doomed",
        "_durable_changes",
        "_state",
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
        """`is_new`: nor is the directory's own name durable."""
        self._directory = directory
        self._disk = disk
        self._state: tuple[Segment, ...] = tuple(
            sorted(segments, key=lambda segment: segment.base_offset)
        )
        self._closed: list[Segment] = []
        """Those that ended since the last sync: their indexes are not durable yet."""
        self._doomed = PendingDeletions(disk.unlink)
        # How often files were made or renamed, and up to which of these changes the directory is
        # durable. Counted, not marked: a change must not be lost to a sync that began before it.
        self._changes = 1 if is_new or not are_names_durable else 0
        self._durable_changes = 0
        self.parent_changed = is_new
        """Whether the name of the directory itself is not durable yet."""

    @property
    def all(self) -> tuple[Segment, ...]:
        return self._state

    @property
    def active(self) -> Segment:
        return self._state[-1]

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
        """Whether files, or the directory, were made or renamed since that was made durable."""
        return self.parent_changed or self._changes != self._durable_changes

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """The segments that may hold `offset` or later ones: from the last that begins at or
        before it."""
        segments = self._state
        if segments and segments[-1].base_offset <= offset:
            return segments[-1:]
        found = bisect.bisect_right(segments, offset, key=lambda segment: segment.base_offset)
        return segments[max(0, found - 1) :]

    def begin(self, base_offset: int) -> None:
        """Make a new segment the active one."""
        self._closed.append(self.active)
        self._state = (*self._state, Segment.created(self._directory, base_offset, self._disk))
        self._changes += 1

    def remove(self, gone: Iterable[Segment], due_ms: int) -> None:
        """Take segments out, oldest first, so that a crash in between leaves no hole. Their files
        are renamed, and go with `remove_doomed` at `due_ms`."""
        removed = list(gone)
        self._state = tuple(segment for segment in self._state if segment not in removed)
        self._changes += 1
        for segment in removed:
            for path in segment.mark_deleted():
                self._doomed.add(due_ms, path)

    def truncate(self, offset: int, index_interval_bytes: int) -> None:
        """Remove the batch that holds `offset` and all after it, durably: what came back after a
        power loss would be taken for records of the leader epoch that is written in its place."""
        # Newest first: here it is the other order that would leave a hole. And before any is cut,
        # or what came back of those behind it would leave one.
        for segment in reversed(self._state):
            if segment.base_offset >= offset:
                self.remove([segment], 0)
        self._disk.sync_dir(self._directory)
        self.active.truncate(offset, index_interval_bytes)
        self.active.sync(indexes=False)

    def start_over(self, base_offset: int, more: Iterable[Segment], *, aside: bool) -> None:
        """One new segment in the place of all, and of `more` that are none of ours; with `aside`
        their bytes are kept under other names. Who looks meanwhile, from another thread, sees what
        was."""
        for segment in (*self._state, *more):
            if aside:
                segment.set_aside()
                continue
            for path in segment.mark_deleted():
                self._doomed.add(0, path)
        self._state = (Segment.created(self._directory, base_offset, self._disk),)
        self._changes += 1

    def remove_doomed(self, now_ms: int) -> None:
        """Not before the new names are durable: if some of the old ones came back after a power
        loss, what lay between them would be missing. Raises StorageError."""
        if self._doomed.is_due(now_ms):
            self._sync_names(self._changes)
        self._doomed.remove_due(now_ms)

    def _sync_names(self, changes: int) -> None:
        """Up to that change; what was changed since may be durable, or not."""
        if changes != self._durable_changes:
            self._disk.sync_dir(self._directory)
            self._durable_changes = changes

    def seal_active(self) -> None:
        """Complete and write the indexes of the active segment. `sync` makes them durable where it
        is told so, and their names in any case."""
        active = self.active
        tables = (active.times.table, active.offsets.table)
        if not all(self._disk.exists(table.path) for table in tables):
            self._changes += 1
        active.seal()
        for table in tables:
            table.spill()  # an empty segment has index files, too

    def sync(self, recovery_point: int, end: int, *, indexes: bool = False) -> None:
        """Make durable what lies between these offsets, and the names of the files; `indexes`: also
        those of the active segment."""
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
            # One that was deleted meanwhile need not be durable.
            if segment in self._state:
                raise

    def close(self) -> None:
        for segment in self._state:
            segment.close()
