"""The log cleaner: pybroker beside Apache Kafka.

    python benchmarks/compaction.py [--rounds N] [--megabytes N] [--keys N] [--codecs none,lz4]
        [--passes N] [--seconds S] [--brokers pybroker,Apache] [--quick]

The program writes compacted topics with one partition each: records with random keys out of a
million and values of 100 B, in batches of 16 KiB, 1 GB for each codec and topic (`--megabytes`,
`--keys`). In each round each broker is started anew with a copy of this directory and one cleaner
thread. It cleans the first topic while nothing else runs. The figures of this pass come from the
broker's own log line about the pass and from the kernel:

- MB/s: 10^6 bytes of the log before the pass, divided by the seconds of the pass,
- CPU s/GB: the processor time of the broker, with its start, for 10^9 bytes,
- memory: the largest resident memory of the broker's process, in MiB,
- key memory: the memory of the table of keys, in MiB. Apache allocates all of
  log.cleaner.dedupe.buffer.size.

Then one client sends Produce requests (acks=1, one batch of 10 records of 100 B, one request at a
time, 200 a second) to another topic of the same broker. Three phases follow each other in turns,
once for each of the other topics (`--passes`):

- without: no log is being cleaned,
- busy: no log is being cleaned, and another process computes without a pause,
- beside: the broker cleans the next topic.

The figures are the percentiles 50, 95 and 99 of the times until the response, in ms, of all
requests of a round in phases of one kind, p99 divided by p99 in the phases "without", and the
number of requests beside a clean.

Prints a table for docs/performance_tables.rst. A cell of a broker is the median of the rounds, with
the smallest and the largest. The ratio is the median of the ratios of all rounds. Needs Java.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.racing import duties
from integration_tests.apache import KAFKA_JAVA_OPTIONS, ApacheKafka, ApacheZooKeeper
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.wire_client import Connection, batch_of, create_topic, produce
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.wire.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from unit_tests.patience import wait_until

OURS: Final = "pybroker"
APACHE: Final = "Apache"
CLEANED: Final = "cleaned"
LOADED: Final = "loaded"
BATCH_BYTES: Final = 16 * 1024
MEBIBYTE: Final = 1024**2
INTERVAL_S: Final = 0.005
SETTLING_S: Final = 0.2
"""The requests of this time at the beginning of a phase do not count."""
WITHOUT, BUSY, BESIDE = "without", "busy", "beside"
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(100 * MEBIBYTE),
}
CLEANING: Final = {"broker.id": "0", "log.cleaner.threads": "1", "log.cleaner.backoff.ms": "100"}
AT_REST: Final = {"broker.id": "0", "log.cleaner.enable": "false"}
HEAP_MIB: Final = 1024
"""The heap of Kafka's own start script."""
LOGGED: Final = (
    "-Dorg.slf4j.simpleLogger.log.kafka.log=info",
    "-Dorg.slf4j.simpleLogger.log.kafka.coordinator.group=info",
)
"""Options of Java with which the broker logs passes of the cleaner, and loads of offsets."""
_OURS_DONE: Final = (
    r"log cleaned partition=cleaned\S*-0 .*bytes_before=(\d+) .*map_bytes=(\d+) seconds=([\d.]+)"
)
_APACHE_DONE: Final = r"([\d,.]+) MB of log processed in ([\d,.]+) seconds"

Figures = dict[str, float]


def later_topics(options: argparse.Namespace) -> list[str]:
    """Return the topics that are cleaned beside Produce requests, in this order."""
    return [f"{CLEANED}-{number}" for number in range(1, options.passes + 1)]


def write(bootstrap: str, options: argparse.Namespace, codec: Codec) -> None:
    """Create the topics, and write the records to be cleaned to each of them. No cleaner touches
    the later topics yet."""
    rng = random.Random(1)
    words = [rng.randbytes(6).hex().encode() for _ in range(5000)]
    values = [b" ".join(rng.choices(words, k=8))[:100] for _ in range(20_000)]
    left = options.megabytes * 1_000_000
    now_ms = int(time.time() * 1000)
    with Connection(bootstrap) as connection:
        create_topic(connection, LOADED)
        create_topic(connection, CLEANED, configs=CONFIGS)
        for topic in later_topics(options):
            create_topic(connection, topic, configs={**CONFIGS, "cleanup.policy": "delete"})
        while left > 0:
            builder = BatchBuilder(codec)
            while builder.estimated_size < BATCH_BYTES:
                key = b"key-%07d" % rng.randrange(options.keys)
                builder.append(now_ms, key, rng.choice(values))
            data = builder.build()
            left -= len(data)
            for topic in (CLEANED, *later_topics(options)):
                assert produce(connection, topic, data, acks=1).error_code == 0


def set_policy(connection: Connection, topic: str, policy: str) -> None:
    """Set a topic's cleanup.policy. With "compact" the broker begins to clean the topic."""
    entry = IncrementalAlterableConfig(name="cleanup.policy", config_operation=0, value=policy)
    resource = IncrementalAlterConfigsResource(
        resource_type=2, resource_name=topic, configs=[entry]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = connection.ask(1, request, IncrementalAlterConfigsResponse)
    assert answer.responses[0].error_code == 0, answer


def broker(
    name: str, folder: Path, zookeeper: str, overrides: Mapping[str, str]
) -> PybrokerProcess | ApacheKafka:
    if name == OURS:
        return PybrokerProcess(folder / "data", zookeeper=zookeeper, overrides=overrides)
    return ApacheKafka(
        folder,
        zookeeper=zookeeper,
        heap_mib=HEAP_MIB,
        overrides=overrides,
        java_options=(*KAFKA_JAVA_OPTIONS, *LOGGED),
    )


def done_pattern(name: str) -> str:
    """Return the pattern of the line that a broker logs at the end of a pass."""
    return _OURS_DONE if name == OURS else _APACHE_DONE


def cleaned(server: Broker, name: str) -> Figures:
    """Wait for the end of the pass. Return its figures."""
    pattern = done_pattern(name)
    found = re.search(pattern, server.process.wait_for_line(pattern))
    assert found is not None
    if name == OURS:
        size, key_bytes, seconds = int(found[1]), int(found[2]), float(found[3])
    else:
        # Apache counts what it reads in both steps of a pass.
        told = [float(word.replace(",", "")) for word in found.groups()]
        size, key_bytes, seconds = int(told[0] * MEBIBYTE), 128 * MEBIBYTE, told[1]
    status = Path("/proc", str(server.process.pid), "status").read_text(encoding="ascii")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    times = psutil.Process(server.process.pid).cpu_times()
    return {
        "bytes": size,
        "seconds": seconds,
        "CPU s": times.user + times.system,
        "memory MiB": int(peak[1]) / 1024,
        "key memory MiB": key_bytes / MEBIBYTE,
    }


def latencies(
    connection: Connection, goes_on: Callable[[], bool], settling_s: float = SETTLING_S
) -> list[float]:
    """Send Produce requests while `goes_on()`. Return the times until the responses in ms, without
    those of the first `settling_s`."""
    batch = batch_of(*(b"v" * 100 for _ in range(10)))
    found = []
    begun = due = time.monotonic()
    while goes_on():
        time.sleep(max(due - time.monotonic(), 0))
        sent = time.monotonic()
        due = max(due + INTERVAL_S, sent)
        assert produce(connection, LOADED, batch, acks=1).error_code == 0
        if sent - begun > settling_s:
            found.append((time.monotonic() - sent) * 1000)
    return found


def for_seconds(seconds: float) -> Callable[[], bool]:
    until_s = time.monotonic() + seconds
    return lambda: time.monotonic() < until_s


def until_next(pattern: re.Pattern[str], server: Broker) -> Callable[[], bool]:
    """Return a function that returns whether the broker has not logged another match yet."""
    count = len(pattern.findall(server.log_text))
    return lambda: len(pattern.findall(server.log_text)) == count


def percentiles(times_ms: Mapping[str, Sequence[float]]) -> Figures:
    figures = {}
    for what, values in times_ms.items():
        cuts = statistics.quantiles(values, n=100)
        at = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}
        figures |= {f"{name} ms {what}": cut for name, cut in at.items()}
    for what in (BUSY, BESIDE):
        figures[f"p99 {what}/without"] = figures[f"p99 ms {what}"] / figures["p99 ms without"]
    return figures | {"requests beside": len(times_ms[BESIDE])}


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Run a process that uses one processor all the time."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def phases(name: str, server: Broker, options: argparse.Namespace) -> Figures:
    """Send Produce requests without a clean, beside a busy process, and beside a clean, in turns.
    Return the figures about the requests."""
    times_ms: dict[str, list[float]] = {WITHOUT: [], BUSY: [], BESIDE: []}
    pattern = re.compile(done_pattern(name))
    with Connection(server.bootstrap) as connection:
        batch = batch_of(b"first")
        wait_until(
            lambda: produce(connection, LOADED, batch, acks=1).error_code == 0,
            what="the broker leads the topic",
        )
        latencies(connection, for_seconds(1.0))
        for topic in later_topics(options):
            seconds = options.seconds + SETTLING_S
            times_ms[WITHOUT] += latencies(connection, for_seconds(seconds))
            with busy_process():
                times_ms[BUSY] += latencies(connection, for_seconds(seconds))
            latencies(connection, for_seconds(SETTLING_S))
            goes_on = until_next(pattern, server)
            set_policy(connection, topic, "compact")
            times_ms[BESIDE] += latencies(connection, goes_on)
            set_policy(connection, topic, "delete")  # the next broker must not begin by itself
    return percentiles(times_ms)


@contextlib.contextmanager
def running(
    name: str, folder: Path, zookeeper: str, overrides: Mapping[str, str]
) -> Iterator[Broker]:
    with contextlib.closing(broker(name, folder, zookeeper, overrides)) as server:
        server.start()
        yield server
        server.stop()


def measure(
    name: str, source: Path, folder: Path, zookeeper: str, options: argparse.Namespace
) -> Figures:
    """Let a broker clean a copy of the directory `source`. Return the figures of the round."""
    shutil.copytree(source, folder / "data")
    os.sync()
    size = sum(path.stat().st_size for path in source.glob(f"{CLEANED}-0/*.log"))
    with running(name, folder, zookeeper, CLEANING) as server:
        figures = cleaned(server, name)
        if options.passes:
            figures |= phases(name, server, options)
    figures["MB/s"] = size / 1e6 / figures.pop("seconds")
    figures["CPU s/GB"] = figures.pop("CPU s") / (size / 1e9)
    del figures["bytes"]
    shutil.rmtree(folder / "data")
    return figures


Found = dict[tuple[str, str], list[Figures]]


def race(folder: Path, zookeeper: str, codec: Codec, options: argparse.Namespace) -> Found:
    """Measure both brokers with logs of one codec, `options.rounds` times in turns."""
    found: Found = {}
    label = codec.name.lower()
    source = folder / "source"
    with running(OURS, folder, zookeeper, AT_REST) as server:
        write(server.bootstrap, options, codec)
    (folder / "data").rename(source)
    for number in range(options.rounds):
        for name in options.brokers[:: 1 if number % 2 == 0 else -1]:
            figures = measure(name, source, folder, zookeeper, options)
            found.setdefault((label, name), []).append(figures)
            told = ", ".join(f"{what} {figure:.3g}" for what, figure in figures.items())
            say(f"round {number + 1}, {label}, {name}: {told}")
    return found


def spread(values: Sequence[float]) -> str:
    """Return the median of `values`, with the smallest and the largest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def table(found: Found, names: Sequence[str]) -> str:
    """Return the table as reStructuredText."""
    lines = [["codec", "figure", *names, *(["ratio"] if len(names) > 1 else [])]]
    for codec in dict.fromkeys(codec for codec, _ in found):
        for figure in found[codec, names[0]][0]:
            columns = [[row[figure] for row in found[codec, name]] for name in names]
            if len(names) > 1:
                columns.append([a / b for a, b in zip(*columns, strict=True)])
            lines.append([codec, figure, *map(spread, columns)])
    return duties.simple_table(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        prog="benchmarks/compaction.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument(
        "--megabytes",
        type=int,
        default=1000,
        metavar="N",
        help="the size of the log (default 1000)",
    )
    parser.add_argument("--keys", type=int, default=1_000_000, metavar="N", help="different keys")
    parser.add_argument(
        "--codecs",
        type=lambda words: [Codec[word.upper()] for word in words.split(",")],
        default=[Codec.NONE, Codec.LZ4],
        metavar="CODEC,...",
        help="the codecs of the records (default none,lz4)",
    )
    parser.add_argument(
        "--passes", type=int, default=6, metavar="N", help="passes beside Produce (default 6)"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="one phase without a clean (default 4)"
    )
    parser.add_argument(
        "--brokers",
        type=lambda words: words.split(","),
        default=[OURS, APACHE],
        metavar="NAME,...",
        help=f"the brokers (default {OURS},{APACHE})",
    )
    parser.add_argument("--quick", action="store_true", help="a small log, to see that all works")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.keys, options.rounds = 150, 100_000, 1
        options.passes, options.seconds = 1, 2.0
    return options


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    options = arguments()
    found: Found = {}
    for codec in options.codecs:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compaction-")))
            zookeeper = stack.enter_context(
                contextlib.closing(ApacheZooKeeper(folder / "zookeeper"))
            )
            zookeeper.start()
            found |= race(folder, zookeeper.connect, codec, options)
    print(table(found, options.brokers))


if __name__ == "__main__":
    main()
