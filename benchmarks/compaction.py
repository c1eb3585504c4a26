"""The log cleaner: pybroker beside Apache Kafka.

    python benchmarks/compaction.py [--rounds N] [--megabytes N] [--keys N] [--codecs none,lz4]
        [--no-produce] [--quick]

The program writes one partition of a compacted topic: records with random keys out of a million and
values of 100 B, in batches of 16 KiB, 1 GB for each codec (`--megabytes`, `--keys`). Then each
broker cleans a copy of this directory with one cleaner thread, in turns, and nothing else runs
there. Each broker is started anew for each copy. The figures of a round come from the brokers' own
log line about the pass and from the kernel:

- MB/s: 10^6 bytes of the log before the pass, divided by the seconds of the pass,
- CPU s/GB: the processor time of the broker, with its start, for 10^9 bytes,
- memory: the largest resident memory of the broker's process, in MiB,
- key memory: the memory of the table of keys, in MiB. Apache allocates all of
  log.cleaner.dedupe.buffer.size.

Then one client sends Produce requests (acks=1, one batch of 10 records of 100 B, one request at a
time, 200 a second) to another topic of the same broker: for --seconds without a clean, and on
another copy until the clean ends. The figures are the median and the slowest percent (p99) of the
times until the response, in ms, and p99 beside a clean divided by p99 without.

Prints a table for docs/performance_tables.rst: the medians of the rounds, and the median of the
ratios of all rounds with the smallest and the largest. Needs Java.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import shutil
import statistics
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
from unit_tests.patience import wait_until

OURS: Final = "pybroker"
APACHE: Final = "Apache"
CLEANED: Final = "cleaned"
LOADED: Final = "loaded"
BATCH_BYTES: Final = 16 * 1024
MEBIBYTE: Final = 1024**2
INTERVAL_S: Final = 0.005
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
    r"log cleaned partition=cleaned-0 .*bytes_before=(\d+) .*map_bytes=(\d+) seconds=([\d.]+)"
)
_APACHE_DONE: Final = r"([\d,.]+) MB of log processed in ([\d,.]+) seconds"

Figures = dict[str, float]


def write(bootstrap: str, options: argparse.Namespace, codec: Codec) -> None:
    """Write the records to be cleaned, and a last batch that lies in the active segment."""
    rng = random.Random(1)
    words = [rng.randbytes(6).hex().encode() for _ in range(5000)]
    values = [b" ".join(rng.choices(words, k=8))[:100] for _ in range(20_000)]
    left = options.megabytes * 1_000_000
    now_ms = int(time.time() * 1000)
    with Connection(bootstrap) as connection:
        while left > 0:
            builder = BatchBuilder(codec)
            while builder.estimated_size < BATCH_BYTES:
                key = b"key-%07d" % rng.randrange(options.keys)
                builder.append(now_ms, key, rng.choice(values))
            data = builder.build()
            left -= len(data)
            assert produce(connection, CLEANED, data, acks=1).error_code == 0


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


def cleaned(server: Broker, name: str) -> Figures:
    """Wait for the end of the pass. Return its figures."""
    pattern = _OURS_DONE if name == OURS else _APACHE_DONE
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


def latencies(server: Broker, goes_on: Callable[[], bool]) -> list[float]:
    """Send Produce requests while `goes_on()`. Return the times until the responses in ms, without
    those of the first second."""
    batch = batch_of(*(b"v" * 100 for _ in range(10)))
    found = []
    with Connection(server.bootstrap) as connection:
        wait_until(
            lambda: produce(connection, LOADED, batch, acks=1).error_code == 0,
            what="the broker leads the topic",
        )
        begun = due = time.monotonic()
        while goes_on():
            time.sleep(max(due - time.monotonic(), 0))
            sent = time.monotonic()
            due = max(due + INTERVAL_S, sent)
            assert produce(connection, LOADED, batch, acks=1).error_code == 0
            if sent - begun > 1.0:
                found.append((time.monotonic() - sent) * 1000)
    return found


def percentiles(times_ms: Sequence[float], what: str) -> Figures:
    cuts = statistics.quantiles(times_ms, n=100)
    return {f"p50 ms {what}": cuts[49], f"p99 ms {what}": cuts[98]}


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
    size = sum(path.stat().st_size for path in source.glob(f"{CLEANED}-0/*.log"))
    with running(name, folder, zookeeper, CLEANING) as server:
        figures = cleaned(server, name)
    figures["MB/s"] = size / 1e6 / figures.pop("seconds")
    figures["CPU s/GB"] = figures.pop("CPU s") / (size / 1e9)
    del figures["bytes"]
    shutil.rmtree(folder / "data")
    if not options.produce:
        return figures
    shutil.copytree(source, folder / "data")
    with running(name, folder, zookeeper, AT_REST) as server:
        until_s = time.monotonic() + options.seconds + 1.0
        times_ms = latencies(server, lambda: time.monotonic() < until_s)
    figures |= percentiles(times_ms, "without")
    pattern = re.compile(_OURS_DONE if name == OURS else _APACHE_DONE)
    with running(name, folder, zookeeper, CLEANING) as server:
        times_ms = latencies(server, lambda: pattern.search(server.log_text) is None)
    figures |= percentiles(times_ms, "beside")
    figures["p99 beside/without"] = figures["p99 ms beside"] / figures["p99 ms without"]
    shutil.rmtree(folder / "data")
    return figures


Found = dict[tuple[str, str], list[Figures]]


def race(folder: Path, zookeeper: str, codec: Codec, options: argparse.Namespace) -> Found:
    """Measure both brokers with logs of one codec, `options.rounds` times in turns."""
    found: Found = {}
    label = codec.name.lower()
    source = folder / "source"
    with running(OURS, folder, zookeeper, AT_REST) as server:
        with Connection(server.bootstrap) as connection:
            create_topic(connection, CLEANED, configs=CONFIGS)
            create_topic(connection, LOADED)
        write(server.bootstrap, options, codec)
    (folder / "data").rename(source)
    for number in range(options.rounds):
        for name in (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS):
            figures = measure(name, source, folder, zookeeper, options)
            found.setdefault((label, name), []).append(figures)
            told = ", ".join(f"{what} {figure:.3g}" for what, figure in figures.items())
            say(f"round {number + 1}, {label}, {name}: {told}")
    return found


def table(found: Found) -> str:
    """Return the table as reStructuredText."""
    lines = [["codec", "figure", "pybroker", "Apache", "ratio"]]
    for codec in dict.fromkeys(codec for codec, _ in found):
        ours, theirs = found[codec, OURS], found[codec, APACHE]
        for figure in ours[0]:
            mine, other = [row[figure] for row in ours], [row[figure] for row in theirs]
            ratios = [a / b for a, b in zip(mine, other, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            middles = [f"{statistics.median(values):.3g}" for values in (mine, other)]
            lines.append([codec, figure, *middles, spread])
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
    parser.add_argument("--seconds", type=float, default=8.0, help="Produce without a clean")
    parser.add_argument("--no-produce", dest="produce", action="store_false", help="only clean")
    parser.add_argument("--quick", action="store_true", help="a small log, to see that all works")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.keys, options.rounds, options.seconds = 150, 100_000, 1, 2.0
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
    print(table(found))


if __name__ == "__main__":
    main()
