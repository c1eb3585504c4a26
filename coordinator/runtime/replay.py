"""The loading of a shard: passes every record of the log to the coordinator's `replay`, in order.

A damaged batch is skipped if no other replica can have the batch's records. If another replica may
have them, loading fails, because the other replica should become the leader
(`health/unhealthy_replicas.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pybroker.coordinator.runtime.shard import Coordinator, StoredMarker, StoredRecord
from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.ports import Blocking, Buffer, PartitionLog
from pybroker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, BatchHeader, crc_matches
from pybroker.records.batch import iter_headers as whole_batches
from pybroker.records.control import ControlType, parse_control
from pybroker.records.record import decode_records

log = logging.getLogger(__name__)

_DECOMPRESSED_BYTES_MAX: Final = 32 * 1024**2
_RECORDS_PER_TURN: Final = 500
_LINES_MAX: Final = 20
"""The maximum number of log lines about skipped batches and records of one partition. Further ones
are only counted."""

Stored = StoredRecord | StoredMarker
_UNREADABLE: Final = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE)
"""Errors that a second read would raise again."""


class Fault(NamedTuple):
    """Why the batch at `offset` cannot be used. `is_damage`: the batch is damaged, but another
    replica may have an intact copy. If False, the checksum is correct, but the records cannot be
    decoded."""

    offset: int
    reason: str
    is_damage: bool = False


class Decoded(NamedTuple):
    """The result of one read: the records and markers, the next offset to read, and the batches
    that cannot be used."""

    stored: list[Stored]
    next_offset: int
    faults: list[Fault]


@dataclass(slots=True)
class Replay:
    """One replay of a log from its start to its end."""

    source: PartitionLog
    coordinator: Coordinator
    blocking: Blocking
    bytes_per_read: int
    may_leave_out: Callable[[], bool] = lambda: True
    """Called if a batch is damaged. Returns whether the batch can be skipped, because no other
    replica can have its records."""
    offset: int = -1
    """The next offset to read; -1 before the first read."""
    records: int = 0
    bytes_read: int = 0
    left_out: int = 0
    """The number of skipped batches, records and ranges of offsets."""
    _lines: int = field(default=0, repr=False)

    async def run(self) -> None:
        """Replay up to the log end. The first call begins at the log start. A later call continues
        where the previous call stopped. Raises BrokerError. The code is CORRUPT_MESSAGE if another
        replica may have an intact copy of a damaged batch. With any other code, the log cannot be
        read."""
        source = self.source
        if self.offset < source.start_offset:
            self.offset = source.start_offset
        while self.offset < source.end_offset:
            decoded = await self._read(self.offset)
            if decoded is None:
                await self._step_over()
                continue
            for fault in decoded.faults:
                if fault.is_damage:
                    self._report_damage(fault.offset, fault.reason)
            for fault in decoded.faults:
                self._skip(f"the batch at offset {fault.offset}", fault.reason)
            await self._pass_to_coordinator(decoded.stored)
            self.offset = decoded.next_offset

    async def _read(self, offset: int) -> Decoded | None:
        """Return the decoded batches from `offset` on; None if `offset` cannot be read."""
        end = self.source.end_offset
        try:
            batches = await self.source.read(offset, self.bytes_per_read)
        except BrokerError as error:
            if error.code in _UNREADABLE:
                return None
            raise
        if not batches:
            return Decoded([], end, [])
        self.bytes_read += sum(map(len, batches))
        decoded = await self.blocking.run(decode, batches, offset, end)
        return decoded if decoded.next_offset > offset else None

    async def _step_over(self) -> None:
        """Continue the replay at the next offset of the log that can be read."""
        begin, end = self.offset, self.source.end_offset
        start = self.source.start_offset
        if begin < start:  # retention deleted the offset meanwhile
            self.offset = start
            return
        self._report_damage(begin, "the log cannot be read there")
        bad, step = begin, 1
        while bad + step < end and await self._read(bad + step) is None:
            bad, step = bad + step, step * 2
        good = min(bad + step, end)
        while good - bad > 1:
            middle = (good + bad) // 2
            if await self._read(middle) is None:
                bad = middle
            else:
                good = middle
        self._skip(f"offsets {begin} to {good - 1}", "the log cannot be read there")
        self.offset = good

    async def _pass_to_coordinator(self, stored: Sequence[Stored]) -> None:
        for number, each in enumerate(stored, 1):
            try:
                if isinstance(each, StoredMarker):
                    self.coordinator.replay_marker(each)
                else:
                    self.coordinator.replay(each)
            except Exception as error:
                self._skip(f"the record at offset {each.offset}", f"its replay failed: {error!r}")
            if number % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.records += len(stored)

    def _report_damage(self, offset: int, reason: str) -> None:
        """Tell the partition's log that the batch at `offset` may be damaged. Raises BrokerError
        CORRUPT_MESSAGE if another replica may have an intact copy of this batch."""
        self.source.suspect(offset)
        if not self.may_leave_out():
            raise BrokerError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the log of {self.source.topic_partition} is damaged at offset {offset}"
                f" ({reason}); another replica may have the records and should become the leader",
            )

    def _skip(self, records: str, reason: str) -> None:
        self.left_out += 1
        if self._lines < _LINES_MAX:
            self._lines += 1
            partition = self.source.topic_partition
            log.error("skipped %s of %s while loading: %s", records, partition, reason)


def decode(batches: Sequence[Buffer], offset: int, end: int) -> Decoded:
    """Decode the batches from `offset` on. A batch that reaches beyond `end`, the log end offset,
    counts as damaged."""
    stored: list[Stored] = []
    faults: list[Fault] = []
    try:
        for data in batches:
            for position, header in whole_batches(data):
                if header.next_offset <= offset:
                    continue
                if header.next_offset > end:
                    reason = f"its next offset {header.next_offset} exceeds the log end {end}"
                    faults.append(Fault(offset, reason, is_damage=True))
                    return Decoded(stored, offset, faults)
                batch = memoryview(data)[position : position + header.size]
                if crc_matches(batch, 0, header.size):
                    try:
                        found = _stored_in(batch, header)
                        stored += [each for each in found if each.offset >= offset]
                    except (CorruptionError, BrokerError) as error:
                        faults.append(Fault(header.base_offset, str(error)))
                else:
                    reason = "its checksum is wrong"
                    faults.append(Fault(header.base_offset, reason, is_damage=True))
                offset = header.next_offset
    except CorruptionError:
        pass  # an invalid header: the next read begins at this batch and fails
    return Decoded(stored, offset, faults)


def _stored_in(batch: memoryview, header: BatchHeader) -> list[Stored]:
    records = decode_records(batch, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX)
    producer_id, producer_epoch = header.producer_id, header.producer_epoch
    if not header.is_control:
        if not header.is_transactional:
            producer_id, producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        return [
            StoredRecord(
                each.offset, each.timestamp, each.key, each.value, producer_id, producer_epoch
            )
            for each in records
        ]
    stored: list[Stored] = []
    for each in records:
        marker = parse_control(each)
        if marker is not None:
            is_commit = marker.type is ControlType.COMMIT
            stored.append(StoredMarker(each.offset, producer_id, producer_epoch, is_commit))
    return stored
