"""Tests of the scheduling of the event loop's thread."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading

import pytest

from pybroker.host.scheduling import LOOP_SLICE_NS, _attributes, shorten_slice

FIRST_LINUX = (6, 12)
"""The first version of Linux in which a thread has a time slice of its own."""


def linux_version() -> tuple[int, ...]:
    return tuple(map(int, platform.release().split("-")[0].split(".")[:2]))


def slice_ns() -> int | None:
    """Return the time slice of the calling thread."""
    found = _attributes()
    return None if found is None else int(found.runtime)


needs_slices = pytest.mark.skipif(
    platform.system() != "Linux" or slice_ns() is None or linux_version() < FIRST_LINUX,
    reason="threads have no time slices of their own before Linux 6.12",
)


@needs_slices
def test_only_the_calling_thread_has_a_shorter_slice() -> None:
    """The test runs in a thread of its own, so that the slice of the main thread stays."""
    found: list[int | None] = []
    default = slice_ns()

    def shorten() -> None:
        shorten_slice()
        found.append(slice_ns())
        later = threading.Thread(target=lambda: found.append(slice_ns()))
        later.start()
        later.join()
        program = "from pybroker.host.scheduling import _attributes; print(_attributes().runtime)"
        child = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
        found.append(int(child.stdout))

    thread = threading.Thread(target=shorten)
    thread.start()
    thread.join()
    assert found == [LOOP_SLICE_NS, default, default]
    assert slice_ns() == default


@needs_slices
def test_a_shorter_slice_keeps_the_policy_and_the_priority() -> None:
    found: list[tuple[int, int]] = []

    def shorten() -> None:
        number = threading.get_native_id()
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, number, 3)
        shorten_slice()
        # The flag SCHED_RESET_ON_FORK is a part of what this call returns.
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        found.append((policy, os.getpriority(os.PRIO_PROCESS, number)))

    thread = threading.Thread(target=shorten)
    thread.start()
    thread.join()
    assert found == [(os.SCHED_BATCH, 3)]
