"""Tests that the high watermark is at most the log end of every possible leader."""

from __future__ import annotations

import pytest

from pybroker.model import NO_OFFSET
from pybroker.replication.isr import committed_end, has_enough_replicas


@pytest.mark.parametrize(
    ("current", "leader_end", "member_ends", "expected"),
    [
        (0, 10, [], 10),
        (0, 10, [7], 7),
        (0, 10, [7, 4], 4),
        (5, 10, [7, NO_OFFSET], 5),  # an unreported member keeps the high watermark
        (5, 10, [3], 5),  # the high watermark never falls
        (0, 10, [11], 10),  # at most the leader's log end
    ],
)
def test_the_high_watermark_from_the_log_ends(
    current: int, leader_end: int, member_ends: list[int], expected: int
) -> None:
    assert committed_end(current, leader_end, member_ends) == expected


@pytest.mark.parametrize(
    ("isr", "required", "replicas", "enough"),
    [(1, 1, 1, True), (1, 2, 1, True), (1, 2, 3, False), (2, 2, 3, True), (0, 1, 1, False)],
)
def test_the_required_number_of_in_sync_replicas(
    isr: int, required: int, replicas: int, enough: bool
) -> None:
    assert has_enough_replicas(isr, required, replicas) is enough
