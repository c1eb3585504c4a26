"""How long a broker takes to serve, and what it weighs when idle.

Five starts each: with its embedded ZooKeeper (fresh data, and again on the same data), and with a
ZooKeeper that runs already. Prints the median and the spread in seconds, and the resident memory in
MB of the broker and of its ZooKeeper. Run it with `python benchmarks/start_time.py`.
"""

from __future__ import annotations

import asyncio
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pybroker.coordinator.zookeeper.embedded import EmbeddedZooKeeper

RUNS = 5
STARTED = re.compile(r"\[KafkaServer id=\d+\] started")


def resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found.group(1)) / 1024 if found else 0.0


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in listed.split()]


def one_start(*arguments: str) -> tuple[float, float, float]:
    """Seconds until the broker serves, MB of the broker, MB of its children."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pybroker", "start", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        if not any(STARTED.search(line) for line in broker.stdout):
            raise SystemExit("the broker did not start")
        seconds = time.monotonic() - began
        own = resident_mb(broker.pid)
        others = sum(resident_mb(child) for child in children(broker.pid))
        broker.send_signal(signal.SIGTERM)
        broker.stdout.read()
    return seconds, own, others


def report(what: str, start: Callable[[int], tuple[float, float, float]]) -> None:
    results = [start(run) for run in range(RUNS)]
    seconds, own, others = zip(*results, strict=True)
    print(
        f"{what:34} {statistics.median(seconds):5.2f} s ({min(seconds):.2f}-{max(seconds):.2f})"
        f"   broker {statistics.median(own):5.1f} MB   children {statistics.median(others):6.1f} MB"
    )


async def main() -> None:
    with tempfile.TemporaryDirectory() as base:
        report("embedded ZooKeeper, fresh data", lambda run: one_start("--data", f"{base}/{run}"))
        report("embedded ZooKeeper, second start", lambda _: one_start("--data", f"{base}/0"))
        zookeeper = EmbeddedZooKeeper(f"{base}/zookeeper")
        await zookeeper.start()
        try:
            loop = asyncio.get_running_loop()

            def beside(run: int) -> tuple[float, float, float]:
                return one_start(
                    "--data", f"{base}/x{run}", "--zookeeper", f"{zookeeper.connect}/r{run}"
                )

            await loop.run_in_executor(None, report, "ZooKeeper running already", beside)
        finally:
            await zookeeper.stop()


if __name__ == "__main__":
    asyncio.run(main())
