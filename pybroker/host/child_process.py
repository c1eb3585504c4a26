"""Starts child processes that end together with this process, even if this process is killed, and
waits for their end. Also builds the command line with which a child runs `pybroker`.

The kernel also ends the child when the *thread* that started it ends. So a child must be started in
a thread that lives at least as long as the child should.
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
    """Return a command line that runs `command` in a process that ends together with this process.
    The first word of `command` is the path of a program."""
    return [sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), *command]


def pybroker_command(*words: str) -> list[str]:
    """Return the command line that runs `pybroker` with these arguments under this Python. The
    process needs the environment of `pybroker_environment`."""
    return [sys.executable, "-P", "-m", "pybroker", *words]


def pybroker_environment() -> dict[str, str]:
    """Return the environment of this process, with a PYTHONPATH in which a child finds this code
    even if the code is not installed. PYTHONPATH gets only the folder of this code, not all of
    sys.path: in a test run sys.path may begin with folders that hide modules of Python itself."""
    folder = str(Path(__file__).resolve().parents[1])
    if folder in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(os.environ)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def wait_until_stopped(pid: int) -> None:
    """Wait, after a SIGSTOP to the child, until all its threads have stopped or the child has
    ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


async def ended(child: subprocess.Popen[bytes]) -> int:
    """Wait until a child process ends, without a thread for the wait. Return its exit code. If a
    signal ended the child, return the negative number of the signal."""
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
