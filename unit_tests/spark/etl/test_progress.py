"""Tests of the progress of a run, on a terminal and on other streams."""

from __future__ import annotations

import io

import pytest

from pybroker.spark.etl.progress import Lines, Terminal, for_stream


class Tty(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Tty()
    shown = for_stream(out)
    assert isinstance(shown, Terminal)
    shown.stage("orders: write")
    shown.tasks(3, 10)
    shown.close()
    assert "orders: write" in out.getvalue()
    assert "3/10" in out.getvalue()


def test_other_streams_get_a_line_for_each_stage() -> None:
    out = io.StringIO()
    shown = for_stream(out)
    assert isinstance(shown, Lines)
    shown.stage("orders: plan")
    shown.tasks(1, 2)  # not enough time has passed for another line
    shown.stage("orders: write")
    shown.close()
    assert out.getvalue() == "orders: plan\norders: write\n"
