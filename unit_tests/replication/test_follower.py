"""Tests of the decisions of a follower: one step from the leader's answer and the follower's
log."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.ports import FetchedPartition
from pybroker.replication.follower import (
    Pause,
    StartOver,
    Step,
    TruncateTo,
    after_answer,
    after_ends,
)

T0 = TopicPartition("t", 0)


@dataclass(frozen=True)
class LogFrom:
    """A log of one epoch."""

    log_start_offset: int
    log_end_offset: int
    latest_epoch: int = 3

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return (3, self.log_end_offset) if epoch >= 3 else (-1, -1)


MOVED = Pause(
    ErrorCode.OFFSET_OUT_OF_RANGE,
    "the leader returned OFFSET_OUT_OF_RANGE, but its log now contains the fetch offset",
)


@pytest.mark.parametrize(
    ("log", "leader", "step"),
    [
        (LogFrom(0, 10), (0, 7), TruncateTo(7)),
        (LogFrom(0, 10), (0, 10), MOVED),
        (LogFrom(0, 10), (12, 20), StartOver(12, 12)),
        (LogFrom(5, 10), (0, 7), TruncateTo(7)),
        # The logs share no record: a log that begins at the leader's end would lack the rest.
        (LogFrom(8, 10), (2, 7), StartOver(2, 2)),
        (LogFrom(8, 10), (8, 8), StartOver(8, 8)),
    ],
)
def test_the_step_after_offset_out_of_range(
    log: LogFrom, leader: tuple[int, int], step: Step
) -> None:
    assert after_ends(log, *leader) == step


@pytest.mark.parametrize(
    ("log", "leader_start", "diverging", "step"),
    [
        (LogFrom(0, 10), 0, (2, 4), TruncateTo(4)),
        (LogFrom(3, 10), 0, (2, 4), TruncateTo(4)),
        (LogFrom(6, 10), 0, (2, 4), StartOver(0, 0)),
        # The leader has deleted the point of divergence, and returns its log start.
        (LogFrom(3, 10), 5, (2, 5), StartOver(5, 5)),
        (LogFrom(6, 10), 6, (2, 4), StartOver(6, 6)),
        (LogFrom(3, 10), 4, (2, 5), TruncateTo(5)),
    ],
)
def test_the_step_after_a_divergence(
    log: LogFrom, leader_start: int, diverging: tuple[int, int], step: Step
) -> None:
    answer = FetchedPartition(
        T0,
        log_start_offset=leader_start,
        diverging_epoch=diverging[0],
        diverging_end_offset=diverging[1],
    )
    assert after_answer(log, answer) == step
