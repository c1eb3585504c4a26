"""How long a group coordinator loads its committed offsets, before and after their compaction:
pybroker beside Apache Kafka.

    python benchmarks/coordinator_loading.py [--rounds N] [--groups N] [--commits N] [--quick]

The program commits offsets to one partition of __consumer_offsets: each of 100,000 groups
(`--groups`) commits the offset of one partition five times (`--commits`). A copy of this data
directory is compacted. Then each broker starts with each of the two directories, in turns. The
figures of a start are:

- MB: the size of the log, in 10^6 bytes,
- load s: the seconds of the load, from the broker's own log line,
- longest wait ms: the longest time until the answer to an ApiVersions request during the load. One
  client sends one request at a time, 200 a second. Only with pybroker, whose one event loop loads
  the offsets and serves the requests.

Prints a table for docs/performance_tables.rst: the medians of the rounds, with the smallest and the
largest. Needs Java.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.compaction import APACHE, OURS, broker, running, say
from benchmarks.racing import duties
from integration_tests.apache import ApacheZooKeeper
from integration_tests.broker import Broker
from integration_tests.committer import Committer, commit_request, only_code
from integration_tests.process import answers
from integration_tests.wire_client import Connection, create_topic
from pybroker.errors import ErrorCode
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pybroker.wire.messages.offsets import OffsetCommitResponse
from unit_tests.patience import wait_until

TOPIC: Final = "read"
OFFSETS: Final = "__consumer_offsets-0"
CONNECTIONS: Final = 20
VERSION: Final = 2
"""The version of the OffsetCommit requests."""
INTERVAL_S: Final = 0.005
OPTIONS: Final = {
    "broker.id": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}
AT_REST: Final = {**OPTIONS, "log.cleaner.enable": "false"}
OF_OURS: Final = {"offsets.storage": "kafka", "offsets.topic.segment.bytes": str(1024**2)}
CLEANING: Final = {**OPTIONS, **OF_OURS, "log.cleaner.min.cleanable.ratio": "0.01"}
_OURS_DONE: Final = rf"coordinator loaded partition={OFFSETS} .*records=(\d+) .*seconds=([\d.]+)"
_APACHE_DONE: Final = rf"Finished loading offsets .* from {OFFSETS} in (\d+) mill"
_CLEANED: Final = rf"log cleaned partition={OFFSETS} "

Figures = dict[str, float]


def commit(bootstrap: str, groups: int, commits: int) -> None:
    """Commit an offset for each group, `commits` times, over several connections."""
    with contextlib.closing(Committer(bootstrap, "group-0", TOPIC)) as committer:
        committer.commit({0: 0})
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(bootstrap)) for _ in range(CONNECTIONS)]
        numbers = [divmod(number, groups) for number in range(groups * commits)]
        for begin in range(0, len(numbers), CONNECTIONS):
            sent = [
                (each, each.send(VERSION, commit_request(f"group-{group}", TOPIC, {0: offset})))
                for each, (offset, group) in zip(
                    connections, numbers[begin : begin + CONNECTIONS], strict=False
                )
            ]
            for connection, correlation_id in sent:
                answer = connection.receive(VERSION, OffsetCommitResponse, correlation_id)
                assert only_code(answer) is ErrorCode.NONE


def compact(source: Path, folder: Path, zookeeper: str) -> Path:
    """Return a compacted copy of the data directory `source`."""
    shutil.copytree(source, folder / "data")
    with running(OURS, folder, zookeeper, CLEANING) as server:
        server.process.wait_for_line(_CLEANED)
    return (folder / "data").rename(folder / "compacted")


def longest_wait_ms(server: Broker, pattern: str) -> float:
    """Send ApiVersions requests until the broker has loaded its offsets. Return the longest time
    until an answer, in ms."""
    longest_s = 0.0
    done = re.compile(pattern)
    wait_until(lambda: answers(server.port), what="the broker listens")
    with Connection(server.bootstrap) as connection:
        while done.search(server.log_text) is None:
            sent = time.monotonic()
            connection.ask(0, ApiVersionsRequest(), ApiVersionsResponse)
            longest_s = max(longest_s, time.monotonic() - sent)
            time.sleep(INTERVAL_S)
    return longest_s * 1000


def measure(name: str, source: Path, folder: Path, zookeeper: str) -> Figures:
    """Let a broker start with a copy of the directory `source`. Return the figures of the start."""
    shutil.copytree(source, folder / "data")
    size = sum(path.stat().st_size for path in source.glob(f"{OFFSETS}/*.log"))
    overrides = {**AT_REST, **(OF_OURS if name == OURS else {})}
    figures = {"MB": size / 1e6}
    with contextlib.closing(broker(name, folder, zookeeper, overrides)) as server:
        pattern = _OURS_DONE if name == OURS else _APACHE_DONE
        process = server.launch()
        if name == OURS:
            figures["longest wait ms"] = longest_wait_ms(server, pattern)
        found = re.search(pattern, process.wait_for_line(pattern))
        assert found is not None
        figures["load s"] = float(found[2]) if name == OURS else float(found[1]) / 1000
        server.stop()
    shutil.rmtree(folder / "data")
    return figures


Found = dict[tuple[str, str], list[Figures]]


def race(folder: Path, zookeeper: str, options: argparse.Namespace) -> Found:
    found: Found = {}
    with running(OURS, folder, zookeeper, {**AT_REST, **OF_OURS}) as server:
        with Connection(server.bootstrap) as connection:
            create_topic(connection, TOPIC)
        commit(server.bootstrap, options.groups, options.commits)
    source = (folder / "data").rename(folder / "source")
    states = {"uncompacted": source, "compacted": compact(source, folder, zookeeper)}
    for number in range(options.rounds):
        for state, path in states.items():
            for name in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
                figures = measure(name, path, folder, zookeeper)
                found.setdefault((state, name), []).append(figures)
                told = ", ".join(f"{what} {figure:.3g}" for what, figure in figures.items())
                say(f"round {number + 1}, {state}, {name}: {told}")
    return found


def told(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def table(found: Found) -> str:
    """Return the table as reStructuredText."""
    lines = [["log", "broker", "MB", "load s", "longest wait ms"]]
    for (state, name), rows in found.items():
        cells = [f"{rows[0]['MB']:.3g}", told([row["load s"] for row in rows])]
        cells.append(told([row["longest wait ms"] for row in rows]) if name == OURS else "")
        lines.append([state, name, *cells])
    return duties.simple_table(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="benchmarks/coordinator_loading.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument(
        "--groups", type=int, default=100_000, metavar="N", help="groups (default 100000)"
    )
    parser.add_argument(
        "--commits", type=int, default=5, metavar="N", help="commits of each group (default 5)"
    )
    parser.add_argument("--quick", action="store_true", help="few groups, to see that all works")
    options = parser.parse_args()
    if options.quick:
        options.groups, options.rounds = 5000, 1
    return options


def main() -> None:
    options = arguments()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loading-")))
        zookeeper = stack.enter_context(contextlib.closing(ApacheZooKeeper(folder / "zookeeper")))
        zookeeper.start()
        print(table(race(folder, zookeeper.connect, options)))


if __name__ == "__main__":
    main()
