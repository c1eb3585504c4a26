"""Tests that log lines that a peer can cause are limited, and the omitted lines are counted."""

from __future__ import annotations

from pybroker.applog.rate_limit import KINDS_MAX, LogLimit
from pybroker.clock import ManualClock


def test_lines_up_to_the_limit_pass_and_the_rest_is_counted() -> None:
    clock = ManualClock()
    limit = LogLimit(clock, lines=2, interval_s=10)
    assert [limit.allow() for _ in range(5)] == [0, 0, None, None, None]
    clock.advance(9.9)
    assert limit.allow() is None
    clock.advance(0.1)
    assert [limit.allow() for _ in range(3)] == [4, 0, None]


def test_each_kind_has_its_own_limit() -> None:
    limit = LogLimit(ManualClock(), lines=1)
    assert [limit.allow("a"), limit.allow("b"), limit.allow("a")] == [0, 0, None]


def test_kinds_beyond_the_maximum_share_one_limit() -> None:
    limit = LogLimit(ManualClock(), lines=1)
    allowed = [limit.allow(str(number)) for number in range(3 * KINDS_MAX)]
    assert allowed.count(0) == KINDS_MAX + 1
