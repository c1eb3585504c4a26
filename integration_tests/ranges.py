"""Helpers of the tests of exact ranges: fill a topic, take a snapshot, read a range record by
record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from pybroker.client import Admin, NewTopic, Producer, TopicPartition
from pybroker.client.range_reader import PartitionRange, Patience, RangeReader
from pybroker.records.batch import BatchHeader
from pybroker.records.record import Record, decode_records

IMPATIENT = Patience(stalled_s=60.0, gone_s=0.5, recreated_s=0.2, corrupt_s=0.5, bare_s=1.0)


def make_topic(
    bootstrap: str,
    topic: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str] | None = None,
) -> None:
    async def make() -> None:
        async with Admin(bootstrap) as admin:
            wanted = NewTopic(topic, partitions, replicas, configs=dict(configs or {}))
            for result in await admin.create_topics([wanted]):
                result.check()

    asyncio.run(make())


def delete_topic(bootstrap: str, topic: str) -> None:
    async def delete() -> None:
        async with Admin(bootstrap) as admin:
            for result in await admin.delete_topics([topic]):
                result.check()

    asyncio.run(delete())


def delete_records(bootstrap: str, topic: str, before: int) -> None:
    async def delete() -> None:
        async with Admin(bootstrap) as admin:
            key = TopicPartition(topic, 0)
            (await admin.delete_records({key: before}))[key].check()

    asyncio.run(delete())


def fill(
    bootstrap: str,
    topic: str,
    first: int,
    count: int,
    *,
    key: Callable[[int], bytes] = lambda number: b"%d" % number,
    partition: int = 0,
    batch_size: int = 200,
) -> None:
    """Write records with numbers as values, in small batches."""

    async def send() -> None:
        async with Producer(bootstrap, batch_size=batch_size, linger_ms=5) as producer:
            sent = [
                await producer.send(topic, b"%d" % number, key=key(number), partition=partition)
                for number in range(first, first + count)
            ]
            for delivery in sent:
                await delivery

    asyncio.run(send())


def read(
    bootstrap: str,
    wanted: PartitionRange,
    *,
    each: Callable[[BatchHeader], None] = lambda _: None,
    patience: Patience = IMPATIENT,
    fail_on_data_loss: bool = True,
    isolation: str = "read_committed",
    lost: list[tuple[int, int]] | None = None,
    options: Mapping[str, str] | None = None,
) -> list[tuple[int, bytes | None]]:
    """Return offset and value of each record of a range. `each` is called with every batch; skipped
    offsets are added to `lost`.
    """
    given = {"bootstrap.servers": bootstrap, **(options or {})}
    with RangeReader(
        given, isolation=isolation, fail_on_data_loss=fail_on_data_loss, patience=patience
    ) as reader:
        found = list(_records(reader, wanted, each))
        if lost is not None:
            lost += reader.lost
        return [(record.offset, record.value) for record in found]


def _records(
    reader: RangeReader, wanted: PartitionRange, each: Callable[[BatchHeader], None]
) -> Iterator[Record]:
    for header, batch in reader.batches(wanted):
        each(header)
        for record in decode_records(batch, decompressed_bytes_max=1 << 24):
            if reader.first_offset <= record.offset < wanted.end:
                yield record


def numbers(first: int, beyond: int) -> list[tuple[int, bytes]]:
    """Return the records that `fill` writes to an empty topic."""
    return [(number, b"%d" % number) for number in range(first, beyond)]
