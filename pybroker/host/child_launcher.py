"""Replaces this process by the program in its arguments. The program ends when the parent process
ends.

The file is run on its own: `python -I -S child_launcher.py PARENT_PID PROGRAM ARGUMENT...`. It asks
the kernel to kill this process when its parent ends (PR_SET_PDEATHSIG), and that setting survives
exec. This module imports little of the standard library, since every import delays the start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Execute the program in the arguments of this process; this function does not return. On a
    system other than Linux the program does not end with its parent."""
    parent, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before the setting took effect
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
