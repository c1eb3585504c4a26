"""Reading exact ranges: what is given, what is left out, what ends the reading, and brokers that
stumble."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from pybroker.client.range_reader import (
    PartitionRange,
    Patience,
    RangeFailed,
    RangeFault,
    RangeReader,
)
from pybroker.records.builder import BatchBuilder
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.records.record import decode_records
from unit_tests.client.fake_broker import FakeBroker, Partition

QUICK = {
    "retry.backoff.ms": "1",
    "retry.backoff.max.ms": "5",
    "reconnect.backoff.ms": "1",
    "reconnect.backoff.max.ms": "5",
    "fetch.max.wait.ms": "10",
}
IMPATIENT = Patience(stalled_s=5.0, gone_s=0.1, recreated_s=0.1, corrupt_s=0.1, bare_s=0.1)
OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)


def batch(*values: bytes, producer: int = -1) -> bytes:
    """A batch; in a transaction if it has a producer."""
    builder = BatchBuilder()
    for value in values:
        builder.append(1_000, b"k", value)
    if producer < 0:
        return builder.build()
    return builder.build(producer, 0, 0, transactional=True)


def marker(kind: ControlType, producer: int) -> bytes:
    return build_end_transaction(
        EndTransaction(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1
    )


def holding(log: Partition, *batches: bytes) -> None:
    for data in batches:
        log.append(data)


def numbers(first: int, beyond: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, beyond)]


class Reading:
    """What one range gave: the values of its own offsets, what was lost, and how it ended."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        self.lost: list[tuple[int, int]] = []
        self.failed: BaseException | None = None


def read_now(address: str, wanted: PartitionRange, **options: Any) -> Reading:
    found = Reading()
    settings = {"patience": IMPATIENT, **options}
    with RangeReader({"bootstrap.servers": address, **QUICK}, **settings) as reader:
        try:
            for _, data in reader.batches(wanted):
                for record in decode_records(data, decompressed_bytes_max=1 << 24):
                    if reader.first_offset <= record.offset < wanted.end:
                        found.values.append(record.value)
                        found.offsets.append(record.offset)
        except Exception as error:
            found.failed = error
        found.lost = reader.lost
    return found


async def read(broker: FakeBroker, start: int, end: int, **options: Any) -> Reading:
    """Read a range of the fake topic; keywords are those of a range, or of the reader."""
    known = {key: options.pop(key) for key in ("topic_id", "leader_epoch") if key in options}
    wanted = PartitionRange("t", 0, start, end, **known)
    return await asyncio.to_thread(read_now, broker.address, wanted, **options)


def failure(found: Reading) -> RangeFailed:
    assert isinstance(found.failed, RangeFailed), found.failed
    return found.failed


async def test_a_range_begins_and_ends_inside_of_batches() -> None:
    async with FakeBroker({"t": 1}) as broker:
        for first in range(0, 40, 10):
            holding(broker.partition(), batch(*numbers(first, first + 10)))
        found = await read(broker, 5, 25)
        assert (found.failed, found.values, found.lost) == (None, numbers(5, 25), [])
        assert (await read(broker, 7, 7)).values == []


async def test_many_small_answers_are_one_range() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        log.fetch_limit = 1
        holding(log, *(batch(*numbers(first, first + 3)) for first in range(0, 300, 3)))
        found = await read(broker, 0, 300)
        assert (found.failed, found.values) == (None, numbers(0, 300))


async def test_a_log_that_begins_behind_the_range_has_lost_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        log = broker.partition()
        for first in range(0, 40, 10):
            holding(log, batch(*numbers(first, first + 10)))
        log.start = 15
        failed = failure(await read(broker, 5, 35))
        assert (failed.reason, failed.offset) == (RangeFault.AGED_OUT, 5)
        assert str(failed).startswith("t-0@5: the partition begins at 15 now")
        found = await read(broker, 5, 35, fail_on_data_loss=False)
        assert (found.failed, found.values, found.lost) == (None, numbers(15, 35), [(5, 15)])
        found = await read(broker, 5, 12, fail_on_data_loss=False)
        assert (found.failed, found.values, found.lost) == (None, [], [(5, 12)])


async def test_another_topic_of_the_same_name_is_not_read() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(*numbers(0, 10)))
        broker.topic_ids["t"] = NEW
        failed = failure(await read(broker, 0, 10, topic_id=str(OLD)))
        assert (failed.reason, failed.offset) == (RangeFault.RECREATED, 0)
        found = await read(broker, 0, 10, topic_id=str(OLD), fail_on_data_loss=False)
        assert (found.failed, found.values, found.lost) == (None, [], [(0, 10)])
        found = await read(broker, 0, 10, topic_id=str(NEW))
        assert (found.failed, found.values) == (None, numbers(0, 10))
