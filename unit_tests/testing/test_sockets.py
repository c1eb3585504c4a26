"""Tests of the choice of free ports."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from pybroker.testing import sockets
from pybroker.testing.sockets import free_ports

RANGE = 40
"""The number of test ports, few enough that two choices would meet."""

CHOOSES = """
import sys
from pybroker.testing import sockets
sockets._highest_port = lambda: sockets._LOWEST_PORT + int(sys.argv[1]) - 1
print(*sockets.free_ports(int(sys.argv[2])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave RANGE test ports to this process, all its own."""
    monkeypatch.setattr(sockets, "_highest_port", lambda: sockets._LOWEST_PORT + RANGE - 1)


def test_port_is_chosen_once(few: None) -> None:
    """The second and third choice, of another thread, return none of the first, although no server
    has bound a port yet."""
    with ThreadPoolExecutor() as pool:
        choices = [pool.submit(free_ports, 5) for _ in range(3)]
        chosen = [port for choice in choices for port in choice.result()]
    assert len(set(chosen)) == 15


def test_other_processes_choose_other_ports_while_the_first_runs(few: None) -> None:
    """Three processes choose six of the forty ports each."""
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CHOOSES, str(RANGE), "6"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(3)
        ]
        chosen = []
        for program in programs:
            assert program.stdout is not None
            chosen += program.stdout.readline().split()
    assert len(set(chosen)) == len(chosen) == 18
