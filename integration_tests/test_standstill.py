"""Tests that all processes of a command are stopped together, and continue as before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

from integration_tests.process import ChildProcess
from integration_tests.standstill import standing_still
from unit_tests.patience import wait_until

PARENT: Final = """
import subprocess, sys
children = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
print("children", *(child.pid for child in children), flush=True)
sys.stdin.readline()
"""

WAITS_FOR_A_LINE: Final = """
import sys
print("heard", sys.stdin.readline(), flush=True)
sys.exit(3)
"""


@pytest.fixture
def family() -> Iterator[list[psutil.Process]]:
    """Start a process and two children, each in its own session."""
    parent = ChildProcess([sys.executable, "-c", PARENT], interactive=True)
    children = parent.wait_for_line("^children").split()[1:]
    made = [psutil.Process(parent.pid), *(psutil.Process(int(child)) for child in children)]
    yield made
    for process in made[1:]:
        process.kill()
    parent.close()


def is_stopped(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_STOPPED)


def test_descendants_stop_and_continue_unless_stopped_before(
    family: list[psutil.Process],
) -> None:
    parent, child, stopped_before = family
    stopped_before.suspend()
    wait_until(lambda: is_stopped(stopped_before), what="the test's own stop")
    with standing_still(parent.pid) as stopped:
        assert {*stopped} == {parent, child}
        wait_until(lambda: all(map(is_stopped, family)), what="all processes are stopped")
    wait_until(
        lambda: not is_stopped(parent) and not is_stopped(child), what="the processes continue"
    )
    assert is_stopped(stopped_before)


def test_command_continues_after_standstills_and_returns_its_exit_code() -> None:
    words = [sys.executable, "-m", "integration_tests.standstill", "--every", "0.1", "--for", "0.1"]
    process = ChildProcess([*words, "--", sys.executable, "-c", WAITS_FOR_A_LINE], interactive=True)
    try:
        process.wait_for_line("1 processes stand still")
        process.wait_for_line("1 processes go on")
        process.ask("word", "heard word")
        assert process.wait() == 3
    finally:
        process.close()
