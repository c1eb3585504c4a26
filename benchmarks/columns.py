"""Measures the speed of decoding batches into columns, by the compiled module and by NumPy, and
compares it with `decode_records` in the same run.

    python benchmarks/columns.py [--records N] [--rounds N] [--batch-bytes N] [--poll]

The program prints million records per second of CPU time (the best of several rounds), including
decompression, for values of 100 and 300 bytes in batches of 1 MB. It also prints the speed of
decompression alone (`codec`), and the speed of each kind of columns divided by the speed of
`decode_records`, which uses the compiled module. With `--poll`, the program also starts a broker
and reads 400,000 records by `getmany` and by `poll_arrow`. Only the ratios can be compared with
another machine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import random
import time
from collections.abc import Callable, Sequence

from pybroker.client import Consumer, Producer, TopicPartition
from pybroker.records import columns
from pybroker.records.batch import HEADER_SIZE, read_header
from pybroker.records.builder import BatchBuilder
from pybroker.records.columns import ColumnBuilder
from pybroker.records.compression import Codec, decompress
from pybroker.records.record import decode_records
from pybroker.testing import Cluster

NOW_MS = 1_700_000_000_000
LIMIT = 64 * 1024 * 1024
FINISH_BYTES = 4 * 1024 * 1024
"""The approximate size in bytes of the columns that a reader collects before it returns them."""
SIZES = (100, 300)
TEXT = b'{"kind": "order", "state": "paid", "customer": ' * 10
POLLED = 400_000
PARTITION = TopicPartition("columns", 0)
FORMS = ("_speedups", "_numpy_columns")


def batches_of(codec: Codec, value_bytes: int, records: int, batch_bytes: int) -> list[bytes]:
    """Return batches of `records` records with keys, each batch of about `batch_bytes` bytes. 40
    bytes of each value are random; the rest is repeated text."""
    chance = random.Random(17)
    found = []
    builder = BatchBuilder(codec)
    for number in range(records):
        value = chance.randbytes(40) + TEXT[: value_bytes - 40]
        builder.append(NOW_MS + number, b"key-%08d" % number, value)
        if builder.estimated_size >= batch_bytes or number == records - 1:
            found.append(builder.build())
            builder = BatchBuilder(codec)
    return found


def into_columns(batches: Sequence[bytes]) -> int:
    builder = ColumnBuilder()
    rows = 0
    for batch in batches:
        rows += builder.add(batch, read_header(batch), 0, 2**63, decompressed_bytes_max=LIMIT)
        if builder.size >= FINISH_BYTES:
            builder.finish()
    builder.finish()
    return rows


def by_form(form: str) -> Callable[[Sequence[bytes]], int]:
    name = f"pybroker.records.{form}"
    importlib.import_module(name)

    def measured(batches: Sequence[bytes]) -> int:
        chosen = columns._IMPLEMENTATIONS
        columns._IMPLEMENTATIONS = (name,)  # type: ignore[misc]
        try:
            return into_columns(batches)
        finally:
            columns._IMPLEMENTATIONS = chosen  # type: ignore[misc]

    return measured


def into_records(batches: Sequence[bytes]) -> int:
    return sum(len(decode_records(batch, decompressed_bytes_max=LIMIT)) for batch in batches)


def only_decompressed(batches: Sequence[bytes]) -> int:
    rows = 0
    for batch in batches:
        header = read_header(batch)
        decompress(header.codec, memoryview(batch)[HEADER_SIZE:], LIMIT)
        rows += header.record_count
    return rows


def rate(action: Callable[[Sequence[bytes]], int], batches: Sequence[bytes], rounds: int) -> float:
    """Return how many million records per second of CPU time `action` processes, in the fastest
    round."""
    best = 0.0
    for _ in range(rounds):
        start = time.process_time()
        rows = action(batches)
        best = max(best, rows / (time.process_time() - start) / 1e6)
    return best


def decode(records: int, rounds: int, batch_bytes: int) -> None:
    actions = (into_records, *map(by_form, FORMS), only_decompressed)
    names = ("records", "compiled", "NumPy", "codec", "compiled/records", "NumPy/records")
    print(f"{'million records a second':26}" + "".join(f"{name:>18}" for name in names))
    for value_bytes in SIZES:
        for codec in Codec:
            batches = batches_of(codec, value_bytes, records, batch_bytes)
            rates = [rate(action, batches, rounds) for action in actions]
            ratios = [rates[1] / rates[0], rates[2] / rates[0]]
            print(line(f"{value_bytes} B, {codec.name.lower()}", [*rates, *ratios]))


def line(name: str, figures: Sequence[float]) -> str:
    return f"{name:26}" + "".join(f"{figure:18.2f}" for figure in figures)


async def produce(servers: str) -> None:
    chance = random.Random(17)
    async with Producer(servers, linger_ms=20, compression_type="lz4") as producer:
        for start in range(0, POLLED, 10_000):
            deliveries = [
                await producer.send(
                    PARTITION.topic, chance.randbytes(40) + TEXT[:60], key=b"key-%08d" % number
                )
                for number in range(start, start + 10_000)
            ]
            await asyncio.gather(*deliveries)


async def consume(servers: str, name: str) -> float:
    """Read all records by the consumer's method `name` (`getmany` or `poll_arrow`). Return how many
    million records per second of CPU time the consumer reads."""
    async with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([PARTITION])
        rows = 0
        start = time.process_time()
        while rows < POLLED:
            if name == "getmany":
                many = await consumer.getmany(timeout_ms=1_000, max_records=20_000)
                rows += sum(len(records) for records in many.values())
            else:
                tables = await consumer.poll_arrow(1_000, max_bytes=FINISH_BYTES)
                rows += sum(table.num_rows for table in tables.values())
        return rows / (time.process_time() - start) / 1e6


def poll(rounds: int) -> None:
    print(f"{'':26}{'getmany':>18}{'poll_arrow':>18}{'ratio':>18}")
    with Cluster(1) as cluster:
        asyncio.run(produce(cluster.bootstrap))
        asyncio.run(consume(cluster.bootstrap, "poll_arrow"))  # this loads pyarrow
        best = {"getmany": 0.0, "poll_arrow": 0.0}
        for _ in range(rounds):
            for name, rate in best.items():
                best[name] = max(rate, asyncio.run(consume(cluster.bootstrap, name)))
    ratio = best["poll_arrow"] / best["getmany"]
    print(line("100 B, lz4, from a broker", [*best.values(), ratio]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-bytes", type=int, default=1_000_000)
    parser.add_argument("--poll", action="store_true")
    options = parser.parse_args()
    decode(options.records, options.rounds, options.batch_bytes)
    if options.poll:
        poll(options.rounds)


if __name__ == "__main__":
    main()
