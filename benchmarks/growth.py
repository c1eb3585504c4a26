"""The cost of partitions that stand still: three brokers of ours beside three of Apache Kafka.

    python benchmarks/growth.py [--rounds N] [--partitions N,...] [--ours-only] [--foreign PERCENT]
        [--warm-up SECONDS] [--rounds-in FILE] [--results]
    python benchmarks/growth.py --duties [--partitions N,...] [--quick]

The first form adds idle partitions (replication 3, no records) to both clusters and measures at
each number, in turn: the processor time of the three idle brokers; and one record of 500 B after
the other through confluent-kafka (acks=all, linger.ms=0, 400 records a figure) with the time of an
acknowledgement (p50) and the brokers' processor time a record. A round in which other processes
took more than 10 % of a core (--foreign) is dropped and counted. The clusters stand beside each
other, so the idle load of one is there while the other is measured. It does not count as foreign.
The program prints a table for docs/performance.rst: medians with the smallest and the largest
round, and how many rounds count. With --results it also puts the medians into the file from which
`benchmarks.racing.plot` makes the plot. With --rounds-in several runs give one table: each run adds
its rounds to FILE, and prints the table of all rounds in FILE. By default both clusters are
measured at 0, 500 and 2,000 partitions, and with --ours-only ours at 0, 10,000 and 20,000. Before
the first round the program sends records to Apache's cluster for 40 s and to ours for 10 s, because
Java compiles code while it runs; `--warm-up 0` measures new clusters instead. Needs Java and the
jars that `mvn` brings.

The second form prints what each periodic duty of one broker costs with 100, 1,000 and 10,000
partitions, connections or groups: the time of a run in ms, or percent of a core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.racing import duties, loads, plot, processes
from benchmarks.racing.cluster import Cluster
from benchmarks.racing.contestants import APACHE, OURS
from benchmarks.racing.librdkafka import ClientFailed
from benchmarks.racing.results import Spread, about_this_machine
from integration_tests.apache import ApacheZooKeeper

FOREIGN_PERCENT: Final = 10.0
BESIDE_APACHE: Final = (0, 500, 2_000)
ALONE: Final = (0, 10_000, 20_000)
DUTY_SIZES: Final = (100, 1_000, 10_000)
PARTITIONS_A_TOPIC: Final = 500
SESSION_MS: Final = 18_000
VALUE: Final = bytes(500)
FILES: Final = 10_000
"""The limit of open files of this program and of each broker. A broker with more logs than this
closes idle ones."""
FIGURES: Final = ("p50 ms", "cpu ms/record", "idle % of a core")
KEYS: Final = ("p50", "cpu", "idle")
"""The names of FIGURES in benchmarks/results/growth.json."""
PLOT_KEY: Final = ("partitions", "brokers")


@dataclass(frozen=True)
class Scale:
    records: int
    warm_records: int
    idle_seconds: float
    settle_seconds: float
    warm_up_seconds: float


FULL: Final = Scale(400, 50, 10.0, 15.0, 40.0)
QUICK: Final = Scale(50, 10, 2.0, 2.0, 4.0)


@dataclass
class Found:
    """The figures of one contestant at one number of idle partitions: one value of each figure for
    each round that counts. `dropped` is the number of rounds that do not count."""

    figures: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in FIGURES})
    dropped: int = 0

    def take(self, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self.figures[name].append(figure)


class ForeignLoad:
    """Measures the processor time that other processes use while the `with` block runs, in percent
    of one core. This program and its children (the brokers and ZooKeeper) do not count."""

    def __enter__(self) -> ForeignLoad:
        self._begun = time.perf_counter()
        self._busy_s, self._own_s = _busy_s(), processes.cpu_seconds(psutil.Process().pid)
        return self

    def __exit__(self, *_: object) -> None:
        elapsed = time.perf_counter() - self._begun
        own_s = processes.cpu_seconds(psutil.Process().pid) - self._own_s
        self.percent = max(_busy_s() - self._busy_s - own_s, 0.0) / elapsed * 100


def _busy_s() -> float:
    """Return the processor time in seconds that the whole machine has used so far. It includes the
    time that the host of a virtual machine gave to others (steal)."""
    now = psutil.cpu_times()
    return float(now.user + now.nice + now.system + now.irq + now.softirq + now.steal)


class OneAtATime:
    """A producer that waits for each acknowledgement before it sends the next record."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._answered = 0

    def _on_delivery(self, error: object, message: object) -> None:
        if error is not None:
            raise ClientFailed(f"a record was given up: {error}")
        self._answered += 1

    def send(self, count: int) -> list[float]:
        """Send `count` records, one after the other. Return the seconds until each
        acknowledgement."""
        took = []
        for _ in range(count):
            expected, begun = self._answered + 1, time.perf_counter()
            self._producer.produce(self._topic, VALUE, partition=0, on_delivery=self._on_delivery)
            while self._answered < expected:
                self._producer.poll(1.0)
            took.append(time.perf_counter() - begun)
        return took


class Stand:
    """A cluster with idle partitions, and with one topic that gets the records."""

    def __init__(self, cluster: Cluster, label: str, scale: Scale) -> None:
        """`label` is the cluster's name in the tables."""
        self.cluster = cluster
        self.label = label
        self._scale = scale
        self._idle = 0
        self._producer = OneAtATime(cluster, cluster.topic(1))

    def warm_up(self, seconds: float) -> None:
        """Send records until a just-in-time compiler has compiled the code: to Apache's cluster
        for `seconds`, to ours for a quarter of that."""
        share = 0.25 if self.cluster.name == OURS else 1.0
        deadline = time.monotonic() + seconds * share
        while time.monotonic() < deadline:
            self._producer.send(self._scale.warm_records)

    def grow(self, partitions: int) -> None:
        """Add idle partitions until the cluster has `partitions` of them."""
        while self._idle < partitions:
            more = min(partitions - self._idle, PARTITIONS_A_TOPIC)
            self.cluster.topic(more)
            self._idle += more

    def measure(self) -> tuple[dict[str, float], float]:
        """Measure one round. Return its figures, and the processor time of other processes in
        percent of one core."""
        scale, cluster = self._scale, self.cluster
        with ForeignLoad() as idle_load:
            before = cluster.cpu_seconds()
            time.sleep(scale.idle_seconds)
            idle_percent = (cluster.cpu_seconds() - before) / scale.idle_seconds * 100
        self._producer.send(scale.warm_records)
        with ForeignLoad() as load:
            before = cluster.cpu_seconds()
            took = self._producer.send(scale.records)
            used_ms = (cluster.cpu_seconds() - before) * 1000
        figures = (statistics.median(took) * 1000, used_ms / scale.records, idle_percent)
        foreign_percent = max(idle_load.percent, load.percent)
        return dict(zip(FIGURES, figures, strict=True)), foreign_percent


Table = dict[tuple[int, str], Found]


def run(
    stands: Sequence[Stand],
    sizes: Sequence[int],
    rounds: int,
    scale: Scale,
    foreign_percent_max: float,
) -> Table:
    """Measure all clusters in turn at each number of idle partitions in `sizes`. A round counts
    only if other processes use at most `foreign_percent_max` percent of one core during it."""
    table: Table = {}
    for size in sizes:
        for stand in stands:
            stand.grow(size)
        time.sleep(scale.settle_seconds)
        for number in range(rounds):
            for stand in stands if number % 2 == 0 else reversed(stands):
                found = table.setdefault((size, stand.label), Found())
                figures, foreign_percent = stand.measure()
                is_kept = foreign_percent <= foreign_percent_max
                if is_kept:
                    found.take(figures)
                found.dropped += not is_kept
                told = ", ".join(f"{name} {figure:.2f}" for name, figure in figures.items())
                say(
                    f"{size} partitions, round {number + 1}, {stand.label}: {told},"
                    f" foreign load {foreign_percent:.0f} % {'' if is_kept else '(dropped)'}"
                )
    return table


def rst(table: Table) -> str:
    """Return the table as reStructuredText, for docs/performance.rst."""
    lines = [["idle partitions", "brokers", "p50", "CPU a record", "idle", "rounds"]]
    for (size, name), found in table.items():
        figures = [_cell(found.figures[figure]) for figure in FIGURES]
        kept = len(found.figures[FIGURES[0]])
        rounds = f"{kept} ({found.dropped} dropped)" if found.dropped else str(kept)
        lines.append([f"{size:,}", name, *figures, rounds])
    return duties.simple_table(lines)


def plot_rows(table: Table) -> list[dict[str, object]]:
    """Return the rows of benchmarks/results/growth.json: each figure as its median, smallest and
    largest round."""
    date = about_this_machine()["date"]
    rows = []
    for (size, name), found in table.items():
        spreads = [Spread.of(found.figures[figure]) for figure in FIGURES]
        figures = {key: s.rounded() for key, s in zip(KEYS, spreads, strict=True) if s is not None}
        if figures:
            rows.append({"partitions": size, "brokers": name, "date": date, **figures})
    return rows


def with_earlier(table: Table, path: Path) -> Table:
    """Return the rounds of `table` after those of earlier runs, which the JSON file `path` has (it
    may be missing). Write all of them to the file."""
    together: Table = {}
    if path.exists():
        for row in json.loads(path.read_text(encoding="utf-8")):
            key = (row["partitions"], row["brokers"])
            together[key] = Found(row["figures"], row["dropped"])
    for key, found in table.items():
        all_rounds = together.setdefault(key, Found())
        all_rounds.dropped += found.dropped
        for name, figures in found.figures.items():
            all_rounds.figures[name] += figures
    rows = [
        {"partitions": size, "brokers": name, "figures": found.figures, "dropped": found.dropped}
        for (size, name), found in together.items()
    ]
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return together


def _cell(figures: Sequence[float]) -> str:
    if not figures:
        return "-"
    middle = statistics.median(figures)
    return f"{middle:.2f} ({min(figures):.2f}-{max(figures):.2f})"


def numbers(words: str) -> list[int]:
    return sorted(int(word) for word in words.split(","))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="benchmarks/growth.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds at each number (default 5)"
    )
    parser.add_argument(
        "--partitions", type=numbers, metavar="N,...", help="the numbers of idle partitions"
    )
    parser.add_argument(
        "--ours-only",
        action="store_true",
        help="leave Apache Kafka out, and measure more partitions",
    )
    parser.add_argument(
        "--duties", action="store_true", help="measure the periodic duties of one broker"
    )
    parser.add_argument(
        "--foreign",
        type=float,
        default=FOREIGN_PERCENT,
        metavar="PERCENT",
        help="drop a round if other processes took more of a core (default 10)",
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        metavar="SECONDS",
        help="send records to Apache's cluster for this long before the first round (default 40)",
    )
    parser.add_argument(
        "--rounds-in", type=Path, metavar="FILE", help="add the rounds to those in FILE"
    )
    parser.add_argument(
        "--results", action="store_true", help="put the medians into benchmarks/results/growth.json"
    )
    parser.add_argument("--quick", action="store_true", help="small loads, to see that all works")
    return parser.parse_args()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    options = arguments()
    scale = QUICK if options.quick else FULL
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="growth-")))
        zookeeper = stack.enter_context(contextlib.closing(ApacheZooKeeper(folder / "zookeeper")))
        zookeeper.start()
        if options.duties:
            sizes = options.partitions or DUTY_SIZES
            loads.allow_files(max(sizes) + 1_000)
            print(duties.table(folder, zookeeper.connect, sizes, scale.idle_seconds, say))
            return
        sizes = options.partitions or (ALONE if options.ours_only else BESIDE_APACHE)
        loads.allow_files(FILES)
        names = [OURS] if options.ours_only else [OURS, APACHE]
        stands = []
        for number, name in enumerate(names):
            place, chroot = folder / str(number), f"{zookeeper.connect}/{number}"
            cluster = stack.enter_context(Cluster(name, place, chroot, SESSION_MS))
            label = name if len(names) > 1 else f"{name} alone"
            stands.append(Stand(cluster, label, scale))
        for stand in stands:
            stand.warm_up(scale.warm_up_seconds if options.warm_up is None else options.warm_up)
        table = run(stands, sizes, options.rounds, scale, options.foreign)
        if options.rounds_in is not None:
            table = with_earlier(table, options.rounds_in)
        print(rst(table))
        if options.results and not options.quick:
            plot.merge_rows(plot.RESULTS / "growth.json", plot_rows(table), PLOT_KEY)


if __name__ == "__main__":
    main()
