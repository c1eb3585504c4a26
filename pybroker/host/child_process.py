"""Child processes that die with us, also when we are killed, the wait for their end, and the words
by which we start ourselves.

The kernel's wish is bound to the *thread* that starts the child: start it in one that lives as long
as the child shall.
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
    """The words that run a command (whose first word is a path) so that it dies with us."""
    return [sys.executable, "-I", "-S", child_launcher.__file__, str(os.getpid()), *command]


def pybroker_command(*words: str) -> list[str]:
    """How this Python runs the command `pybroker`; to be given `pybroker_environment`."""
    return [sys.executable, "-P", "-m", "pybroker", *words]


def pybroker_environment() -> dict[str, str]:
    """Our environment, with which a child finds the code that we run, also where that is not
    installed. (Not the whole of our sys.path: in a test run it may begin with folders whose modules
    have names of Python's own.)"""
    folder = str(Path(__file__).resolve().parents[1])
    if folder in (*site.getsitepackages(), site.getusersitepackages()):
        return dict(os.environ)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def wait_until_stopped(pid: int) -> None:
    """After a SIGSTOP of a child of ours: its threads may run on for a moment. Returns when all of
    them stand still, or it has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


async def ended(child: subprocess.Popen[bytes]) -> int:
    """The exit code of a child (negative: the signal that ended it), waited for without a
    thread."""
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
