"""A machine that stands still now and then, for a command and everything that it starts.

    python -m integration_tests.standstill [--every 40] [--for 10] -- COMMAND...

Tests, brokers, ZooKeepers and clients stop together, in the middle of what they do, and go on
together ten seconds later: all timers of all of them are then ten seconds late. A test that
depends on none of them passes. A test that has stopped a process itself finds it stopped still.

The processes are found from the command down, by their parents. One whose parent has ended before
it, and that no other of them has adopted, is not found, and runs on.
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
    """A process and its descendants are stopped meanwhile; those that were stopped before are left
    out, and stay stopped."""
    stopped: list[psutil.Process] = []
    try:
        # Those that were not stopped at the first look may have started others meanwhile.
        while found := [each for each in _family(pid) if _runs(each) and each not in stopped]:
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()
                    stopped.append(process)
        yield stopped
    finally:
        for process in reversed(stopped):  # children first: no parent goes on beside a stopped one
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
    """The exit code of the command, which stands still for `for_s` after each `every_s`."""
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
    """The exit code of the command that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m integration_tests.standstill")
    parser.add_argument("--every", type=float, default=40.0, metavar="SECONDS")
    parser.add_argument("--for", type=float, default=10.0, metavar="SECONDS", dest="for_s")
    parser.add_argument("command", nargs="+")
    wish = parser.parse_args(arguments)
    return run(wish.command, every_s=wish.every, for_s=wish.for_s)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
