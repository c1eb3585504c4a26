"""Child processes of tests: start with captured output, wait with a deadline, end.

Tests address a process by the pid of a started child (or of a process that uses a directory of the
test), never by name. A child ends with the test run, even if the run is killed. This module does
not depend on the kind of process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from pybroker.testing.sockets import free_ports
from unit_tests.patience import ATTEMPT_S, PATIENCE_S, WaitFailed, wait_until

__all__ = ["ChildProcess", "answers", "free_port", "processes_using", "wait_until"]


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 on which no process listens."""
    return free_ports(1)[0]


def answers(port: int) -> bool:
    """Return whether a process accepts connections on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=ATTEMPT_S).close()
    except OSError:
        return False
    return True


def processes_using(folder: Path, program: str = "") -> list[psutil.Process]:
    """Return the processes whose command line contains `folder` (a directory of the test), and
    whose name contains `program`. They may end before the caller uses them.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.status() != psutil.STATUS_ZOMBIE
                and any(str(folder) in argument for argument in process.cmdline())
                and program in process.name()
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


class ChildProcess:
    """A running program. `output` is its output (both streams, in order).

    The object owns one process and one reading thread; `close()` ends both.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        interactive: bool = False,
    ) -> None:
        guard = shutil.which("setpriv")  # util-linux; the child ends when this process ends
        prefix = [guard, "--pdeathsig", "KILL", "--"] if guard else []
        self.command = tuple(command)
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ if environment is None else environment),
            cwd=folder,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                with self._news:
                    self._lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        with self._news:
            return "\n".join(self._lines)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def rss_bytes(self) -> int:
        """Return the current resident memory in bytes."""
        return int(psutil.Process(self.pid).memory_info().rss)

    def ask(self, line: str, pattern: str) -> str:
        """Write a line to the standard input of an interactive program, and return its answer: the
        next line of output that contains a match of `pattern`.
        """
        stream = self._process.stdin
        assert stream is not None, "the program was not started as an interactive one"
        with self._news:
            seen = len(self._lines)
        stream.write(line.encode() + b"\n")
        stream.flush()
        return self.wait_for_line(pattern, after=seen)

    def wait_for_line(self, pattern: str, *, after: int = 0) -> str:
        """Wait for the first line of output with a match of `pattern`, after skipping `after`
        lines, and return it.

        Raises WaitFailed if the process ends, or PATIENCE_S have passed, before such a line.
        """
        deadline = time.monotonic() + PATIENCE_S
        seen = after
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if re.search(pattern, line):
                        return line
                seen = len(self._lines)
                if self._ended:
                    reason = "the process ended"
                    break
                if not self._news.wait(deadline - time.monotonic()):
                    reason = f"{PATIENCE_S} s are over"
                    break
            output = "\n".join(self._lines[-40:])
        raise WaitFailed(f"{reason} without a line like {pattern!r}; output:\n{output}")

    def wait(self, seconds: float = PATIENCE_S) -> int:
        """Wait for the end of the process, and return its exit code (negative: the signal that
        ended it). `seconds` is a limit of `unit_tests.patience`.

        Raises WaitFailed if the process still runs after that time.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise WaitFailed(
                f"{self.command[:4]} still runs after {seconds} s; output:\n{self.output}"
            ) from error
        self._reader.join(PATIENCE_S)
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        self._process.send_signal(number)

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill9(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """Kill the process and its process group. Idempotent."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(WaitFailed):
            self.wait()
