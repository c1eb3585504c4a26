"""The high watermark is the least that every possible leader holds."""

from __future__ import annotations

import pytest

from pybroker.replication.isr import committed_end, has_enough_replicas


@pytest.mark.parametrize(
    ("current", "leader_end", "maximal_isr", "follower_ends", "expected"),
    [
        (0, 10, {1}, {}, 10),
        (0, 10, {1, 2}, {2: 7}, 7),
        (0, 10, {1, 2, 3}, {2: 7, 3: 4}, 4),
        (5, 10, {1, 2, 3}, {2: 7}, 5),  # a member that has not reported holds it back
        (5, 10, {1, 2}, {2: 3}, 5),  # it never goes back
        (0, 10, {1, 2}, {2: 7, 3: 1}, 7),  # who is out of sync does not count
    ],
)
def test_committed_end(
    current: int,
    leader_end: int,
    maximal_isr: set[int],
    follower_ends: dict[int, int],
    expected: int,
) -> None:
    assert (
        committed_end(
            current,
            leader=1,
            leader_end=leader_end,
            maximal_isr=maximal_isr,
            follower_ends=follower_ends,
        )
        == expected
    )


@pytest.mark.parametrize(
    ("isr", "required", "replicas", "enough"),
    [(1, 1, 1, True), (1, 2, 1, True), (1, 2, 3, False), (2, 2, 3, True), (0, 1, 1, False)],
)
def test_enough_replicas(isr: int, required: int, replicas: int, enough: bool) -> None:
    assert has_enough_replicas(isr, required, replicas) is enough
