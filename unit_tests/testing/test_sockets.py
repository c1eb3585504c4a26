"""Tests of the choice of free ports."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pybroker.testing.sockets import ROW_MAX, free_ports, free_row


def test_workers_choose_from_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker gets a quarter of the ports, including rows of ports."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "4")
    chosen = list[set[int]]()
    for number in range(4):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        row = free_row(ROW_MAX)
        chosen.append({*free_ports(300), *range(row, row + ROW_MAX)})
    assert sorted(map(max, chosen)) == [*map(max, chosen)]
    for lower, higher in pairwise(chosen):
        assert max(lower) < min(higher)
