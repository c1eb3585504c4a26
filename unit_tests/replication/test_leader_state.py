"""Tests of the ISR changes that a leader derives from scripts of follower fetches.

A line is a time in seconds, a word and its numbers: `append N` (the log end becomes N), `fetch B N`
(broker B fetches at offset N), `check` (the leader looks for lagging followers; if it looks at the
state node, the node is unchanged), `store` (the pending change is stored). After `->` comes the
expected state: `isr`, `pending` (the ISR of the change under way), `hw`; or only `led_s`.
"""

from __future__ import annotations

import math
import random

import pytest

from pybroker.model import PartitionFacts, PartitionState
from pybroker.replication.leader_state import FollowerFetch, IsrChange, LeaderState
from unit_tests.replication.vocabulary import ME, T0, TOPIC_ID

LAG_S = 10.0


class Stage:
    """A leader with a log end offset in place of a log."""

    def __init__(self, isr: tuple[int, ...], required: int, end: int, hw: int) -> None:
        facts = PartitionFacts(T0, TOPIC_ID, PartitionState(ME, 5, isr, 1), 7, (ME, 2, 3))
        self.leader = LeaderState.begin(facts, broker_id=ME, epoch_start=end, now=0.0)
        self.required = required
        self.end = end
        self.hw = hw
        self.settle()

    def settle(self) -> None:
        self.hw = self.leader.committed_end(self.hw, leader_end=self.end, required=self.required)

    def do(self, now: float, word: str, *numbers: int) -> None:
        match word, numbers:
            case "append", (end,):
                self.end = end
            case "fetch", (broker, offset):
                fetch = FollowerFetch(broker, offset, 0, incarnation=1)
                self.leader.fetched(fetch, leader_end=self.end, now=now, lag_max_s=LAG_S)
                self.settle()
                self.leader.propose_join(broker, high_watermark=self.hw, required=self.required)
            case "check", ():
                self.leader.propose(
                    leader_end=self.end, required=self.required, now=now, lag_max_s=LAG_S
                )
                if self.leader.pending is not None and self.leader.pending.only_looks:
                    self.leader.unchanged()
            case "store", ():
                assert self.leader.pending is not None
                self.leader.stored(self.leader.pending, self.leader.pending.expected_version + 1)
            case _:
                raise AssertionError(word)
        self.settle()

    def show(self) -> str:
        pending = self.leader.pending
        words = [f"isr {_text(self.leader.facts.state.isr)}", f"hw {self.hw}"]
        if pending is not None:
            words.insert(1, f"pending {_text(pending.state.isr)}")
        return " ".join(words)


def _text(isr: tuple[int, ...]) -> str:
    return ",".join(map(str, isr))


SCRIPTS = {
    "a follower that reaches an earlier log end stays however fast the log grows": """
        0 append 10        -> isr 1,2,3 hw 0
        1 fetch 2 0        -> isr 1,2,3 hw 0
        1 fetch 3 0        -> isr 1,2,3 hw 0
        6 append 20        -> isr 1,2,3 hw 0
        6 fetch 2 10       -> isr 1,2,3 hw 0
        6 fetch 3 9        -> isr 1,2,3 hw 9
        11 append 30       -> isr 1,2,3 hw 9
        11 check           -> isr 1,2,3 pending 1,2 hw 9
        11 fetch 2 20      -> isr 1,2,3 pending 1,2 hw 9
        11 store           -> isr 1,2 hw 20
        16 check           -> isr 1,2 hw 20
        16.5 check         -> isr 1,2 pending 1 hw 20
    """,
    "a new leader gives each replica the whole lag time": """
        0 append 5         -> isr 1,2,3 hw 0
        10 check           -> isr 1,2,3 hw 0
        10.1 check         -> isr 1,2,3 pending 1 hw 0
        10.2 fetch 2 5     -> isr 1,2,3 pending 1 hw 0
        10.2 fetch 3 5     -> isr 1,2,3 pending 1 hw 5
        10.3 store         -> isr 1 hw 5
    """,
    "only one change at a time": """
        0 append 5         -> isr 1,2,3 hw 0
        11 fetch 2 5       -> isr 1,2,3 hw 0
        11 check           -> isr 1,2,3 pending 1,2 hw 0
        30 append 6        -> isr 1,2,3 pending 1,2 hw 0
        30 check           -> isr 1,2,3 pending 1,2 hw 0
        30 store           -> isr 1,2 hw 5
        30 check           -> isr 1,2 pending 1 hw 5
    """,
}

JOINING = {
    "the high watermark waits for a follower that is about to join": """
        0 append 10        -> isr 1 hw 10
        1 fetch 2 0        -> isr 1 hw 10
        2 append 20        -> isr 1 hw 20
        2 fetch 2 10       -> isr 1 hw 20
        3 append 30        -> isr 1 hw 20
        3 fetch 2 20       -> isr 1 pending 1,2 hw 20
        3 store            -> isr 1,2 hw 20
        4 fetch 2 30       -> isr 1,2 hw 30
    """,
    "the high watermark stops waiting for a follower that lags again": """
        0 append 10        -> isr 1 hw 10
        1 fetch 2 0        -> isr 1 hw 10
        2 append 20        -> isr 1 hw 20
        2 fetch 2 10       -> isr 1 hw 20
        3 append 30        -> isr 1 hw 20
        12 check           -> isr 1 hw 30
    """,
    "a follower that joins has the lag time to reach the end": """
        0 fetch 2 0        -> isr 1 pending 1,2 hw 0
        0 append 10        -> isr 1 pending 1,2 hw 0
        9 fetch 2 5        -> isr 1 pending 1,2 hw 5
        12 store           -> isr 1,2 hw 5
        18 check           -> isr 1,2 hw 5
        20 check           -> isr 1,2 pending 1 hw 5
    """,
}

TOO_FEW = {
    "with too few in-sync replicas the high watermark waits until the change is stored": """
        0 append 10        -> isr 1 hw 0
        0 fetch 3 10       -> isr 1 pending 1,3 hw 0
        0 store            -> isr 1,3 hw 10
    """,
}

BEHIND = {
    "a follower that lacks records from before the epoch does not join": """
        0 fetch 3 0        -> isr 1,2 hw 0
        0 fetch 3 9        -> isr 1,2 hw 0
        0 fetch 3 10       -> isr 1,2 pending 1,2,3 hw 0
    """,
}


def play(stage: Stage, script: str) -> None:
    for line in filter(None, map(str.strip, script.splitlines())):
        command, _, expected = line.partition("->")
        now, word, *numbers = command.split()
        stage.do(float(now), word, *map(int, numbers))
        assert (line, stage.show()) == (line, expected.strip())


@pytest.mark.parametrize("name", SCRIPTS)
def test_isr_changes_with_three_in_sync_replicas(name: str) -> None:
    play(Stage((ME, 2, 3), required=1, end=0, hw=0), SCRIPTS[name])


@pytest.mark.parametrize("name", JOINING)
def test_isr_changes_of_a_leader_that_is_alone_in_sync(name: str) -> None:
    play(Stage((ME,), required=1, end=0, hw=0), JOINING[name])


@pytest.mark.parametrize("name", TOO_FEW)
def test_isr_changes_with_fewer_in_sync_replicas_than_required(name: str) -> None:
    play(Stage((ME,), required=2, end=0, hw=0), TOO_FEW[name])


@pytest.mark.parametrize("name", BEHIND)
def test_a_high_watermark_below_the_epoch_start(name: str) -> None:
    play(Stage((ME, 2), required=2, end=10, hw=0), BEHIND[name])


def test_a_refused_incarnation_is_not_proposed_again() -> None:
    stage = Stage((ME,), required=1, end=0, hw=0)
    stage.do(0, "fetch", 2, 0)
    change = stage.leader.pending
    assert change is not None
    stage.leader.refused(change)
    stage.do(1, "fetch", 2, 0)
    assert stage.leader.pending is None
    stage.do(1, "append", 5)
    assert stage.hw == 5
    again = FollowerFetch(2, 5, 0, incarnation=2)
    stage.leader.fetched(again, leader_end=5, now=2.0, lag_max_s=LAG_S)
    proposed = stage.leader.propose_join(2, high_watermark=5, required=1)
    assert proposed == IsrChange(T0, TOPIC_ID, PartitionState(ME, 5, (ME, 2), 1), 7, 2, 2)


def test_after_a_later_epoch_is_stored_nothing_is_proposed() -> None:
    stage = Stage((ME, 2), required=1, end=0, hw=0)
    stage.do(0, "append", 5)
    stage.leader.is_superseded = True
    stage.do(50, "check")
    stage.do(50, "fetch", 3, 5)
    assert stage.show() == "isr 1,2 hw 0"


LEADING = {
    "a second fetch proves that the follower followed at the first": """
        0 fetch 2 0        -> 0
        1 fetch 3 0        -> 0
        3 fetch 2 0        -> 0
        3.5 fetch 3 0      -> 0
        3.6 fetch 2 0      -> 1
        3.7 fetch 3 0      -> 3
    """,
    "a follower without fetches may lead": """
        0 fetch 2 0        -> 0
        0 check            -> 0
        5 check            -> 0
        5.1 check          -> 5.1
        6 fetch 2 0        -> 5.1
        7 fetch 2 0        -> 5.1
        10 check           -> 5.1
    """,
    "a stored change proves the leadership at the time of its proposal": """
        1 append 5         -> 0
        11 fetch 2 5       -> 0
        11 check           -> 0
        12 store           -> 11
        13 fetch 2 5       -> 11
        14 fetch 2 5       -> 13
        15 fetch 3 5       -> 11
        16 store           -> 15
    """,
}


@pytest.mark.parametrize("name", LEADING)
def test_the_time_until_which_no_other_replica_led(name: str) -> None:
    stage = Stage((ME, 2, 3), required=1, end=0, hw=0)
    for line in filter(None, map(str.strip, LEADING[name].splitlines())):
        command, _, expected = line.partition("->")
        now, word, *numbers = command.split()
        stage.do(float(now), word, *map(int, numbers))
        assert (line, stage.leader.led_s) == (line, float(expected))


def test_an_eligible_replica_may_lead_too() -> None:
    assert Stage((ME,), required=1, end=0, hw=0).leader.led_s == math.inf
    facts = PartitionFacts(T0, TOPIC_ID, PartitionState(ME, 5, (ME,), 1, (2,)), 7, (ME, 2, 3))
    leader = LeaderState.begin(facts, broker_id=ME, epoch_start=0, now=3.0)
    assert leader.led_s == 3.0


@pytest.mark.parametrize("seed", range(30))
def test_a_settled_leader_proposes_nothing(seed: int) -> None:
    """The periodic review skips partitions that are settled."""
    rng = random.Random(seed)
    stage = Stage((ME, 2, 3), required=1, end=0, hw=0)
    now, settled = 0.0, 0
    for _ in range(200):
        now += rng.choice((0.0, 0.5, 3.0, 12.0))
        match rng.randrange(6):
            case 0:
                stage.do(now, "append", stage.end + rng.randint(0, 2))
            case 1:
                stage.do(now, "fetch", rng.choice((2, 3)), rng.randint(0, stage.end))
            case 2 | 3:
                stage.do(now, "fetch", 2, stage.end)
                stage.do(now, "fetch", 3, stage.end)
            case 4 if stage.leader.pending is not None:
                stage.do(now, "store")
            case _:
                pass
        is_settled = stage.leader.is_settled(stage.end, now, LAG_S)
        before = repr(stage.leader)
        proposed = stage.leader.propose(leader_end=stage.end, required=1, now=now, lag_max_s=LAG_S)
        if is_settled:
            settled += 1
            assert repr(stage.leader) == before
        elif proposed is not None and proposed.only_looks:
            stage.leader.unchanged()
    assert settled > 3
