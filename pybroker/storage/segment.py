"""One segment: a part of a log in a file of batches, with its indexes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError, StorageError
from pybroker.ports import Buffer, Disk, File
from pybroker.records.batch import HEADER, HEADER_SIZE, BatchHeader, read_header
from pybroker.storage import offset_index, time_index
from pybroker.storage.filename import SegmentFile, segment_file
from pybroker.storage.offset_index import OffsetEntry, OffsetIndex
from pybroker.storage.reading import NotCached, fetch, hint
from pybroker.storage.time_index import TimeEntry, TimeIndex
from pybroker.storage.txn_index import TxnIndex

SCAN_BYTES: Final = 8192
"""The number of bytes that `headers` reads at a time while it goes from batch to batch."""
SCRUB_BYTES: Final = 1024**2
"""The number of bytes that `headers` reads at a time if it goes through a whole segment."""
_WALKED_BYTES_MAX: Final = 64 * 1024
"""The size in bytes up to which `read` goes through all headers instead of using the index."""


class Appended(NamedTuple):
    """The facts about a batch that a segment needs for an append: its position in the data, its
    length in bytes, its last offset (absolute), and its largest timestamp."""

    position: int
    size: int
    last_offset: int
    max_timestamp: int


class Segment:
    """The batches with offsets from `base_offset` on. Only one thread changes the segment; other
    threads may read at the same time.

    Invariants: `size` (bytes) is the end of the last whole batch. `next_offset` is above all
    offsets in the segment. Offsets just below `next_offset` may be missing if the segment was
    compacted, or was loaded without a scan of its batches.
    """

    def __init__(
        self,
        directory: str,
        base_offset: int,
        disk: Disk,
        *,
        size: int,
        next_offset: int,
        suffix: str = "",
    ) -> None:
        """`suffix` is added to the file names of a segment that the log cleaner writes."""
        self.directory = directory
        self.base_offset = base_offset
        self._suffix = suffix
        self._is_retired = False
        self._disk = disk
        self.end = (size, next_offset)
        """`size` and `next_offset` in one value, so that other threads read both of the same
        moment."""
        self._file: File | None = None
        self.path = self._path(SegmentFile.LOG)
        self.offsets = OffsetIndex(self._path(SegmentFile.INDEX), base_offset, disk)
        self.times = TimeIndex(self._path(SegmentFile.TIME_INDEX), base_offset, disk)
        self.transactions = TxnIndex(self._path(SegmentFile.TXN_INDEX), disk)
        self._bytes_since_entry = 0
        self._largest: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        self._indexes_checked = False
        # Offset -> position of the batch with that base offset, where a reader will continue. It
        # may be cleared at any time, and is checked when used.
        self._hints: dict[int, int] = {}

    def _path(self, kind: SegmentFile) -> str:
        return f"{self.directory}/{segment_file(self.base_offset, kind)}{self._suffix}"

    @property
    def size(self) -> int:
        return self.end[0]

    @property
    def next_offset(self) -> int:
        return self.end[1]

    @property
    def file(self) -> File:
        if self._file is None:
            if self._is_retired:
                raise StorageError(f"{self.path}: the segment was replaced or deleted")
            self._file = self._disk.open(self.path)
        return self._file

    @classmethod
    def created(cls, directory: str, base_offset: int, disk: Disk, *, suffix: str = "") -> Segment:
        """Return a new segment with an empty file and no index files yet."""
        segment = cls(directory, base_offset, disk, size=0, next_offset=base_offset, suffix=suffix)
        segment._file = disk.open(segment.path, create=True)
        segment._indexes_checked = True
        segment._largest = (-1, base_offset)
        return segment

    def indexes_reach(self, size_bytes: int) -> bool:
        """Return whether another entry would make an index larger than `size_bytes`."""
        return (
            self.offsets.table.size_bytes + offset_index.ENTRY.size > size_bytes
            or self.times.table.size_bytes + time_index.ENTRY.size > size_bytes
        )

    # -- appending

    def append(self, data: Buffer, batches: Sequence[Appended], index_interval_bytes: int) -> None:
        """Append `data`, which consists of `batches`, by one write. Raises StorageError; the
        segment is then unchanged."""
        start = self.end[0]
        self.file.append(data)
        for batch in batches:
            if self._first_timestamp is None:
                self._first_timestamp = batch.max_timestamp
            self._note(start + batch.position, batch, index_interval_bytes)
        self.end = (start + len(data), batches[-1].last_offset + 1)

    def append_batch(
        self, data: Buffer, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Append `data`, which is exactly one batch. Faster than `append`."""
        start, size = self.end[0], len(data)
        (self._file or self.file).append(data)
        if self._first_timestamp is None:
            self._first_timestamp = max_timestamp
        largest = self._largest
        if largest is None or self._bytes_since_entry > index_interval_bytes:
            self._note(start, Appended(0, size, last_offset, max_timestamp), index_interval_bytes)
        else:
            if max_timestamp > largest[0]:
                self._largest = (max_timestamp, last_offset)
            self._bytes_since_entry += size
        self.end = (start + size, last_offset + 1)

    def _note(self, position: int, batch: Appended, index_interval_bytes: int) -> None:
        largest, _ = self.largest_timestamp()
        if batch.max_timestamp > largest:
            self._largest = (batch.max_timestamp, batch.last_offset)
        if self._bytes_since_entry > index_interval_bytes:
            self.offsets.append(batch.last_offset, position)
            self.times.append(*self.largest_timestamp())
            self._bytes_since_entry = 0
            if self.offsets.table.tail_is_full:
                self._spill()
        self._bytes_since_entry += batch.size

    def _spill(self) -> None:
        """Write the index entries that are in memory. If the write fails, the entries stay in
        memory."""
        try:  # the time index first: it must always have all offsets of the offset index
            self.times.table.spill()
            self.offsets.table.spill()
        except StorageError:
            return

    def seal(self) -> None:
        """Add the largest timestamp to the time index, and write both indexes to their files."""
        if not self.size:
            return
        timestamp, offset = self.largest_timestamp()
        if timestamp >= 0:
            self.times.append(timestamp, offset)
        self.times.table.spill()
        self.offsets.table.spill()

    # -- timestamps

    def first_timestamp(self) -> int:
        """Return the largest timestamp of the first batch; -1 if the segment is empty. As in Kafka,
        segment.ms counts from this timestamp."""
        if self._first_timestamp is None:
            if not self.size:
                return -1
            self._first_timestamp = read_header(self.file.pread(0, HEADER_SIZE)).max_timestamp
        return self._first_timestamp

    def largest_timestamp(self) -> tuple[int, int]:
        """Return the largest timestamp, and the last offset of the batch that has this timestamp.
        Return (-1, base offset) if no record has a timestamp."""
        if self._largest is None:
            last = self.times.last()
            self._largest = (-1, self.base_offset)
            if last is not None and self._is_true(last):
                self._largest = (last.timestamp, last.last_offset)
            elif last is not None:
                self.rebuild_indexes()
        return self._largest

    def _is_true(self, entry: TimeEntry) -> bool:
        if entry.last_offset >= self.next_offset:
            return True
        position = self.locate(entry.last_offset)
        header = None if position is None else read_header(self.file.pread(position, HEADER_SIZE))
        return header is not None and header.max_timestamp == entry.timestamp

    def retention_timestamp(self) -> int:
        """Return the time (ms since 1970) from which retention.ms counts for the segment: the
        largest timestamp. If no record has a timestamp, return the time of the file's last
        change."""
        timestamp, _ = self.largest_timestamp()
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.path)

    def position_before_timestamp(self, timestamp_ms: int) -> int:
        """Return the position of the batch at which a search for `timestamp_ms` can begin. All
        records before this batch are older than `timestamp_ms`."""
        self._check_indexes(False)
        entry = self.times.floor(timestamp_ms - 1)
        if entry is not None and not self._is_true(entry):
            self.rebuild_indexes()
            entry = self.times.floor(timestamp_ms - 1)
        if entry is None:
            return 0
        return self.locate(entry.last_offset) or 0

    # -- finding batches

    def headers(
        self, position: int, limit: int, *, cached_only: bool = False, scan_bytes: int = SCAN_BYTES
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and the header of each whole batch from `position`, where a batch must
        begin, to `limit`. Raises CorruptionError. With `cached_only`, also raises NotCached."""
        chunk: Buffer = b""
        start = position
        while limit - position >= HEADER_SIZE:
            if position + HEADER_SIZE > start + len(chunk):
                start = position
                length = min(scan_bytes, limit - position)
                chunk = fetch(self.file, position, length, cached_only=cached_only)
            header = read_header(chunk, position - start)
            if position + header.size > limit:
                return
            yield position, header
            position += header.size

    def locate(self, offset: int, *, cached_only: bool = False) -> int | None:
        """Return the position of the batch that contains `offset`. If compaction has removed this
        batch, return the position of the next batch. Return None if the segment has neither."""
        hinted = self._hints.get(offset)
        if hinted is not None and hinted <= self.size:
            return hinted if hinted < self.size else None
        if offset >= self.next_offset:
            return None
        self._check_indexes(cached_only)
        entry = self.offsets.floor(offset, cached_only=cached_only)
        position = 0 if entry is None else max(entry.position, 0)
        try:
            for place, header in self.headers(position, self.size, cached_only=cached_only):
                if entry is not None:
                    if header.last_offset != entry.last_offset:
                        return self._locate_after_rebuild(offset, cached_only)
                    entry = None
                if header.last_offset >= offset:
                    return place
        except CorruptionError:
            if entry is None:
                raise
        # The index entry is wrong, since no batch begins at its position.
        return None if entry is None else self._locate_after_rebuild(offset, cached_only)

    def _locate_after_rebuild(self, offset: int, cached_only: bool) -> int | None:
        self._rebuild(cached_only)
        return self.locate(offset)

    def _check_indexes(self, cached_only: bool) -> None:
        """Check the indexes before their first use, and rebuild missing or implausible ones."""
        if self._indexes_checked:
            return
        if not (self.offsets.is_plausible(self.size) and self.times.is_plausible()):
            self._rebuild(cached_only)
        self._indexes_checked = True

    def _rebuild(self, cached_only: bool) -> None:
        if cached_only:
            raise NotCached(f"{self.path}: the index must be rebuilt, which waits for the disk")
        self.rebuild_indexes()

    def rebuild_indexes(self, index_interval_bytes: int = 4096) -> None:
        """Rebuild the offset index and the time index from the segment's batches."""
        self.clear_indexes()
        self.extend_indexes(0, index_interval_bytes)
        self.seal()

    def clear_indexes(self) -> None:
        self.offsets.table.clear()
        self.times.clear()
        self._largest = (-1, self.base_offset)
        self._bytes_since_entry = 0
        self._indexes_checked = True

    def extend_indexes(self, position: int, index_interval_bytes: int) -> tuple[int, int]:
        """Add index entries for the batches at and after `position`. Return the end of the last
        whole batch: the file position and the next offset. Ignore batches that another thread
        appends meanwhile."""
        self._indexes_checked = True
        next_offset = self.next_offset
        for place, header in self.headers(position, self.size, scan_bytes=SCRUB_BYTES):
            self.note(place, header, index_interval_bytes)
            position, next_offset = place + header.size, header.next_offset
        return position, next_offset

    def load_end(self, index_interval_bytes: int) -> None:
        """Find `next_offset` and the largest timestamp of the active segment. Raises
        CorruptionError if the file does not end with a whole batch."""
        self.end = (self.size, self.base_offset)
        if not self.size:
            self.clear_indexes()
            return
        self._check_indexes(False)
        last = self.offsets.last()
        position = 0
        if last is not None:
            (place, header) = next(self.headers(last.position, self.size), (0, None))
            if header is None or header.last_offset != last.last_offset:
                self.clear_indexes()
            else:
                self.end = (self.size, header.next_offset)
                position = place + header.size
                self._bytes_since_entry = header.size
        end, next_offset = self.extend_indexes(position, index_interval_bytes)
        self.end = (self.size, next_offset)  # set last: other threads may be reading
        if end != self.size:
            raise CorruptionError(f"{self.path}: the batch at position {end} is incomplete")

    # -- reading

    def read(
        self,
        offset: int,
        max_bytes: int,
        upper_offset: int,
        *,
        at_least_one_batch: bool,
        cached_only: bool,
    ) -> Buffer | None:
        """Return whole batches below `upper_offset`, beginning with the batch that contains
        `offset`.

        Return None if the segment has no record at or after `offset`. Return b"" if the first batch
        is not below `upper_offset`. Without `at_least_one_batch`, return b"" also if this batch is
        longer than `max_bytes`. Raises NotCached and CorruptionError.
        """
        # Read before `end`: if the segment is truncated meanwhile, new hints go into a dictionary
        # that is no longer used.
        hints = self._hints
        limit, next_offset = self.end
        whole = upper_offset >= next_offset
        position = self.locate(offset, cached_only=cached_only)
        if position is None or position >= limit:
            return None
        if not whole:
            bound = self.locate(upper_offset, cached_only=cached_only)
            limit = limit if bound is None else min(limit, bound)
            if limit <= position:
                return b""
        length = min(max_bytes, limit - position)
        data = fetch(self.file, position, max(length, HEADER_SIZE), cached_only=cached_only)
        first = read_header(data)
        if first.size > length:
            if not at_least_one_batch or position + first.size > limit:
                return b""
            data = fetch(self.file, position, first.size, cached_only=cached_only)
            hint(hints, first.next_offset, position + first.size)
            return data
        if position + length == limit:
            hint(hints, next_offset if whole else upper_offset, limit)
            return data[:length]
        end, next_offset = self._whole_batches(data[:length], position, first, cached_only)
        hint(hints, next_offset, position + end)
        return data[:end]

    def _whole_batches(
        self, data: Buffer, position: int, first: BatchHeader, cached_only: bool
    ) -> tuple[int, int]:
        """Return the length in bytes of the whole batches at the start of `data`, and the offset at
        which a sequential reader continues. `data` was read at `position`."""
        end = first.size
        next_offset = first.next_offset
        if len(data) - end > _WALKED_BYTES_MAX:
            entry = self.offsets.floor_position(position + len(data), cached_only=cached_only)
            place = end if entry is None else entry.position - position
            if (
                entry is not None
                and end < place <= len(data) - HEADER_SIZE
                # If the entry is wrong, a later lookup of its offset rebuilds the index.
                and BatchHeader._make(HEADER.unpack_from(data, place)).last_offset == entry[0]
            ):
                end = place
        while end + HEADER_SIZE <= len(data):
            header = read_header(data, end)
            if end + header.size > len(data):
                # The next read begins at this header.
                next_offset = header.base_offset
                break
            end += header.size
            next_offset = header.next_offset
        return end, next_offset

    # -- changing

    def truncate(self, offset: int, index_interval_bytes: int) -> None:
        """Remove the batch that contains `offset`, and all later batches. Raises StorageError."""
        position = self.locate(offset)
        self.end_at(self.size, min(self.next_offset, offset))
        if position is None:  # compaction may have removed the last batches of the segment
            return
        self._check_indexes(False)
        (_, header) = next(self.headers(position, self.size))
        self.file.truncate(position)
        self.end = (position, self.base_offset)
        self.offsets.truncate(header.base_offset)
        self.times.truncate(header.base_offset)
        self.transactions.truncate(header.base_offset)
        self._largest = self._first_timestamp = None
        self._bytes_since_entry = 0
        self.load_end(index_interval_bytes)
        self.end = (self.size, min(offset, header.base_offset))

    def sync(self, *, indexes: bool) -> None:
        """Make the batches and the transaction index durable. If `indexes` is True, also make the
        offset index and the time index durable."""
        self.file.sync()
        self.transactions.sync()
        if indexes:
            self.offsets.table.sync()
            self.times.table.sync()

    def batch_of(self, entry: OffsetEntry) -> BatchHeader | None:
        """Return the header of the batch to which the index entry points; None if the entry is
        wrong."""
        try:
            header = read_header(self.file.pread(max(entry.position, 0), HEADER_SIZE))
        except CorruptionError:
            return None
        return header if header.last_offset == entry.last_offset else None

    def resume_at(self, position: int, next_offset: int) -> None:
        """Remove the index entries from `next_offset` on, before recovery checks the batches from
        `position` on."""
        if self.offsets.is_plausible(self.size) and self.times.is_plausible():
            self.offsets.truncate(next_offset)
            self.times.truncate(next_offset)
        else:
            self.clear_indexes()
        self._indexes_checked = True
        self._largest = None
        self._bytes_since_entry = begin = 0
        if (last := self.offsets.last()) is None or (header := self.batch_of(last)) is None:
            self.clear_indexes()
        else:
            self._bytes_since_entry, begin = header.size, last.position + header.size
        # The batches after the last entry may have larger timestamps than the time index.
        for place, header in self.headers(begin, position, scan_bytes=SCRUB_BYTES):
            self.note(place, header, 4096)

    def note(self, position: int, header: BatchHeader, index_interval_bytes: int) -> None:
        """Add a batch, which is already in the file at `position`, to the indexes."""
        batch = Appended(0, header.size, header.last_offset, header.max_timestamp)
        self._note(position, batch, index_interval_bytes)

    def end_at(self, position: int, next_offset: int) -> None:
        """Set the end of the segment: `position` in the file, and `next_offset` for the next
        record. The file is unchanged."""
        self.end = (position, next_offset)
        self._hints = {}

    def paths(self) -> list[str]:
        """Return the paths of all existing files, the file of batches first."""
        return [path for path in map(self._path, SegmentFile) if self._disk.exists(path)]

    def retire(self) -> None:
        """Close the files for good, after another segment has replaced this segment. Later reads
        raise StorageError."""
        self._is_retired = True
        self.close()

    def close(self) -> None:
        """Close the files. Index entries that are only in memory are not written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.transactions.close()
        self.offsets.table.close()
        self.times.table.close()
