"""Measures how long `Producer.send` blocks the event loop, and what yielding to the event loop
costs.

    python benchmarks/producer_sends.py [--records N] [--rounds R] [--size BYTES]

The program starts a broker with its own ZooKeeper on empty data. Two producers take turns: one
yields to the event loop when a batch is full, the other does not. Each sends the same records, and
waits until all are acknowledged. The program prints thousands of records per second, the longest
time in which no other task ran (`held`), and the time until the first acknowledgement (`first`).
Each figure is the median of all rounds, with the smallest and the largest value. The ratio of the
two producers' speeds is computed within each round.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.client import Admin, NewTopic, Producer
from pybroker.testing import Cluster

TOPIC: Final = "sends"
PARTITION_COUNTS: Final = (1, 6)


class BlockingProducer(Producer):
    """A producer that yields to the event loop only while it waits for metadata or for memory."""

    async def _give_way(self) -> None:
        pass


KINDS: Final[dict[str, type[Producer]]] = {
    "yields": Producer,
    "blocks the loop": BlockingProducer,
}


@dataclass(frozen=True)
class Round:
    """The result of one round. `rate`: thousands of records per second. `held_ms`: the longest time
    in ms in which no other task of the event loop ran. `first_ms`: the time in ms until the first
    record was acknowledged."""

    rate: float
    held_ms: float
    first_ms: float


@dataclass
class Ticker:
    """Measures the longest time in which other tasks of the event loop could not run."""

    longest_s: float = 0.0

    async def run(self) -> None:
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - before)
            before = now


async def one_round(kind: type[Producer], servers: str, topic: str, count: int, size: int) -> Round:
    value = b"v" * size
    async with kind(servers) as producer:
        await (await producer.send(topic, value))
        ticker = Ticker()
        ticking = asyncio.create_task(ticker.run())
        await asyncio.sleep(0)
        began = time.perf_counter()
        acknowledged: list[float] = []
        first = await producer.send(topic, value)
        first.add_done_callback(lambda _: acknowledged.append(time.perf_counter()))
        for _ in range(count - 1):
            await producer.send(topic, value)
        await producer.flush()
        took = time.perf_counter() - began
        ticking.cancel()
    return Round(count / took / 1e3, ticker.longest_s * 1e3, (acknowledged[0] - began) * 1e3)


def spread(values: Sequence[float], unit: str, digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:8.{digits}f} ({low:.{digits}f} to {high:.{digits}f}) {unit}"


def report(partitions: int, rounds: dict[str, list[Round]]) -> None:
    print(f"{partitions} partition{'s' if partitions > 1 else ''}")
    for name, each in rounds.items():
        print(
            f"  {name:15}{spread([one.rate for one in each], 'k records/s', 0)}"
            f"   held{spread([one.held_ms for one in each], 'ms', 1)}"
            f"   first{spread([one.first_ms for one in each], 'ms', 1)}"
        )
    pairs = zip(rounds["yields"], rounds["blocks the loop"], strict=True)
    ratios = [gives.rate / holds.rate for gives, holds in pairs]
    print(f"  {'ratio':15}{spread(ratios, 'x the records', 2)}", flush=True)


async def run(servers: str, options: argparse.Namespace) -> None:
    for partitions in PARTITION_COUNTS:
        topic = f"{TOPIC}-{partitions}"
        async with Admin(servers) as admin:
            for result in await admin.create_topics([NewTopic(topic, partitions)]):
                result.check()
        rounds: dict[str, list[Round]] = {name: [] for name in KINDS}
        for number in range(options.rounds):
            names = list(KINDS) if number % 2 else list(reversed(KINDS))
            for name in names:
                rounds[name].append(
                    await one_round(KINDS[name], servers, topic, options.records, options.size)
                )
        report(partitions, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=100, help="the size of each value in bytes")
    options = parser.parse_args()
    with Cluster(brokers=1) as cluster:
        asyncio.run(run(cluster.bootstrap, options))


if __name__ == "__main__":
    main()
