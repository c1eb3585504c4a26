"""Child processes that end together with this process, even if it is killed; waiting for their end;
and the command line of `pybroker` itself.

The kernel ends the child when the *thread* that started it ends. So a child has to be started in a
thread that lives as long as the child should.
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
    """Return the command line that runs `command` (whose first word is a path) as a process that
    ends together with this one."""
    return [sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), *command]


def pybroker_command(*words: str) -> list[str]:
    """Return the command line of `pybroker` under this Python. Use it with
    `pybroker_environment`."""
    return [sys.executable, "-P", "-m", "pybroker", *words]


def pybroker_environment() -> dict[str, str]:
    """Return the environment of this process, extended so that a child finds this code even if it
    is not installed. (Not all of sys.path is passed on: in a test run it may begin with folders
    whose modules have names of Python's own.)"""
    folder = str(Path(__file__).resolve().parents[1])
    if folder in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(os.environ)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def wait_until_stopped(pid: int) -> None:
    """Return when all threads of the child have stopped after a SIGSTOP, which takes a moment, or
    when the child has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


async def ended(child: subprocess.Popen[bytes]) -> int:
    """Wait for a child's end without a thread. Return its exit code; a negative one is the number
    of the signal that ended the child."""
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
