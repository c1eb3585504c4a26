"""Measures the cost of reading by Spark, and compares it with Apache's own connector.

    python benchmarks/spark.py [--quick] [--rounds N] [--only CASE,CASE]

The program needs Java and the connector's jars, which `mvn` fetches once. Both contestants read the
same topics of one pybroker broker, in one session with two tasks at a time (`local[2]`). They take
turns in beginning a round. The first round is a warm-up without a result. The cases are:

noop-100-none, noop-100-lz4, noop-100-zstd, noop-300-none, noop-300-lz4, noop-300-zstd
              read four partitions without writing; values of 100 B, or JSON of 300 B, with the
              named compression
parquet-100-none, parquet-300-none
              read the same partitions and write Parquet
latest        the last value of each key: mode=latest, compared with groupBy and max_by
plan          the time from load() to the list of tasks, for 1,000 partitions
memory        the memory of pybroker's Python workers while they read 0.2 GB, and 2 GB

Rates are records per second, including the time of load(). Processor time is that of Java and of
the Python workers. The program prints medians, and the ratio of our figure to the connector's
figure in the same round: its median, smallest and largest value.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

if __name__ == "__main__":
    # Remove the benchmarks' folder: some of its modules have the names of libraries.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import confluent_kafka
import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from integration_tests import maven, spark_session, spark_topics
from integration_tests.broker import PybrokerProcess

OURS: Final = "pybroker"
APACHE: Final = "kafka"
CONTESTANTS: Final = (OURS, APACHE)
"""The contestants; each is the name of its Spark format, too."""

PARTITIONS: Final = 4
POOL: Final = 20_000
"""The number of different values in a topic. A batch has fewer records, so no value repeats within
a batch."""
KEYS: Final = 432_000
MANY_PARTITIONS: Final = 1_000
SAMPLE_S: Final = 0.05
MIB: Final = 1 << 20


@dataclass(frozen=True)
class Goal:
    """A bound for the median ratio of pybroker to Apache's connector (`of_ratio`), or for
    pybroker's median itself."""

    sign: str
    value: float
    of_ratio: bool = True

    def met(self, ours: float, ratio: float | None) -> bool:
        found = ratio if self.of_ratio else ours
        assert found is not None
        return found >= self.value if self.sign == "≥" else found <= self.value

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}"


@dataclass(frozen=True)
class Metric:
    title: str
    unit: str
    goal: Goal | None = None


class Figures:
    """The figures of all rounds, by metric and contestant."""

    def __init__(self) -> None:
        self._found: dict[Metric, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, metric: Metric, contestant: str, figure: float) -> None:
        self._found[metric][contestant].append(figure)

    def lines(self) -> Iterator[list[str]]:
        """Return the lines of a table, each as its cells; the first line has the headings."""
        yield ["measure", "unit", "pybroker", "connector", "ratio", "goal", "met"]
        for metric, figures in self._found.items():
            ours, theirs = figures[OURS], figures[APACHE]
            ratios = [a / b for a, b in zip(ours, theirs, strict=False)]
            ratio = statistics.median(ratios) if ratios else None
            met = metric.goal and metric.goal.met(statistics.median(ours), ratio)
            yield [
                metric.title,
                metric.unit,
                number(statistics.median(ours)),
                number(statistics.median(theirs)) if theirs else "",
                "" if ratio is None else f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                str(metric.goal or ""),
                "" if met is None else "yes" if met else "NO",
            ]


def number(value: float) -> str:
    """Return the number as text with three significant digits."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


class Bench:
    """A broker, a Spark session with Apache's connector, and the processes whose CPU time is
    measured."""

    def __init__(self, folder: Path, spark: SparkSession, broker: PybrokerProcess, quick: bool):
        self.folder = folder
        self.spark = spark
        self.broker = broker
        self.quick = quick
        self._java = psutil.Process(spark.sparkContext._gateway.proc.pid)
        self._topics: dict[str, int] = {}

    def records(self, full: int) -> int:
        return full // 20 if self.quick else full

    def topic(self, kind: str, codec: str, records: int) -> str:
        """Return the name of a topic with `records` records of this kind of value, compressed by
        `codec`. The topic is created at its first use."""
        name = f"{kind}-{codec}-{records}"
        if name not in self._topics:
            spark_topics.create(self.broker.bootstrap, name, PARTITIONS)
            fill(self.broker.bootstrap, name, kind, codec, records)
            self._topics[name] = records
        return name

    def load(self, contestant: str, topic: str, **options: str) -> DataFrame:
        reader = self.spark.read.format(contestant)
        reader.option("kafka.bootstrap.servers", self.broker.bootstrap).option("subscribe", topic)
        return reader.options(**options).load()

    def workers(self) -> list[psutil.Process]:
        return self._java.children(recursive=True)

    def processor_seconds(self) -> float:
        total = 0.0
        for process in [self._java, *self.workers()]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def timed(self, do: Callable[[], object]) -> tuple[float, float]:
        """Call `do`. Return the seconds that it took, and the CPU seconds of Java and the Python
        workers."""
        os.sync()
        cpu, start = self.processor_seconds(), time.perf_counter()
        do()
        return time.perf_counter() - start, self.processor_seconds() - cpu


def fill(bootstrap: str, topic: str, kind: str, codec: str, records: int) -> None:
    """Write `records` records with KEYS different keys to the topic. All records of a key are in
    the same partition."""
    dice = random.Random(1)
    values = [VALUES[kind](dice, n) for n in range(POOL)]
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "linger.ms": 100,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "log_level": 0,
        }
    )
    for n in range(records):
        key = dice.randrange(KEYS)
        while True:
            try:
                producer.produce(topic, values[n % POOL], b"user-%07d" % key, key % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def value_of_100(dice: random.Random, n: int) -> bytes:
    """Return a value of 100 bytes, half of which cannot be compressed. `n` is not used."""
    words = b" ".join(b"%04x" % dice.randrange(4000) for _ in range(12))
    return (dice.randbytes(40) + words).ljust(100, b".")[:100]


def json_of_300(dice: random.Random, n: int) -> bytes:
    text = (
        f'{{"id":{n},"user":"user-{dice.randrange(KEYS):07d}","type":"{dice.choice(KINDS)}",'
        f'"amount":{dice.random() * 500:.2f},"currency":"EUR","ts":"2026-11-20T12:{n % 60:02d}:00Z"'
        f',"ip":"10.{n % 256}.{dice.randrange(256)}.{dice.randrange(256)}",'
        f'"session":"{dice.getrandbits(128):032x}","agent":"Mozilla/5.0 (X11; Linux x86_64)"}}'
    )
    return text.encode().ljust(300)[:300]


def value_of_1000(dice: random.Random, n: int) -> bytes:
    return dice.randbytes(500) + b"." * 500


KINDS: Final = ("click", "view", "buy", "cart")
VALUES: Final = {"100": value_of_100, "300": json_of_300, "1000": value_of_1000}


def to_nowhere(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def in_turn(rounds: int) -> Iterator[tuple[int, str]]:
    """Yield (round, contestant) for each run. Round -1 is a warm-up, whose results do not count."""
    for turn in range(-1, rounds):
        for contestant in CONTESTANTS if turn % 2 else CONTESTANTS[::-1]:
            yield turn, contestant


def race(
    bench: Bench, figures: Figures, rounds: int, title: str, goal: Goal,
    records: int, does: dict[str, Callable[[], object]],
) -> None:  # fmt: skip
    """Measure the calls `does` (contestant -> the work on `records` records), round by round, and
    add the records per second and the CPU time to `figures`."""
    rate = Metric(title, "records/s", goal)
    cost = Metric(f"{title}: processor time", "s/million")
    for turn, contestant in in_turn(rounds):
        seconds, cpu = bench.timed(does[contestant])
        if turn >= 0:
            figures.add(rate, contestant, records / seconds)
            figures.add(cost, contestant, cpu / records * 1e6)


def noop(bench: Bench, figures: Figures, rounds: int, size: str, codec: str) -> None:
    records = bench.records(4_000_000 if size == "100" else 2_000_000)
    topic = bench.topic(size, codec, records)
    for contestant in CONTESTANTS:
        assert bench.load(contestant, topic).count() == records
    race(
        bench, figures, rounds, f"to nowhere, {size} B, {codec}", Goal("≥", 1.0), records,
        {c: lambda c=c: to_nowhere(bench.load(c, topic)) for c in CONTESTANTS},
    )  # fmt: skip


def parquet(bench: Bench, figures: Figures, rounds: int, size: str, codec: str) -> None:
    records = bench.records(2_000_000)
    topic = bench.topic(size, codec, records)
    target = bench.folder / "parquet"

    def write(contestant: str) -> None:
        bench.load(contestant, topic).write.mode("overwrite").parquet(str(target))

    race(
        bench, figures, rounds, f"to Parquet, {size} B, {codec}", Goal("≥", 1.0), records,
        {c: lambda c=c: write(c) for c in CONTESTANTS},
    )  # fmt: skip
    shutil.rmtree(target)


def latest(bench: Bench, figures: Figures, rounds: int) -> None:
    records = bench.records(2_000_000)
    topic = bench.topic("100", "none", records)

    def ours() -> DataFrame:
        return bench.load(OURS, topic, mode="latest")

    def theirs() -> DataFrame:
        last = F.max_by(F.struct("value", "partition", "offset", "timestamp"), "offset")
        grouped = bench.load(APACHE, topic).groupBy("key").agg(last.alias("last"))
        return grouped.select("key", "last.*").where("value is not null")

    found = ours().select("key", "offset", "value"), theirs().select("key", "offset", "value")
    assert found[0].count() == found[1].count() == found[0].intersect(found[1]).count()
    race(
        bench, figures, rounds, "latest by key", Goal("≥", 5.0), records,
        {OURS: lambda: to_nowhere(ours()), APACHE: lambda: to_nowhere(theirs())},
    )  # fmt: skip


def plan(bench: Bench, figures: Figures, rounds: int) -> None:
    topic = "many"
    spark_topics.create(bench.broker.bootstrap, topic, MANY_PARTITIONS)
    records = spark_topics.numbered(range(MANY_PARTITIONS), partitions=MANY_PARTITIONS)
    spark_topics.produce(bench.broker.bootstrap, topic, records)
    metric = Metric("planning 1,000 partitions", "s", Goal("≤", 1.0, of_ratio=False))

    def planned(contestant: str) -> None:
        tasks = bench.load(contestant, topic).rdd.getNumPartitions()
        assert tasks == MANY_PARTITIONS, tasks

    for turn, contestant in in_turn(rounds):
        seconds, _ = bench.timed(lambda: planned(contestant))  # noqa: B023 (called at once)
        if turn >= 0:
            figures.add(metric, contestant, seconds)


def memory(bench: Bench, figures: Figures, rounds: int) -> None:
    records = bench.records(2_000_000)
    topic = bench.topic("1000", "none", records)
    part = records // PARTITIONS // 10
    tenth = json.dumps({topic: {str(partition): part for partition in range(PARTITIONS)}})
    small = Metric("memory of the Python workers, a tenth of the backlog", "MiB")
    whole = Metric(f"memory of the Python workers, {records / 1e6:g} GB", "MiB")
    grown = Metric("memory: whole backlog / a tenth of it", "", Goal("≤", 1.2, of_ratio=False))
    to_nowhere(bench.load(OURS, topic, endingOffsets=tenth))
    for _ in range(rounds):
        with Watch(bench) as first:
            to_nowhere(bench.load(OURS, topic, endingOffsets=tenth))
        with Watch(bench) as second:
            to_nowhere(bench.load(OURS, topic))
        figures.add(small, OURS, first.peak / MIB)
        figures.add(whole, OURS, second.peak / MIB)
        figures.add(grown, OURS, second.peak / first.peak)


class Watch:
    """While the `with` block runs, records the largest sum of the Python workers' own memory (USS),
    in bytes."""

    def __init__(self, bench: Bench) -> None:
        self.peak = 0
        self._bench = bench
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            total = 0
            for process in self._bench.workers():
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().uss
            self.peak = max(self.peak, total)


Case = Callable[[Bench, Figures, int], None]


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for size in ("100", "300"):
        for codec in ("none", "lz4", "zstd"):
            found[f"noop-{size}-{codec}"] = lambda *a, s=size, c=codec: noop(*a, s, c)
    for size in ("100", "300"):
        found[f"parquet-{size}-none"] = lambda *a, s=size: parquet(*a, s, "none")
    return {**found, "latest": latest, "plan": plan, "memory": memory}


def text(lines: Sequence[Sequence[str]]) -> str:
    """Return these lines of cells as a table for the terminal, which is valid reStructuredText
    too."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = " ".join("=" * max(width, 2) for width in widths)
    rows = [
        " ".join(cell.ljust(max(width, 2)) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join([rule, rows[0].rstrip(), rule, *(row.rstrip() for row in rows[1:]), rule])


def summary(rounds: int) -> str:
    java = subprocess.run([maven.java(), "-version"], capture_output=True, text=True, check=True)
    return (
        f"{time.strftime('%Y-%m-%d')}, {len(os.sched_getaffinity(0))} cores, Linux "
        f"{platform.release()}, Python {platform.python_version()}, "
        f"{java.stderr.splitlines()[0]}; connector {maven.SPARK_CONNECTOR_VERSION}; "
        f"medians of {rounds} rounds"
    )


def chosen(only: str) -> dict[str, Case]:
    every = cases()
    names = only.split(",") if only else list(every)
    unknown = [name for name in names if name not in every]
    if unknown:
        raise SystemExit(f"--only: unknown case {', '.join(unknown)}; expected {', '.join(every)}")
    return {name: every[name] for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="read only a twentieth of the records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="the cases to run, separated by commas; default: all"
    )
    arguments = parser.parse_args()
    wanted = chosen(arguments.only)
    figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        broker = PybrokerProcess(Path(folder) / "data")
        try:
            broker.start()
            jars = maven.spark_connector()
            with spark_session.session(Path(folder), jars=jars) as spark:
                bench = Bench(Path(folder), spark, broker, arguments.quick)
                for name, case in wanted.items():
                    print(f"{name} ...", file=sys.stderr, flush=True)
                    case(bench, figures, arguments.rounds)
        finally:
            broker.close()
    print(f"Measured on {summary(arguments.rounds)}.\n")
    print(text(list(figures.lines())))


if __name__ == "__main__":
    main()
