"""Replaces this process by the program that its arguments name (see `main`). On Linux, the kernel
kills the program when the parent process ends. Every import here delays the start."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Replace this process by a program. `arguments`: the parent's process id, the program's path,
    the program's arguments. If the parent has ended already, exit with code 1."""
    parent, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before the setting took effect
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
