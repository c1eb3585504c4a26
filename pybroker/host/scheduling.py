"""Changes how the kernel's scheduler divides the processors between the event loop's thread and the
log cleaner's thread."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import platform
from typing import Final

log = logging.getLogger(__name__)

LOOP_SLICE_NS: Final = 100_000
"""The shortest time slice that Linux grants."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SYSTEM_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""For each kind of processor, the numbers of the system calls sched_setattr and sched_getattr. The
C library may have no functions for them."""
_RESET_ON_FORK: Final = 1


class _Attributes(ctypes.Structure):
    """`struct sched_attr` of Linux (sched_setattr(2))."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def shorten_slice() -> None:
    """Give the calling thread, but not its children, a time slice of `LOOP_SLICE_NS`, if the kernel
    allows it. Since Linux 6.12, a thread that wakes up preempts a thread with a longer slice.
    Without the short slice, the calling thread may wait for the scheduler's next tick (4 ms)."""
    found = _attributes()
    if found is None:
        return
    found.runtime = LOOP_SLICE_NS
    found.flags |= _RESET_ON_FORK
    set_call, _ = _SYSTEM_CALLS[platform.machine()]
    if _LIBC.syscall(set_call, 0, ctypes.byref(found), 0):
        log.info("time slice not shortened reason=%s", os.strerror(ctypes.get_errno()))


def _attributes() -> _Attributes | None:
    """Return the scheduling attributes of the calling thread; None if this function does not know
    the machine's system calls, or if the kernel refuses the call."""
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if platform.system() != "Linux" or numbers is None:
        return None
    found = _Attributes()
    if _LIBC.syscall(numbers[1], 0, ctypes.byref(found), ctypes.sizeof(found), 0):
        return None
    return found


def become_batch() -> None:
    """Set the calling thread's scheduling policy to SCHED_BATCH, if the system has it."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # some containers forbid the call
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
