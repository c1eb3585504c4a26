"""Simulates a machine that stalls at intervals, for a command and all its descendants.

    python -m integration_tests.standstill [--every 40] [--for 10] -- COMMAND...

Tests, brokers, ZooKeepers and clients stop together at any point, and continue together ten seconds
later, when all their timers are ten seconds late. A test that does not depend on timers passes. A
process that a test has stopped itself stays stopped.

The processes are found from the command downwards, by their parents. An orphan that no process of
the tree has adopted is not found, and continues to run.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import psutil


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[list[psutil.Process]]:
    """Stop a process and its descendants while the block runs. Processes that were stopped before
    stay stopped afterwards.
    """
    stopped: list[psutil.Process] = []
    try:
        # Processes that were not stopped yet may have started others meanwhile.
        while found := [each for each in _family(pid) if _runs(each) and each not in stopped]:
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
                    stopped.append(process)
        yield stopped
    finally:
        for process in reversed(stopped):  # children first: no parent runs beside a stopped child
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def _family(pid: int) -> list[psutil.Process]:
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in (
            psutil.STATUS_STOPPED,
            psutil.STATUS_TRACING_STOP,
            psutil.STATUS_ZOMBIE,
        )
    except psutil.NoSuchProcess:
        return False


def run(command: Sequence[str], *, every_s: float, for_s: float) -> int:
    """Run the command, and stop it for `for_s` seconds after every `every_s` seconds. Return its
    exit code.
    """
    with subprocess.Popen(command) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(every_s)
                with standing_still(process.pid) as stopped:
                    _tell(f"{len(stopped)} processes stand still for {for_s:g} s")
                    time.sleep(for_s)
                _tell(f"{len(stopped)} processes go on")
        except BaseException:
            process.terminate()
            raise


def _tell(event: str) -> None:
    print(f"standstill: {time.strftime('%H:%M:%S')} {event}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command in the arguments. Return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration_tests.standstill")
    parser.add_argument("--every", type=float, default=40.0, metavar="SECONDS")
    parser.add_argument("--for", type=float, default=10.0, metavar="SECONDS", dest="for_s")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    return run(options.command, every_s=options.every, for_s=options.for_s)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
