"""The records that a consumer returns, in Python. `_consumed.pxi` is the same in C: change both
together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic

from pybroker.ports import Buffer
from pybroker.records._pure import iter_records, record_bounds
from pybroker.records.batch import TimestampType, iter_headers
from pybroker.records.record import Headers, Record
from pybroker.records.type_variables import Key_co, Value_co

RECORDS_PER_TURN: Final = 1_200
"""The number of records that are decoded in a few milliseconds."""
RECORDS_PER_SLICE: Final = 1_000
RECORD_BYTES: Final = 64
"""The assumed size of a record in `check`, in bytes."""


@dataclass(frozen=True, slots=True)
class ConsumerRecord(Generic[Key_co, Value_co]):
    """A consumed record. `timestamp` is in ms since 1970. `leader_epoch` is the epoch of the leader
    that appended the record, -1 if unknown.

    The compiled variant decodes key, value and headers at the first access. Until then a record
    keeps up to 64 KiB of encoded records in memory, or more if the record itself is larger.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Key_co
    value: Value_co
    headers: Headers
    leader_epoch: int


class BatchReader:
    """Implements `pybroker.records.consumed.Reader`."""

    def __init__(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        payload: Buffer,
        record_count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        timestamp_type: TimestampType,
        first_offset: int,
    ) -> None:
        self._place = topic, partition
        self._leader_epoch = leader_epoch
        self._first_offset = first_offset
        self._checked: deque[list[Record]] = deque()
        self._all_checked = False
        self._rest: Iterator[Record] = iter_records(
            bytes(payload), record_count, base_offset, last_offset_delta, base_timestamp,
            append_time, timestamp_type, Record,
        )  # fmt: skip

    def check(self, bytes_max: int) -> bool:
        if not self._all_checked:
            self._checked.append(self._decode(max(bytes_max // RECORD_BYTES, 1)))
        return self._all_checked

    @property
    def done(self) -> bool:
        return self._all_checked and not self._checked

    def _decode(self, count: int) -> list[Record]:
        found = list(islice(self._rest, count))
        self._all_checked = len(found) < count
        return found

    def read(self) -> list[ConsumerRecord]:
        found = self._checked.popleft() if self._checked else self._decode(RECORDS_PER_SLICE)
        return [
            ConsumerRecord(
                *self._place,
                record.offset,
                record.timestamp,
                record.timestamp_type,
                record.key,
                record.value,
                record.headers,
                self._leader_epoch,
            )
            for record in found
            if record.offset >= self._first_offset
        ]


def outline_batches(data: Buffer, first_offset: int) -> tuple[int, list[tuple[int, int]]]:
    """Implements `pybroker.records.consumed.outline_batches`."""
    next_offset = -1
    epochs: list[tuple[int, int]] = []
    for _, header in iter_headers(data):
        if header.next_offset > first_offset:
            next_offset = header.next_offset
            if not epochs or epochs[-1][0] != header.leader_epoch:
                epochs.append((header.leader_epoch, header.base_offset))
    return next_offset, epochs


def record_slice(data: Buffer, position: int, count: int, bytes_max: int) -> tuple[int, int]:
    """Implements `pybroker.records.consumed.record_slice`."""
    end, found = position, 0
    while found < count and end - position < bytes_max:
        _, end = record_bounds(data, end)
        found += 1
    return end, found
