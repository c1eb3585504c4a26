"""The clock of the clients under test."""

from __future__ import annotations

import pytest

from pybroker.client import defaults
from unit_tests.idle_loop import LoopClock


@pytest.fixture(autouse=True)
def clock_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of clients follow the loop's clock, which does not count how slow a machine is."""
    monkeypatch.setattr(defaults, "make_clock", LoopClock)
