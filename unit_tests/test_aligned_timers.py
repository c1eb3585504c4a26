"""Tests of the times at which periodic work is due."""

from __future__ import annotations

import pytest

from pybroker.aligned_timers import EARLY_S, aligned_due


@pytest.mark.parametrize(
    ("now_s", "wait_s", "due_s"),
    [
        (10.0, 1.0, 11.0),
        (10.001, 1.0, 11.0),
        (10.6, 1.0, 11.0),
        (10.0, 1.5, 11.0),
        (11.0, 1.5, 12.0),
        (10.7, 4.0, 14.0),
    ],
)
def test_a_long_wait_ends_at_the_whole_second_before(
    now_s: float, wait_s: float, due_s: float
) -> None:
    assert aligned_due(now_s, wait_s) == due_s


def test_a_short_wait_ends_when_it_is_over() -> None:
    assert aligned_due(10.25, 0.5) == 10.75


def test_a_timer_that_was_called_too_early_keeps_its_interval() -> None:
    assert aligned_due(11.0 - EARLY_S / 2, 1.0) == 12.0


def test_repeated_waits_are_due_once_in_each_interval() -> None:
    due_s = aligned_due(10.3, 5.0)
    assert [due_s := aligned_due(due_s + 0.01, 5.0) for _ in range(3)] == [20.0, 25.0, 30.0]
