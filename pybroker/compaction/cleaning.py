"""One pass of the log cleaner over a log. The pass collects the last offset of each key in the
dirty part of the log, then replaces the segments by copies. The copies omit a record if a later
record has the same key. Offsets never change."""

from __future__ import annotations

import mmap
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from pybroker.compaction.blocks import BLOCK_BYTES, Blocks
from pybroker.compaction.choice import Plan
from pybroker.compaction.offset_map import OffsetMap
from pybroker.compaction.rewriting import Batch, Fate, remains
from pybroker.compaction.transactions import SeenTransactions
from pybroker.ports import Disk
from pybroker.records.batch import BatchHeader
from pybroker.records.record import encoded_records
from pybroker.storage import lookup
from pybroker.storage.filename import CLEANED_SUFFIX
from pybroker.storage.segment import Appended, Segment

_BUFFER_BYTES: Final = 2 * 1024**2
"""The size of the memory in which a `_Writer` collects batches. The compiled loops copy only
batches that fit into this memory."""
LOAD_FACTOR: Final = 0.9
"""The default of log.cleaner.io.buffer.load.factor."""
_OFFSETS_MAX: Final = 2**31 - 1
"""The largest distance between the first and the last offset of a segment."""


class CannotClean(Exception):
    """The log cannot be compacted with the present options. The message says why, and which option
    to change."""


@dataclass(slots=True)
class Result:
    """The offset below which the log is compacted now, and the size in bytes of the segments before
    and after the pass."""

    cleaned_to: int
    before_bytes: int = 0
    after_bytes: int = 0
    keys: int = 0
    map_bytes: int = 0


def clean(
    plan: Plan, disk: Disk, memory_bytes: int, now_ms: int, load_factor: float = LOAD_FACTOR
) -> Generator[int | Result, None, None]:
    """Compact the part of a log that `plan` describes. Yield the number of bytes read by each step,
    and at the end the result. Each step waits for the disk. Keys fill at most the share
    `load_factor` of `memory_bytes`.

    Raises CannotClean or DiskFull. Raises CorruptionError for a damaged batch. Raises StorageError
    if the disk fails, or if the log was truncated or closed. After an error each segment is an
    original or a complete copy.
    """
    work = _Pass(plan, disk, OffsetMap(memory_bytes, load_factor, plan.first_dirty), now_ms)
    yield from work.collect_keys()
    result = Result(work.keys.end, keys=len(work.keys), map_bytes=work.keys.size_bytes)
    segments = [each for each in plan.segments if each.base_offset < work.keys.end]
    seen = work.transactions(segments[0].base_offset)
    for group in _groups(segments, plan):
        result.before_bytes += sum(each.size for each in group)
        made = yield from work.rewrite(group, seen)
        result.after_bytes += made
    yield result


def _groups(segments: list[Segment], plan: Plan) -> Iterator[list[Segment]]:
    """Yield the segments in groups, each of which becomes one new segment."""
    config = plan.log.config
    group: list[Segment] = []
    for segment in segments:
        if group and (
            sum(each.size for each in group) + segment.size > config.segment_bytes
            or segment.next_offset - group[0].base_offset > _OFFSETS_MAX
            or sum(each.offsets.table.size_bytes for each in group)
            + segment.offsets.table.size_bytes
            > config.segment_index_bytes
        ):
            yield group
            group = []
        group.append(segment)
    yield group


class _Pass:
    def __init__(self, plan: Plan, disk: Disk, keys: OffsetMap, now_ms: int) -> None:
        self._plan = plan
        self._disk = disk
        self._now_ms = now_ms
        self._horizon = now_ms + plan.log.config.delete_retention_ms
        self.keys = keys
        self._buffer = _new_buffer()

    def transactions(self, from_offset: int) -> SeenTransactions:
        """Return the state of the transactions for a reader that begins at `from_offset`. The
        reader needs this state to recognize aborted batches."""
        log, end = self._plan.log, self._plan.end
        return SeenTransactions(log.aborted_transactions(from_offset, end))

    def collect_keys(self) -> Generator[int]:
        """Put the keys of the dirty part into the offset map until the map is full. Yield the size
        in bytes of each block of batches."""
        plan, keys = self._plan, self.keys
        seen = self.transactions(plan.first_dirty)
        for segment in plan.segments:
            if segment.next_offset <= plan.first_dirty:
                continue
            blocks = Blocks(segment)
            while blocks.has_more():
                begin = blocks.position
                blocks.position = keys.put_batches(blocks.data, begin, plan.first_dirty)
                if blocks.position > begin:
                    yield blocks.position - begin
                    continue
                batch = blocks.take()
                has_room = yield from self._collect(batch, seen)
                if not has_room:
                    return
                yield batch.header.size
            keys.end = segment.next_offset

    def _collect(self, batch: Batch, seen: SeenTransactions) -> Generator[int, None, bool]:
        """Put the keys of one batch into the offset map. Return whether the map had room for all of
        them."""
        header, first_dirty = batch.header, self._plan.first_dirty
        if header.next_offset <= first_dirty:
            return True
        if header.is_control:
            seen.is_empty(header, lookup.marker_of(batch.data, header))
        elif not seen.is_aborted(header):
            payload = encoded_records(batch.data, header, lookup.DECOMPRESSED_BYTES_MAX)
            has_room = yield from self.keys.put(payload, header)
            if not has_room and self.keys.end == first_dirty:
                raise CannotClean(
                    f"the keys of the batch at offset {header.base_offset} with"
                    f" {header.record_count} records need more memory than"
                    " log.cleaner.dedupe.buffer.size allows: raise this option"
                )
            if not has_room:
                return False
        self.keys.end = header.next_offset
        return True

    def rewrite(self, group: list[Segment], seen: SeenTransactions) -> Generator[int, None, int]:
        """Replace a group of segments by one segment with the retained batches and records. Yield
        the number of bytes read in each step, possibly 0. Return the size of the new segment."""
        log, base = self._plan.log, group[0].base_offset
        segment = Segment.created(log.directory, base, self._disk, suffix=CLEANED_SUFFIX)
        writer = _Writer(segment, self._buffer)
        try:
            writer.clear(self._disk)
            for segment in group:
                blocks = Blocks(segment)
                while blocks.has_more():
                    yield (yield from self._rewrite_block(blocks, writer, seen))
            size = writer.finish(self._disk, seen, group[-1].next_offset)
            log.segments.replace(group, writer.segment, self._plan.generation)
        except BaseException:
            writer.discard(self._disk)
            raise
        return size

    def _rewrite_block(
        self, blocks: Blocks, writer: _Writer, seen: SeenTransactions
    ) -> Generator[int, None, int]:
        """Copy the next batches of `blocks`, at least one. Return the number of bytes read."""
        log, begin = self._plan.log, blocks.position
        interval_bytes = log.config.index_interval_bytes
        blocks.position, length, copied = self.keys.select_batches(
            blocks.data, begin, self._now_ms, writer.data, writer.length
        )
        if blocks.position > begin:
            writer.extend(length, copied, interval_bytes)
            return blocks.position - begin
        batch = blocks.take()
        kept = yield from remains(
            batch,
            self._fate(batch, seen),
            self.keys,
            self._horizon,
            drops_tombstones=self._is_past_horizon(batch.header),
            level=log.config.level_of(batch.header.codec),
        )
        if kept is not None:
            writer.add(kept, interval_bytes)
        return batch.header.size

    def _fate(self, batch: Batch, seen: SeenTransactions) -> Fate:
        """Return the `Fate` of a batch, by its transaction and its producer, as Kafka's
        `Cleaner.cleanInto` does."""
        header = batch.header
        keeps_header = header.has_producer and self._is_last_of_producer(header)
        if not header.is_control:
            return Fate(seen.is_aborted(header), keeps_header)
        is_empty = seen.is_empty(header, lookup.marker_of(batch.data, header))
        is_over = self._is_past_horizon(header)
        return Fate(is_empty and is_over, keeps_header, begins_horizon=is_empty)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._plan.last_batches
        if header.producer_id not in last:
            return False
        offset = last[header.producer_id]
        return header.is_control if offset is None else header.last_offset == offset

    def _is_past_horizon(self, header: BatchHeader) -> bool:
        return header.has_delete_horizon and header.base_timestamp <= self._now_ms


def _new_buffer() -> memoryview:
    """Return the memory for the data of a `_Writer`. A bytearray would hold the GIL for some
    milliseconds, to fill the memory with zeros."""
    return memoryview(mmap.mmap(-1, _BUFFER_BYTES))


class _Writer:
    """Writes the batches of a new segment, about `BLOCK_BYTES` at a time. The first `length` bytes
    of `data` are the batches that are not written yet."""

    def __init__(self, segment: Segment, data: memoryview) -> None:
        self.segment = segment
        self.data = data
        self.length = 0
        self._batches: list[Appended] = []

    def clear(self, disk: Disk) -> None:
        """Remove the data that an interrupted earlier pass has left in the files."""
        for path in self.segment.paths():
            if path != self.segment.path:
                disk.unlink(path)
        self.segment.file.truncate(0)

    def extend(
        self,
        length: int,
        batches: Iterable[tuple[int, int, int, int]],
        index_interval_bytes: int,
    ) -> None:
        """Add `batches`, whose bytes are already in `data`. `length` is the new number of used
        bytes in `data`. Each item of `batches` has the fields of `Appended`."""
        self.length = length
        self._batches += map(Appended._make, batches)
        if length >= BLOCK_BYTES:
            self._flush(index_interval_bytes)

    def add(self, batch: Batch, index_interval_bytes: int) -> None:
        header = batch.header
        size, facts = header.size, (header.last_offset, header.max_timestamp)
        if self.length + size > len(self.data):
            self._flush(index_interval_bytes)
        if size > len(self.data):
            self.segment.append(batch.data, [Appended(0, size, *facts)], index_interval_bytes)
            return
        begin, end = self.length, self.length + size
        self.data[begin:end] = batch.data
        self.extend(end, [(begin, size, *facts)], index_interval_bytes)

    def _flush(self, index_interval_bytes: int = 0) -> None:
        if self._batches:
            self.segment.append(self.data[: self.length], self._batches, index_interval_bytes)
            self.length, self._batches = 0, []

    def finish(self, disk: Disk, seen: SeenTransactions, next_offset: int) -> int:
        """Make all files of the segment durable and close them. Return the size of the segment in
        bytes."""
        segment = self.segment
        self._flush()
        for transaction in seen.kept:
            segment.transactions.append(transaction)
        seen.kept = []
        disk.open(segment.transactions.path, create=True).close()
        segment.seal()
        for table in (segment.times.table, segment.offsets.table):
            table.spill()  # also an empty segment has index files
        segment.sync(indexes=True)
        segment.close()
        segment.end_at(segment.size, next_offset)
        return segment.size

    def discard(self, disk: Disk) -> None:
        """Remove the files of the new segment, unless they have their final names already."""
        self.segment.close()
        for path in self.segment.paths():
            disk.unlink(path)
