"""Becomes the program named in its arguments, which then dies together with our parent.

Run as a file of its own: `python -I -S child_launcher.py PARENT_PID PROGRAM ARGUMENT...`. The
kernel is asked to kill this process when its parent ends, however that ends; the wish survives
exec. May import the standard library only, and little of it: every import delays the start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Does not return. On systems without the wish (other than Linux) the program is started
    without it."""
    parent, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before the wish was known
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
