"""Helpers for tests of the range reader: batches, a log that holds them, and one reading."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from pybroker.client.range_reader import (
    PartitionRange,
    Patience,
    RangeFailed,
    RangeReader,
)
from pybroker.client.ranges.counts import Difference
from pybroker.records.record import decode_records
from unit_tests.client.fake_broker import FakeBroker

QUICK = {
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "5",
    "reconnect.backoff.ms": "1",
    "reconnect.backoff.max.ms": "5",
    "fetch.max.wait.ms": "10",
    "bootstrap.timeout.ms": "500",
}
IMPATIENT = Patience(stalled_s=5.0, gone_s=0.1, recreated_s=0.1, corrupt_s=0.1, bare_s=0.1)
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def numbers(first: int, beyond: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, beyond)]


class Reading:
    """The result of reading a range: the values whose offsets are in the range, the lost offsets,
    the stretches whose records differ from their count, and the error."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.lost: list[tuple[int, int]] = []
        self.compacted: list[Difference] = []
        self.failed: BaseException | None = None


def read_now(
    address: str, wanted: PartitionRange, conf: Mapping[str, str] | None = None, **options: Any
) -> Reading:
    found = Reading()
    settings = {"patience": IMPATIENT, **options}
    with RangeReader({"bootstrap.servers": address, **QUICK, **(conf or {})}, **settings) as reader:
        try:
            for _, data in reader.batches(wanted):
                for record in decode_records(data, decompressed_bytes_max=1 << 24):
                    if reader.first_offset <= record.offset < wanted.end:
                        found.values.append(record.value)
                        found.offsets.append(record.offset)
        except Exception as error:
            found.failed = error
        found.lost = reader.lost
        found.compacted = reader.compacted
    return found


async def read(broker: FakeBroker, start: int, end: int, **options: Any) -> Reading:
    """Read a range of the fake topic. The keyword arguments are those of a range or of the
    reader."""
    known = {key: options.pop(key) for key in ("topic_id", "leader_epoch") if key in options}
    wanted = PartitionRange("t", 0, start, end, **known)
    return await asyncio.to_thread(read_now, broker.address, wanted, **options)


def failure(found: Reading) -> RangeFailed:
    assert isinstance(found.failed, RangeFailed), found.failed
    return found.failed
