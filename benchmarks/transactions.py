"""Transactions of Java's producer: pybroker beside Apache Kafka.

    python benchmarks/transactions.py [--rounds N] [--brokers N,...] [--producers N,...]
        [--records N,...] [--rate-share SHARE] [--warm-up SECONDS] [--quick]

Both clusters stand beside each other and are measured in turn. In each measurement a Java process
(kafka-clients 3.9.1) runs one or 16 producers, each with its own transactional id. Every producer
writes one transaction after the other to a topic of six partitions: 1, 100 or 10,000 records of
100 B, then `commitTransaction`. The topics have a replica on each broker; the producers use
acks=all. Each broker leads the same number of partitions, so in both clusters the same share of the
transactions has its coordinator on the partition's leader. Each round measures every load twice:

- At full speed: a producer begins a transaction as soon as the previous one has returned. The
  figures are the committed transactions a second of all producers together, the times of a commit
  and of a whole transaction, in ms, and the processor time of all brokers for a transaction, in ms.
- At an equal rate: on both clusters the producers together begin the same number of transactions a
  second, at times that are fixed beforehand. The rate is half of the transactions a second that the
  slower cluster reached at full speed in the same round (`--rate-share`). The figures are the
  times of a commit, and of a whole transaction since it should have begun.

Times are medians (p50) and the slowest percent (p99). Before the first round the program runs the
same loads on Apache's cluster for 60 s and on ours for a quarter of that, because Java compiles
code while it runs (`--warm-up`). Prints two tables for docs/performance_tables.rst: the medians,
and the median of the ratios of all rounds with the smallest and the largest.
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
from dataclasses import dataclass, field
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
PARTITIONS: Final = 6
"""A multiple of each number of brokers."""
SESSION_MS: Final = 18_000
TIMES: Final = ("commit p50 ms", "commit p99 ms", "whole p50 ms", "whole p99 ms")
AT_FULL_SPEED: Final = ("transactions/s", *TIMES[:3], "CPU ms")
AT_LEAST_AS_MANY: Final = ("transactions/s",)
AT_MOST_AS_LONG: Final = TIMES[:2]
"""The figures with a goal: at full speed a ratio of at least 1, at an equal rate of at most 1."""
_LINE: Final = re.compile(
    r"TRANSACTIONS (\d+) SECONDS ([\d.]+) COMMIT ([\d.]+) ([\d.]+) WHOLE ([\d.]+) ([\d.]+)"
)
Figures = dict[str, float]


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
    """The seconds at full speed."""
    paced_seconds: float
    warm_up_seconds: float


FULL: Final = Scale(2.0, 5.0, 8.0, 60.0)
QUICK: Final = Scale(0.5, 1.0, 1.0, 2.0)


def measure(cluster: Cluster, topic: str, load: Load, scale: Scale) -> Figures:
    """Run one load at full speed on a cluster. Return its figures AT_FULL_SPEED.

    Raises AssertionError with the output of the Java program if it fails.
    """
    before = cluster.cpu_seconds()
    count, times = _run(cluster, topic, load, (scale.warm_seconds, scale.seconds, 0))
    used_s = cluster.cpu_seconds() - before
    share = scale.seconds / (scale.seconds + scale.warm_seconds)
    cpu_ms = used_s * 1000 * share / max(count, 1)
    figures = {**times, "transactions/s": count / scale.seconds, "CPU ms": cpu_ms}
    return {name: figures[name] for name in AT_FULL_SPEED}


def measure_paced(cluster: Cluster, topic: str, load: Load, scale: Scale, rate: float) -> Figures:
    """Run one load on a cluster at `rate` transactions per second. Return its TIMES.

    Raises AssertionError with the output of the Java program if it fails.
    """
    return _run(cluster, topic, load, (scale.warm_seconds, scale.paced_seconds, rate))[1]


def _run(
    cluster: Cluster, topic: str, load: Load, pace: tuple[float, float, float]
) -> tuple[int, Figures]:
    """Run the Java program. `pace` has the seconds of warm-up, the seconds of measurement, and the
    transactions per second (0: full speed). Return the number of transactions, and the TIMES."""
    child = ChildProcess(
        [
            maven.java(),
            "-Xmx512m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            *("-cp", maven.class_path(), str(SOURCE), cluster.bootstrap, topic),
            *(str(load.producers), str(load.records), *map(str, pace)),
        ]
    )
    with contextlib.closing(child):
        code = child.wait()
        found = _LINE.search(child.output)
        assert code == 0 and found is not None, child.output
    return int(found[1]), dict(zip(TIMES, map(float, found.groups()[2:]), strict=True))


@dataclass
class Found:
    """The figures of all rounds, by load and contestant."""

    at_full_speed: dict[tuple[Load, str], list[Figures]] = field(default_factory=dict)
    paced: dict[tuple[Load, str], list[Figures]] = field(default_factory=dict)
    rates: dict[Load, list[float]] = field(default_factory=dict)
    """The transactions per second of the measurements at an equal rate."""

    def add_round(
        self,
        stands: Sequence[tuple[Cluster, str]],
        load: Load,
        rate_share: float,
        scale: Scale,
    ) -> None:
        """Measure one load on both clusters, in this order: at full speed, then paced."""
        for cluster, topic in stands:
            figures = measure(cluster, topic, load, scale)
            self.at_full_speed.setdefault((load, cluster.name), []).append(figures)
            _tell(load, cluster, "at full speed", figures)
        reached = [self.at_full_speed[load, name][-1] for name in (OURS, APACHE)]
        rate = rate_share * min(each["transactions/s"] for each in reached)
        self.rates.setdefault(load, []).append(rate)
        for cluster, topic in stands:
            figures = measure_paced(cluster, topic, load, scale, rate)
            self.paced.setdefault((load, cluster.name), []).append(figures)
            _tell(load, cluster, f"at {rate:.3g}/s", figures)


def _tell(load: Load, cluster: Cluster, pace: str, figures: Figures) -> None:
    told = ", ".join(f"{name} {figure:.3g}" for name, figure in figures.items())
    print(f"{load.label}, {cluster.name}, {pace}: {told}", file=sys.stderr, flush=True)


def race(
    found: Found,
    folder: Path,
    zookeeper: str,
    loads: Sequence[Load],
    options: argparse.Namespace,
    scale: Scale,
) -> None:
    """Measure all loads, which have the same number of brokers, `options.rounds` times in turn."""
    brokers = loads[0].brokers
    with contextlib.ExitStack() as stack:
        stands = []
        for name in (OURS, APACHE):
            place = f"{brokers}-{name.split()[0].lower()}"
            cluster = stack.enter_context(
                Cluster(name, folder / place, f"{zookeeper}/{place}", SESSION_MS, brokers=brokers)
            )
            stands.append((cluster, balanced_topic(cluster)))
        for cluster, topic in stands:
            wanted_s = scale.warm_up_seconds if options.warm_up is None else options.warm_up
            deadline = time.monotonic() + wanted_s * (0.25 if cluster.name == OURS else 1.0)
            for load in itertools.cycle(loads):
                if time.monotonic() > deadline:
                    break
                measure(cluster, topic, load, scale)
        for number, load in itertools.product(range(options.rounds), loads):
            order = stands if number % 2 == 0 else stands[::-1]
            found.add_round(order, load, options.rate_share, scale)


def balanced_topic(cluster: Cluster) -> str:
    """Create a topic of which each broker leads the same number of partitions. Return its name.

    Where the coordinator is on the partition's leader, a transaction needs one round trip less.
    Raises AssertionError if the cluster distributes the leaders differently.
    """
    topic = cluster.topic(PARTITIONS)
    leaders: list[int] = []

    def are_known() -> bool:  # the brokers learn the leaders one after the other
        found = cluster.metadata(topic).topics[topic].partitions.values()
        leaders[:] = sorted(each.leader for each in found)
        return len(leaders) == PARTITIONS and leaders[0] >= 0

    cluster.until(are_known, f"topic {topic} has leaders")
    assert leaders == sorted([*range(cluster.brokers)] * (PARTITIONS // cluster.brokers)), leaders
    return topic


def tables(found: Found) -> str:
    """Return the tables as reStructuredText: at full speed, and at an equal rate."""
    labels = {load: load.label for load, _ in found.at_full_speed}
    paced = {
        load: f"{load.label}, {_rounded(statistics.median(rates))}"
        for load, rates in found.rates.items()
    }
    head = "brokers, producers, records"
    return "\n\n".join(
        (
            _table(head, labels, found.at_full_speed, AT_FULL_SPEED, at_least=AT_LEAST_AS_MANY),
            _table(f"{head}, rate", paced, found.paced, TIMES, at_most=AT_MOST_AS_LONG),
        )
    )


def _table(
    head: str,
    labels: Mapping[Load, str],
    found: Mapping[tuple[Load, str], Sequence[Figures]],
    names: Sequence[str],
    *,
    at_least: Sequence[str] = (),
    at_most: Sequence[str] = (),
) -> str:
    """`at_least` and `at_most` are the figures whose median ratio should be at least 1, or at most
    1."""
    lines = [[head, "figure", "pybroker", "Apache", "ratio", "goal", "met"]]
    for load, name in itertools.product(labels, names):
        mine, other = ([row[name] for row in found[load, each]] for each in (OURS, APACHE))
        ratios = [a / b for a, b in zip(mine, other, strict=True)]
        ratio = round(statistics.median(ratios), 2)
        spread = f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        goal = "≥ 1" if name in at_least else "≤ 1" if name in at_most else ""
        is_met = (ratio >= 1 or name not in at_least) and (ratio <= 1 or name not in at_most)
        met = ("yes" if is_met else "NO") if goal else ""
        middles = [_rounded(statistics.median(values)) for values in (mine, other)]
        lines.append([labels[load], name, *middles, spread, goal, met])
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
        "--rate-share",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="the equal rate, as a share of the slower cluster's full speed (default 0.5)",
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        metavar="SECONDS",
        help="run the loads on Apache's cluster for this long before the first round (default 60)",
    )
    parser.add_argument("--quick", action="store_true", help="small loads, to see that all works")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    scale = QUICK if options.quick else FULL
    found = Found()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transactions-")))
        zookeeper = stack.enter_context(contextlib.closing(ApacheZooKeeper(folder / "zookeeper")))
        zookeeper.start()
        for brokers in options.brokers:
            loads = [
                Load(brokers, *rest)
                for rest in itertools.product(options.producers, options.records)
            ]
            race(found, folder, zookeeper.connect, loads, options, scale)
    print(tables(found))


if __name__ == "__main__":
    main()
