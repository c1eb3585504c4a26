"""The processor time of idle brokers, with and without partitions that stand still.

    python benchmarks/idle.py [--rounds N] [--seconds S] [--partitions N,...] [--before FOLDER]

For each number of partitions (by default 0, 3 and 5,000) the program starts a cluster of three
brokers, and creates that many partitions of replication 3 without records. Then it measures the
processor time of all clusters at the same time, so that the load of the machine is the same for
all. No client runs meanwhile. With `--before` the same clusters of another checkout of pybroker, in
FOLDER, stand beside them.

The program prints a table for docs/performance.rst: percent of a core for each broker, as the
median, the smallest and the largest round; the ratio to a broker without partitions; and how many
times a second the kernel has switched to a thread of the broker. A round counts only if other
processes took at most 10 % of a core (--foreign). Needs Java.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.growth import PARTITIONS_A_TOPIC, SESSION_MS, ForeignLoad, say
from benchmarks.racing import loads
from benchmarks.racing.cluster import BROKERS, Cluster
from benchmarks.racing.contestants import OURS
from benchmarks.racing.duties import simple_table
from integration_tests.apache import ApacheZooKeeper

HERE: Final = Path(__file__).resolve().parent.parent
SIZES: Final = (0, 3, 5_000)
SETTLE_SECONDS: Final = 60.0
"""After this time a new partition's first flush and first checkpoints have passed."""


@dataclass
class Stand:
    """A cluster with `partitions` idle partitions, and the figures of its rounds: percent of a core
    for each broker, and context switches a second for each broker."""

    label: str
    partitions: int
    cluster: Cluster
    percents: list[float] = field(default_factory=list)
    switches: list[float] = field(default_factory=list)

    def grow(self) -> None:
        left = self.partitions
        while left > 0:
            self.cluster.topic(min(left, PARTITIONS_A_TOPIC))
            left -= PARTITIONS_A_TOPIC

    def begin(self) -> tuple[float, int]:
        return self.cluster.cpu_seconds(), self._switched()

    def end(self, begun: tuple[float, int], seconds: float, *, counts: bool) -> str:
        """Take the figures of a round that `begun`. Return them as text."""
        percent = (self.cluster.cpu_seconds() - begun[0]) / seconds / BROKERS * 100
        switches = (self._switched() - begun[1]) / seconds / BROKERS
        if counts:
            self.percents.append(percent)
            self.switches.append(switches)
        return f"{self.label} {self.partitions}: {percent:.3f} % {switches:.1f}/s"

    def _switched(self) -> int:
        total = 0
        for server in self.cluster.servers:
            for line in Path("/proc", str(server.process.pid), "task").glob("*/status"):
                for word in line.read_text(encoding="ascii").splitlines():
                    if word.startswith("voluntary_ctxt_switches"):
                        total += int(word.split()[1])
        return total


def table(stands: Sequence[Stand]) -> str:
    lines = [["idle partitions", "brokers", "% of a core", "ratio", "switches a second", "rounds"]]
    for stand in stands:
        base = next(each for each in stands if each.label == stand.label)
        ratios = [one / none for one, none in zip(stand.percents, base.percents, strict=True)]
        lines.append(
            [
                f"{stand.partitions:,}",
                stand.label,
                _cell(stand.percents, 3),
                _cell(ratios, 2),
                _cell(stand.switches, 1),
                str(len(stand.percents)),
            ]
        )
    return simple_table(lines)


def _cell(figures: Sequence[float], digits: int) -> str:
    if not figures:
        return "-"
    middle, least, most = statistics.median(figures), min(figures), max(figures)
    return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="benchmarks/idle.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--seconds", type=float, default=60.0, help="the length of a round")
    parser.add_argument(
        "--settle", type=float, default=SETTLE_SECONDS, help="the seconds before the first round"
    )
    parser.add_argument(
        "--partitions",
        type=lambda words: sorted({int(word) for word in words.split(",")}),
        default=list(SIZES),
        metavar="N,...",
    )
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout")
    parser.add_argument("--foreign", type=float, default=10.0, metavar="PERCENT")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    folders = {"after": HERE} if options.before is None else {"before": options.before.resolve()}
    folders["after"] = HERE
    loads.allow_files(20_000)
    with contextlib.ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idle-")))
        zookeeper = stack.enter_context(
            contextlib.closing(ApacheZooKeeper(temporary / "zookeeper"))
        )
        zookeeper.start()
        stands = []
        for label, folder in folders.items():
            for partitions in options.partitions:
                place = f"{label}-{partitions}"
                cluster = Cluster(
                    OURS,
                    temporary / place,
                    f"{zookeeper.connect}/{place}",
                    SESSION_MS,
                    # The brokers import pybroker from this folder, whatever the current folder is.
                    environment={"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"},
                )
                stands.append(Stand(label, partitions, stack.enter_context(cluster)))
        for stand in stands:
            stand.grow()
            stand.cluster.disconnect()
        say(f"pids {[[s.process.pid for s in stand.cluster.servers] for stand in stands]}")
        time.sleep(options.settle)
        for number in range(options.rounds):
            with ForeignLoad() as load:
                begun = [stand.begin() for stand in stands]
                time.sleep(options.seconds)
            counts = load.percent <= options.foreign
            texts = [
                stand.end(one, options.seconds, counts=counts)
                for stand, one in zip(stands, begun, strict=True)
            ]
            dropped = "" if counts else " (dropped)"
            say(f"round {number + 1}: {'; '.join(texts)}; foreign {load.percent:.0f} %{dropped}")
        print(table(stands))


if __name__ == "__main__":
    main()
