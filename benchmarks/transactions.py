"""Transactions of Java's producer: pybroker beside Apache Kafka.

    python benchmarks/transactions.py [--rounds N] [--brokers N,...] [--producers N,...]
        [--records N,...] [--warm-up SECONDS] [--quick]

Both clusters stand beside each other and are measured in turn. In each measurement a Java process
(kafka-clients 3.9.1) runs one or 16 producers, each with its own transactional id. Every producer
writes one transaction after the other to a topic of four partitions: 1, 100 or 10,000 records of
100 B, then `commitTransaction`. The figures are the committed transactions a second of all
producers together, the median (p50) and the slowest percent (p99) of the calls of
`commitTransaction`, in ms, and the processor time of all brokers for a transaction, in ms. The
topics have a replica on each broker; the producers use acks=all. Before the first round the
program runs the same loads on Apache's cluster for 60 s and on ours for a quarter of that, because
Java compiles code while it runs (`--warm-up`). Prints a table for docs/performance_tables.rst: the
medians, and the median of the ratios of all rounds with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.racing import duties
from benchmarks.racing.cluster import Cluster
from benchmarks.racing.contestants import APACHE, OURS
from integration_tests import maven
from integration_tests.apache import ApacheZooKeeper
from integration_tests.process import ChildProcess

SOURCE: Final = Path(__file__).parent / "racing" / "TransactionLoad.java"
PARTITIONS: Final = 4
SESSION_MS: Final = 18_000
HIGHER_IS_BETTER: Final = "transactions/s"
FIGURES: Final = (HIGHER_IS_BETTER, "p50 ms", "p99 ms", "CPU ms")
_LINE: Final = re.compile(r"TRANSACTIONS (\d+) SECONDS ([\d.]+) P50 ([\d.]+) P99 ([\d.]+)")


@dataclass(frozen=True)
class Load:
    brokers: int
    producers: int
    records: int

    @property
    def label(self) -> str:
        return f"{self.brokers}, {self.producers}, {self.records:,}"


@dataclass(frozen=True)
class Scale:
    warm_seconds: float
    """The warm-up of the Java client in each measurement."""
    seconds: float
    warm_up_seconds: float


FULL: Final = Scale(2.0, 5.0, 60.0)
QUICK: Final = Scale(0.5, 1.0, 2.0)


def measure(cluster: Cluster, topic: str, load: Load, scale: Scale) -> dict[str, float]:
    """Run one load on a cluster. Return its FIGURES.

    Raises AssertionError with the output of the Java program if it fails.
    """
    before = cluster.cpu_seconds()
    child = ChildProcess(
        [
            maven.java(),
            "-Xmx512m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            *("-cp", maven.class_path(), str(SOURCE), cluster.bootstrap, topic),
            *(str(load.producers), str(load.records)),
            *(str(scale.warm_seconds), str(scale.seconds)),
        ]
    )
    with contextlib.closing(child):
        code = child.wait()
        found = _LINE.search(child.output)
        assert code == 0 and found is not None, child.output
    used_s = cluster.cpu_seconds() - before
    count, seconds = int(found[1]), float(found[2])
    share = seconds / (seconds + scale.warm_seconds)
    cpu_ms = used_s * 1000 * share / max(count, 1)
    figures = (count / seconds, float(found[3]), float(found[4]), cpu_ms)
    return dict(zip(FIGURES, figures, strict=True))


Found = dict[tuple[Load, str], list[dict[str, float]]]


def race(
    folder: Path,
    zookeeper: str,
    brokers: int,
    loads: Sequence[Load],
    options: argparse.Namespace,
    scale: Scale,
) -> Found:
    """Measure all loads on clusters of `brokers` brokers, `options.rounds` times in turn."""
    found: Found = {}
    with contextlib.ExitStack() as stack:
        stands = []
        for name in (OURS, APACHE):
            place = f"{brokers}-{name.split()[0].lower()}"
            cluster = stack.enter_context(
                Cluster(name, folder / place, f"{zookeeper}/{place}", SESSION_MS, brokers=brokers)
            )
            stands.append((cluster, cluster.topic(PARTITIONS)))
        for cluster, topic in stands:
            wanted_s = scale.warm_up_seconds if options.warm_up is None else options.warm_up
            deadline = time.monotonic() + wanted_s * (0.25 if cluster.name == OURS else 1.0)
            for load in itertools.cycle(loads):
                if time.monotonic() > deadline:
                    break
                measure(cluster, topic, load, scale)
        for number, load in itertools.product(range(options.rounds), loads):
            for cluster, topic in stands if number % 2 == 0 else reversed(stands):
                figures = measure(cluster, topic, load, scale)
                found.setdefault((load, cluster.name), []).append(figures)
                told = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
                say(f"round {number + 1}, {load.label}, {cluster.name}: {told}")
    return found


def table(found: Mapping[tuple[Load, str], Sequence[Mapping[str, float]]]) -> str:
    """Return the table as reStructuredText."""
    lines = [["brokers, producers, records", "figure", "pybroker", "Apache", "ratio"]]
    for load in dict.fromkeys(load for load, _ in found):
        ours, theirs = found[load, OURS], found[load, APACHE]
        for figure in FIGURES:
            mine, other = [row[figure] for row in ours], [row[figure] for row in theirs]
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            middles = [_rounded(statistics.median(values)) for values in (mine, other)]
            lines.append([load.label, figure, *middles, spread])
    return duties.simple_table(lines)


def _rounded(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="benchmarks/transactions.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default 5)")
    choices: Iterable[tuple[str, list[int]]] = (
        ("brokers", [1, 3]),
        ("producers", [1, 16]),
        ("records", [1, 100, 10_000]),
    )
    for name, default in choices:
        told = ",".join(map(str, default))
        parser.add_argument(
            f"--{name}",
            type=numbers,
            default=default,
            metavar="N,...",
            help=f"the numbers of {name} (default {told})",
        )
    parser.add_argument(
        "--warm-up",
        type=float,
        metavar="SECONDS",
        help="run the loads on Apache's cluster for this long before the first round (default 60)",
    )
    parser.add_argument("--quick", action="store_true", help="small loads, to see that all works")
    return parser.parse_args()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    options = arguments()
    scale = QUICK if options.quick else FULL
    found: Found = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transactions-")))
        zookeeper = stack.enter_context(contextlib.closing(ApacheZooKeeper(folder / "zookeeper")))
        zookeeper.start()
        for brokers in options.brokers:
            loads = [
                Load(brokers, *rest)
                for rest in itertools.product(options.producers, options.records)
            ]
            found |= race(folder, zookeeper.connect, brokers, loads, options, scale)
    print(table(found))


if __name__ == "__main__":
    main()
