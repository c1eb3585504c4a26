"""The check whether a range still has the records that were counted when the range was created.

Two replicas that were compacted at different times may have equally many, but different records. So
the check also compares a digest of the offsets: the sum of BASE**offset modulo a prime.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final, NamedTuple

from pybroker.client.ranges.model import DIGEST_END, Counted, RangeFailed, RangeFault
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader
from pybroker.records.columns import ColumnBuilder
from pybroker.records.record import decode_records

DECOMPRESSED_BYTES_MAX: Final = 256 * 2**20
"""The maximum size of a decompressed batch, as in the consumer."""
BASE: Final = 3141592653589793
"""A primitive root of DIGEST_END: its powers repeat only after 9 * 10**15 offsets."""
_INVERSE: Final = pow(BASE - 1, -1, DIGEST_END)
_POWERS: Final = 2**16


class Difference(NamedTuple):
    """A part of a range whose records have changed since they were counted. `records` is the
    present number of records. If `records` equals `counted.records`, only the offsets differ."""

    counted: Counted
    records: int


class Tally:
    """Counts the records of batches. The batches are added in the order of offsets."""

    def __init__(self) -> None:
        self.records = 0
        self._digest = 0
        self._first = self._beyond = 0
        """The first and the end offset of consecutive records that the digest does not contain
        yet."""

    def add(self, header: BatchHeader, batch: Buffer, first: int, beyond: int) -> None:
        """Count the records of `batch` whose offsets are at least `first` and below `beyond`.
        Raises CorruptionError if the batch is malformed. Raises BrokerError if the records cannot
        be decompressed."""
        base = header.base_offset
        first, beyond = max(first, base), min(beyond, header.next_offset)
        if first >= beyond or not header.record_count:
            return
        if header.record_count == header.next_offset - base:
            if first != self._beyond:
                self._settle()
                self._first = first
            self._beyond = beyond
            self.records += beyond - first
            return
        deltas = _deltas(header, batch, first - base, beyond - base)
        self.records += len(deltas)
        self._digest += pow(BASE, base, DIGEST_END) * _sum_of_powers(deltas)

    def take(self) -> tuple[int, int]:
        """Return (number of added records, digest of their offsets), and start again at zero."""
        self._settle()
        found = self.records, self._digest % DIGEST_END
        self.records = self._digest = 0
        return found

    def _settle(self) -> None:
        if self._first < self._beyond:
            low, high = (pow(BASE, each, DIGEST_END) for each in (self._first, self._beyond))
            self._digest += (high - low) * _INVERSE
        self._first = self._beyond = 0


class CountCheck:
    """Compares the batches of a range with `counts`, the record count of each part of the range.
    Counts and batches are in the order of offsets."""

    def __init__(self, counts: Iterable[Counted]) -> None:
        self._due = deque(counts)
        self._tally = Tally()
        """The counter of the part that is being read."""
        self._different: list[Difference] = []

    def add(self, header: BatchHeader, batch: Buffer, first_offset: int) -> None:
        """Count the records of a batch from `first_offset` on. Raises the errors of `Tally.add`."""
        place = max(header.base_offset, first_offset)
        while self._due and place < header.next_offset:
            due = self._due[0]
            if due.beyond <= place:
                self._close()
                continue
            beyond = min(due.beyond, header.next_offset)
            self._tally.add(header, batch, max(place, due.first), beyond)
            place = beyond

    def passed(self, position: int) -> list[Difference]:
        """Return the counted parts of the range up to `position` whose records have changed since
        they were counted. Each part is returned only once. The caller must have added all batches
        below `position`."""
        while self._due and self._due[0].beyond <= position:
            self._close()
        found, self._different = self._different, []
        return found

    def _close(self) -> None:
        counted = self._due.popleft()
        records, digest = self._tally.take()
        if (records, digest) != (counted.records, counted.digest):
            self._different.append(Difference(counted, records))


def compacted(topic_partition: TopicPartition, difference: Difference) -> RangeFailed:
    """Return the exception for a part of a range that no longer has the records that were counted
    when the snapshot was taken."""
    (first, beyond, records, _), now = difference
    if now < records:
        found = f"{now} are there now"
    elif now > records:
        found = (
            f"{now} are there now: the new leader has compacted fewer records than "
            "the previous leader"
        )
    else:
        found = (
            f"{now} other records are there now: the new leader has compacted other "
            "records than the previous leader"
        )
    return RangeFailed(
        topic_partition,
        first,
        RangeFault.COMPACTED,
        f"compacted: {records} records were counted from {first} to {beyond} when "
        f"the snapshot was taken, {found}: either take a new snapshot, with "
        "min.compaction.lag.ms so high that no record is compacted before you have "
        "read it; or read the records that are left (failOnDataLoss=false)",
    )


def _deltas(header: BatchHeader, batch: Buffer, first: int, beyond: int) -> Sequence[int]:
    """Return the offset deltas of a batch's records, only those with `first` <= delta <
    `beyond`."""
    try:
        builder = ColumnBuilder(keys=False, values=False)
    except ImportError:  # neither the compiled module nor NumPy is installed
        records = decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        found = [record.offset - header.base_offset for record in records]
        return [each for each in found if first <= each < beyond]
    rows = builder.add(
        batch,
        header._replace(base_offset=0),
        first,
        beyond,
        decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
    )
    return struct.unpack(f"<{rows}q", builder.finish().offsets)


def _sum_of_powers(exponents: Sequence[int]) -> int:
    if exponents and max(exponents) < _POWERS:
        return sum(map(_powers().__getitem__, exponents))
    return sum(pow(BASE, each, DIGEST_END) for each in exponents)


@cache
def _powers() -> tuple[int, ...]:
    found, power = [], 1
    for _ in range(_POWERS):
        found.append(power)
        power = power * BASE % DIGEST_END
    return tuple(found)
