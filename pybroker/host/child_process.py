"""Child processes that end with us, even if we are killed; the wait for their end; and the command
line of `pybroker` itself.

The kernel ends the child when the *thread* that started it ends: start a child in a thread that
lives as long as the child should.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pybroker.host import child_launcher

_POLL_S: Final = 0.02


def tied_to_us(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` (whose first word is a path) tied to our life."""
    return [sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), *command]


def pybroker_command(*words: str) -> list[str]:
    """The command line of `pybroker` under this Python. Use it with `pybroker_environment`."""
    return [sys.executable, "-P", "-m", "pybroker", *words]


def pybroker_environment() -> dict[str, str]:
    """Our environment, extended so that a child finds the code that we run even if it is not
    installed. (Not the whole of our sys.path: in a test run it may begin with folders whose
    modules have names of Python's own.)"""
    folder = str(Path(__file__).resolve().parents[1])
    if folder in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(os.environ)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def wait_until_stopped(pid: int) -> None:
    """Wait after a SIGSTOP of a child: its threads may run on for a moment. Returns once all of
    them have stopped, or the child has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


async def ended(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child's end without a thread; return its exit code (negative: the signal that
    ended it)."""
    while (code := child.poll()) is None:
        try:
            descriptor = os.pidfd_open(child.pid)
        except (OSError, AttributeError):
            await asyncio.sleep(_POLL_S)
            continue
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        loop.add_reader(descriptor, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return code
