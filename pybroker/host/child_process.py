"""Starts child processes, and waits for their end. On Linux, a child ends together with this
process, and also with the *thread* that started the child: the thread must live at least as long as
the child should."""

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
    `command` begins with the path of a program."""
    return [sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), *command]


def pybroker_command(*words: str) -> list[str]:
    """Return the command line that runs `pybroker` with these arguments under this Python. The
    command needs the environment of `pybroker_environment`."""
    return [sys.executable, "-P", "-m", "pybroker", *words]


def pybroker_environment() -> dict[str, str]:
    """Return the environment of this process, with this code's folder in PYTHONPATH."""
    folder = str(Path(__file__).resolve().parents[1])
    if folder in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(os.environ)
    # Not all of sys.path: in a test run it may begin with folders that hide Python's own modules.
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def wait_until_stopped(pid: int) -> None:
    """Wait until all threads of a child have stopped, or the child has ended. The caller must have
    sent SIGSTOP to the child before."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


async def ended(child: subprocess.Popen[bytes]) -> int:
    """Wait, without a thread, until a child process ends. Return its exit code, or the negative
    number of the signal that ended it."""
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
