"""Loading a shard: everything that the log holds goes to the coordinator's `replay`, in order.

A damaged batch is left out, with a line in the log, only where no other replica may have what it
held: all the others of its partition shall not be lost with it. Else the broker is about to hand
over the partition (`health/damaged_replicas.py`), and nothing may be answered meanwhile as if there
had never been more.
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
"""About what was left out of one partition; the rest is only counted."""

Stored = StoredRecord | StoredMarker
_UNREADABLE: Final = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.OFFSET_OUT_OF_RANGE)
"""Reading it again gives the same."""


class Fault(NamedTuple):
    """Why a batch cannot be used; `is_damage` if another replica may have it whole."""

    offset: int
    reason: str
    is_damage: bool = False


class Decoded(NamedTuple):
    """What some batches hold, from an offset on, and where to go on."""

    stored: list[Stored]
    next_offset: int
    faults: list[Fault]


@dataclass(slots=True)
class Replay:
    """One run from the start of a log to its end; what it has done so far."""

    source: PartitionLog
    coordinator: Coordinator
    blocking: Blocking
    bytes_per_read: int
    may_leave_out: Callable[[], bool] = lambda: True
    """Asked where something is damaged."""
    offset: int = -1
    """Where it is; -1: nowhere yet."""
    records: int = 0
    bytes_read: int = 0
    left_out: int = 0
    """Batches and records that could not be used."""
    _lines: int = field(default=0, repr=False)

    async def run(self) -> None:
        """Up to the log end; goes on where an earlier call was broken off. Raises BrokerError where
        the log cannot be read for now, or by us: CORRUPT_MESSAGE where it is damaged and that may
        not be left out."""
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
                    self._damaged(fault.offset, fault.reason)
            for fault in decoded.faults:
                self._leave_out(f"batch at offset {fault.offset}: {fault.reason}")
            await self._hand_on(decoded.stored)
            self.offset = decoded.next_offset

    async def _read(self, offset: int) -> Decoded | None:
        """None if what lies at `offset` cannot be read, now or later."""
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
        """Go on behind what cannot be read, where the log can be read again."""
        begin, end = self.offset, self.source.end_offset
        start = self.source.start_offset
        if begin < start:  # deleted meanwhile
            self.offset = start
            return
        self._damaged(begin, "it cannot be read")
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
        self._leave_out(f"offsets {begin} to {good - 1} cannot be read")
        self.offset = good

    async def _hand_on(self, stored: Sequence[Stored]) -> None:
        for number, each in enumerate(stored, 1):
            try:
                if isinstance(each, StoredMarker):
                    self.coordinator.replay_marker(each)
                else:
                    self.coordinator.replay(each)
            except Exception as error:
                self._leave_out(f"record at offset {each.offset}: {error!r}")
            if number % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.records += len(stored)

    def _damaged(self, offset: int, reason: str) -> None:
        """Raises BrokerError if another replica may have what was there."""
        self.source.suspect(offset)
        if not self.may_leave_out():
            raise BrokerError(
                ErrorCode.CORRUPT_MESSAGE,
                f"{self.source.topic_partition} is damaged at offset {offset} ({reason}); other"
                " replicas may have what was there, and one of them should lead",
            )

    def _leave_out(self, what: str) -> None:
        self.left_out += 1
        if self._lines < _LINES_MAX:
            self._lines += 1
            log.error("left out while loading partition=%s %s", self.source.topic_partition, what)


def decode(batches: Sequence[Buffer], offset: int, end: int) -> Decoded:
    """What the batches hold from `offset` on; those that reach beyond `end` are none of ours."""
    stored: list[Stored] = []
    faults: list[Fault] = []
    try:
        for data in batches:
            for position, header in whole_batches(data):
                if header.next_offset <= offset:
                    continue
                if header.next_offset > end:
                    reason = f"it says that it ends at {header.next_offset}"
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
        pass  # a header that is none: whoever reads on from here finds it at the beginning
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
