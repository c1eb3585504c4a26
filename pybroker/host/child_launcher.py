"""Replace this process by the program in its arguments, which then ends together with our parent.

Run as a file of its own: `python -I -S child_launcher.py PARENT_PID PROGRAM ARGUMENT...`. The
kernel is asked to kill this process when its parent ends (PR_SET_PDEATHSIG); the setting survives
exec. This module may import only little of the standard library: every import delays the start.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Execute the program; does not return. On systems other than Linux the program is not tied to
    its parent."""
    parent, program, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before the kernel knew the setting
    os.execv(program, [program, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
