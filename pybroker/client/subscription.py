"""The state of each assigned partition of a consumer, and its fetched batches.

This module does no I/O; `fetcher` sends the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.errors import ClientError, DamagedRecords
from pybroker.errors import BrokerError, CorruptionError
from pybroker.model import NO_EPOCH, TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader, TimestampType, crc_matches, iter_headers
from pybroker.records.columns import ColumnBuilder
from pybroker.records.control import ControlType, parse_control
from pybroker.records.record import Headers, decode_records

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
"""The maximum size of a decompressed batch. Brokers limit batches to a few MB."""
OFFSET_END: Final = 2**63
"""A value above all offsets."""
ROW_BYTES: Final = 32
"""The approximate size of a row of columns without its keys and values, in bytes."""

Keep = Callable[[BatchHeader, memoryview], int]
"""A function that stores the records of a batch that lie at or after the position, and returns
their number."""

EPOCHS_KEPT = 16


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """A consumed record. `timestamp` is in ms since 1970. `leader_epoch` is the epoch of the leader
    that appended the record, -1 if unknown."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int


@dataclass(slots=True, eq=False)
class FetchedData:
    """The record batches of one partition in one Fetch response. They are decoded one by one, when
    the application reads them."""

    data: Buffer
    aborted: deque[tuple[int, int]]
    """The first offset and the producer id of each aborted transaction, sorted by offset. Filled
    only for read_committed."""
    aborting: set[int] = field(default_factory=set)
    position: int = 0
    batch_before: int = 0
    """The byte position of the batch that was decoded last."""

    @property
    def rest_bytes(self) -> int:
        return len(self.data) - self.position


def begin_data(data: Buffer, aborted: list[tuple[int, int]]) -> FetchedData:
    return FetchedData(memoryview(data), deque(sorted(aborted)))


@dataclass(slots=True, eq=False)
class PartitionReader:
    """The state of a partition that is assigned to a consumer."""

    topic_partition: TopicPartition
    position: int | None = None
    """The offset of the next record for the application; None while it is unknown."""
    fetch_offset: int = -1
    """The next offset to request. It is at least `position`."""
    position_epoch: int = NO_EPOCH
    """The leader epoch of the last record before `position`."""
    fetch_epoch: int = NO_EPOCH
    """The leader epoch of the last record before `fetch_offset`."""
    checked_epoch: int = NO_EPOCH
    """The latest leader epoch for which the check for log truncation before `fetch_offset` is done
    (`position_check.py`)."""
    epochs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=EPOCHS_KEPT))
    """(leader epoch, first offset) of the latest leader epochs fetched since the last `jump`."""
    reset: int | None = None
    """The timestamp by which ListOffsets finds an unknown position."""
    initial: bool = False
    """Whether an unknown position is the group's committed offset, if the group has one."""
    paused: bool = False
    era: int = 0
    """The number of calls of `jump`. A response to a request from before a call is ignored."""
    next_try: float = 0.0
    failures: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    buffered: deque[FetchedData] = field(default_factory=deque)
    ready: deque[ConsumerRecord] = field(default_factory=deque)
    problem: ClientError | None = None

    def jump(
        self, offset: int | None, reset: int | None = None, leader_epoch: int = NO_EPOCH
    ) -> None:
        """Set the position to `offset`, or, with None, let the fetcher find it by the timestamp
        `reset`. Fetched records are dropped. `leader_epoch` is the epoch of the last record before
        the position."""
        self.era += 1
        self.initial = False
        self.position = offset
        self.position_epoch = self.fetch_epoch = leader_epoch
        self.checked_epoch = NO_EPOCH
        self.epochs.clear()
        self.fetch_offset = -1 if offset is None else offset
        self.reset = reset
        self.failures = 0
        self.next_try = 0.0
        self.buffered.clear()
        self.ready.clear()
        self.problem = None

    @property
    def buffered_bytes(self) -> int:
        return sum(data.rest_bytes for data in self.buffered)

    def add(self, fetched: FetchedData) -> bool:
        """Store the batches of a Fetch response. Return False if the response has no whole batch at
        or above `fetch_offset`."""
        headers = [
            header
            for _, header in iter_headers(fetched.data)
            if header.next_offset > self.fetch_offset
        ]
        if not headers:
            return False
        for header in headers:
            if header.leader_epoch != self.fetch_epoch:
                self.fetch_epoch = header.leader_epoch
                self.epochs.append((header.leader_epoch, header.base_offset))
        self.fetch_offset = headers[-1].next_offset
        self.buffered.append(fetched)
        return True

    def pop(self) -> ConsumerRecord:
        """Return the first record of `ready`, the decoded records, and move the position behind
        it."""
        record = self.ready.popleft()
        self.position = record.offset + 1
        return record

    def take(self, limit: int, *, check_crcs: bool, committed_only: bool) -> list[ConsumerRecord]:
        """Return up to `limit` fetched records, and move the position behind them. With
        `committed_only`, omit records of aborted transactions. At a damaged batch, set `problem`
        and leave the position before the batch."""
        taken: list[ConsumerRecord] = []
        while len(taken) < limit:
            if not self.ready and not self._unpack(check_crcs, committed_only, self._get_ready):
                break
            while self.ready and len(taken) < limit:
                taken.append(self.pop())
        return taken

    def take_columns(
        self, builder: ColumnBuilder, bytes_max: int, *, check_crcs: bool, committed_only: bool
    ) -> None:
        """Add whole fetched batches to `builder` until it has `bytes_max` bytes, and move the
        position behind them. Damaged and aborted batches are handled as in `take`."""
        if self.ready:  # `take` returned only a part of that batch
            self.ready.clear()
            self.buffered[0].position = self.buffered[0].batch_before

        def keep(header: BatchHeader, batch: memoryview) -> int:
            added = builder.add(
                batch,
                header,
                self.position or 0,
                OFFSET_END,
                decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
            )
            self.position = max(self.position or 0, header.next_offset)
            return added

        while builder.size + ROW_BYTES * builder.rows < bytes_max:
            if not self._unpack(check_crcs, committed_only, keep):
                break

    def lag(self, *, committed_only: bool) -> int | None:
        """Return the number of offsets from the position to the high watermark (with
        `committed_only`, to the last stable offset) of the last Fetch response; None if one of them
        is unknown. The result is at least 0, although the response may be older than the
        position."""
        end = self.last_stable_offset if committed_only else self.high_watermark
        if self.position is None or end < 0:
            return None
        return max(end - self.position, 0)

    def has_data(self) -> bool:
        return bool(self.ready or self.buffered)

    def _unpack(self, check_crcs: bool, committed_only: bool, keep: Keep) -> bool:
        """Decode the next fetched batch that has records for the application, and pass it to
        `keep`. Return False if no fetched batch has any."""
        while self.buffered and self.problem is None:
            fetched = self.buffered[0]
            found = next(iter_headers(memoryview(fetched.data)[fetched.position :]), None)
            if found is None:
                self.buffered.popleft()
                continue
            header = found[1]
            batch = memoryview(fetched.data)[fetched.position :][: header.size]
            try:
                if check_crcs and not crc_matches(batch, 0, header.size):
                    raise CorruptionError("the checksum of the batch is wrong")
                is_shown = self._is_shown(fetched, header, batch, committed_only)
                kept = keep(header, batch) if is_shown else 0
            except (CorruptionError, BrokerError) as error:
                self.problem = DamagedRecords(self.topic_partition, header.base_offset, str(error))
                self.problem.__cause__ = error
                return False
            fetched.batch_before = fetched.position
            fetched.position += header.size
            self.position_epoch = header.leader_epoch
            if kept:
                return True
            self.position = max(self.position or 0, header.next_offset)
        return False

    def _is_shown(
        self, fetched: FetchedData, header: BatchHeader, batch: memoryview, committed_only: bool
    ) -> bool:
        """Return whether the application gets the records of the next batch: it is no transaction
        marker and, with `committed_only`, not aborted."""
        while fetched.aborted and fetched.aborted[0][0] <= header.last_offset:
            fetched.aborting.add(fetched.aborted.popleft()[1])
        if header.is_control:
            self._end_of_transaction(fetched, header, batch)
            return False
        return not (
            committed_only and header.is_transactional and header.producer_id in fetched.aborting
        )

    def _get_ready(self, header: BatchHeader, batch: memoryview) -> int:
        """Decode the records of a batch that lie at or after the position into `ready`, and return
        how many records wait there."""
        position = self.position or 0
        topic, partition = self.topic_partition
        self.ready.extend(
            ConsumerRecord(
                topic,
                partition,
                record.offset,
                record.timestamp,
                record.timestamp_type,
                record.key,
                record.value,
                record.headers,
                header.leader_epoch,
            )
            for record in decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
            if record.offset >= position
        )
        return len(self.ready)

    @staticmethod
    def _end_of_transaction(fetched: FetchedData, header: BatchHeader, batch: memoryview) -> None:
        for record in decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            marker = parse_control(record)
            if marker is not None and marker.type == ControlType.ABORT:
                fetched.aborting.discard(header.producer_id)
