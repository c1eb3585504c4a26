"""Tests of each invariant: a scenario that violates the invariant is reported, and a scenario that
keeps it is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from pybroker.model import TopicPartition
from pybroker.testing.history.checker import check, report
from pybroker.testing.history.model import History
from pybroker.testing.simulation.cluster_record import ClusterRecord
from pybroker.testing.simulation.invariants import INVARIANTS, Invariants, ReplicaNow

T0 = TopicPartition("t", 0)


@dataclass(frozen=True)
class Node:
    """A change of a node as ZooKeeper reports it."""

    zxid: int
    path: str
    data: bytes | None
    version: int
    at: float


class Scenario:
    """A scenario of three brokers, and topic `t` with one partition and min.insync.replicas 2.
    Broker 1 leads.
    """

    def __init__(self) -> None:
        self.record = ClusterRecord(History(), min_isr=2)
        self.invariants = Invariants(self.record)
        self.replicas: dict[int, ReplicaNow] = {}
        self.changes = 0
        self.version = -1
        self.make_topic("first")

    def change(self, path: str, content: object, version: int = 0) -> None:
        """Change the content of a node, or delete the node if `content` is None."""
        self.changes += 1
        data = None if content is None else json.dumps(content).encode()
        self.record.committed(Node(self.changes, path, data, version, float(self.changes)))

    def make_topic(self, topic_id: str) -> None:
        content = {"partitions": {"0": [1, 2, 3]}, "topic_id": topic_id}
        self.change("/brokers/topics/t", content)
        self.replicas = {
            broker: ReplicaNow(broker, f"b{broker}", T0, topic_id, broker == 1, 0, 0, 0)
            for broker in (1, 2, 3)
        }
        self.version = -1
        self.state(1, 0, [1, 2, 3])

    def state(self, leader: int, epoch: int, isr: Sequence[int]) -> None:
        self.version += 1
        content = {"leader": leader, "leader_epoch": epoch, "isr": isr, "controller_epoch": 1}
        self.change("/brokers/topics/t/partitions/0/state", content, self.version)

    def receipt(self, epoch: int) -> None:
        receipts = [{"leader_epoch": epoch, "reason": "unclean-election"}]
        self.change("/pybroker/losses/t/0", {"version": 1, "receipts": receipts})

    def now(self, broker: int, **changes: int | bool | str) -> None:
        self.replicas[broker] = self.replicas[broker]._replace(**changes)  # type: ignore[arg-type]

    def look(self) -> None:
        self.invariants.observe([*self.replicas.values()])

    def commit(self, end: int, *holders: int) -> None:
        """Commit records up to `end`, which the brokers in `holders` have."""
        for broker in holders:
            self.now(broker, log_end=end)
        leader = next(each.broker for each in self.replicas.values() if each.leads)
        self.now(leader, log_end=end, high_watermark=end)
        self.look()


Steps = Callable[[Scenario], None]


def lets_two_brokers_lead_in_an_epoch(scenario: Scenario) -> None:
    scenario.look()
    scenario.now(1, leads=False)
    scenario.now(2, leads=True)
    scenario.look()


def lets_the_high_watermark_fall(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.now(1, high_watermark=4)
    scenario.look()


def commits_what_one_in_sync_has_not(scenario: Scenario) -> None:
    scenario.look()
    scenario.commit(5, 2)


def commits_what_one_who_is_eligible_has_not(scenario: Scenario) -> None:
    scenario.state(1, 0, [1, 2])
    state = scenario.record.states[T0]
    scenario.record.states[T0] = replace(state, eligible=(3,))
    scenario.look()
    scenario.commit(5, 2)


def commits_what_it_alone_has(scenario: Scenario) -> None:
    scenario.state(1, 0, [1])
    scenario.look()
    scenario.commit(5)


def cuts_what_is_committed(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.invariants.shortened(2, T0, "first", 4)


def lets_one_join_who_has_only_what_the_new_leader_knows(scenario: Scenario) -> None:
    scenario.state(1, 0, [1, 2])
    scenario.look()
    scenario.commit(5, 2)
    scenario.state(2, 1, [2])
    scenario.now(1, leads=False)
    scenario.now(2, leads=True, epoch=1, high_watermark=3)
    scenario.now(3, log_end=3)
    scenario.look()
    scenario.state(2, 1, [2, 3])
    scenario.look()


def loses_its_end_unseen(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.state(1, 0, [1, 2])  # or the leader would be above it
    scenario.now(1, leads=False)
    scenario.now(2, log_end=4)
    scenario.look()


def returns_from_power_loss_with_less(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.invariants.doubt(2)
    scenario.state(1, 0, [1, 3])
    scenario.look()
    scenario.state(1, 0, [1, 3, 2])
    scenario.look()
    scenario.now(2, log_end=4)
    scenario.look()


def deletes_what_is_not_committed(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.now(1, log_end=8, log_start=6)
    scenario.look()


BAD: dict[Steps, set[str]] = {
    lets_two_brokers_lead_in_an_epoch: {"one-leader-per-epoch"},
    lets_the_high_watermark_fall: {"high-watermark-never-falls"},
    commits_what_one_in_sync_has_not: {"high-watermark-covered"},
    commits_what_one_who_is_eligible_has_not: {"high-watermark-covered"},
    lets_one_join_who_has_only_what_the_new_leader_knows: {"high-watermark-covered"},
    commits_what_it_alone_has: {"commit-held-by-enough"},
    cuts_what_is_committed: {"committed-kept"},
    loses_its_end_unseen: {"committed-kept", "high-watermark-covered"},
    returns_from_power_loss_with_less: {"committed-kept", "high-watermark-covered"},
    deletes_what_is_not_committed: {"only-committed-deleted"},
}


@pytest.mark.parametrize("steps", BAD, ids=lambda steps: str(steps.__name__))
def test_a_violation_is_found(steps: Steps) -> None:
    scenario = Scenario()
    steps(scenario)
    assert {each.rule for each in scenario.invariants.violations} == BAD[steps]
    scenario.look()
    assert len(scenario.invariants.violations) == len(BAD[steps])  # each is told once


def test_every_invariant_can_be_broken() -> None:
    assert set().union(*BAD.values()) == set(INVARIANTS)


def lives_quietly(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.state(2, 1, [2, 3])
    scenario.now(1, leads=False)
    scenario.now(2, leads=True, epoch=1)
    scenario.look()
    scenario.commit(8, 3)
    scenario.now(2, process="b2 again", leads=False, high_watermark=0)
    scenario.look()


def cuts_what_nobody_committed(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.now(2, log_end=9)
    scenario.look()
    scenario.now(2, log_end=5)
    scenario.look()


def cuts_the_log_of_one_who_is_not_in_sync(scenario: Scenario) -> None:
    scenario.state(1, 0, [1, 2])
    scenario.commit(5, 2, 3)
    scenario.now(3, log_end=0)
    scenario.look()


def commits_without_one_who_was_ended_with_it(scenario: Scenario) -> None:
    scenario.look()
    scenario.now(2, runs=False)
    scenario.commit(5, 2, 3)


def commits_what_another_held_until_it_was_deleted(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    del scenario.replicas[2], scenario.replicas[3]
    scenario.commit(6)


def loses_power(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.invariants.doubt(2)
    scenario.now(2, log_end=3)
    scenario.look()
    scenario.state(1, 0, [1, 3])
    scenario.look()
    scenario.now(2, log_end=5)
    scenario.state(1, 0, [1, 3, 2])
    scenario.commit(6, 2, 3)


def lets_in_what_was_there_before_the_disk_was_lost(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.state(1, 0, [1, 3])
    scenario.now(2, runs=False)
    scenario.invariants.doubt(2)
    scenario.look()
    scenario.state(1, 0, [1, 3, 2])
    scenario.look()
    scenario.now(2, runs=True, log_end=0)
    scenario.look()


def elects_whoever_is_left(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    scenario.now(3, log_end=2)
    scenario.state(1, 0, [1])
    scenario.look()
    scenario.state(3, 1, [3])
    scenario.receipt(1)
    scenario.now(3, leads=True, epoch=1)
    scenario.look()
    scenario.now(2, log_end=2)
    scenario.now(1, leads=False, log_end=2, high_watermark=2)
    scenario.look()


def makes_the_topic_anew(scenario: Scenario) -> None:
    scenario.commit(5, 2, 3)
    old = scenario.replicas[1]
    scenario.change("/admin/delete_topics/t", None)
    scenario.change("/brokers/topics/t/partitions/0/state", None)
    scenario.change("/brokers/topics/t", None)
    scenario.make_topic("second")
    scenario.replicas[1] = old  # has not heard of it
    scenario.now(2, leads=True)
    scenario.state(2, 0, [2, 3])
    scenario.look()


GOOD = (
    lives_quietly,
    cuts_what_nobody_committed,
    cuts_the_log_of_one_who_is_not_in_sync,
    commits_without_one_who_was_ended_with_it,
    commits_what_another_held_until_it_was_deleted,
    loses_power,
    lets_in_what_was_there_before_the_disk_was_lost,
    elects_whoever_is_left,
    makes_the_topic_anew,
)


@pytest.mark.parametrize("steps", GOOD, ids=lambda steps: str(steps.__name__))
def test_an_allowed_state_is_not_reported(steps: Steps) -> None:
    scenario = Scenario()
    steps(scenario)
    assert not scenario.invariants.violations, report(scenario.invariants.violations)


@pytest.mark.parametrize(("leader", "epoch", "bad"), [(2, 1, True), (2, 0, False), (-1, 1, False)])
def test_a_leader_elected_by_a_replaced_controller_is_reported(
    leader: int, epoch: int, bad: bool
) -> None:
    """Changes of the ISR, and leaders that resign, store the epoch of the controller that elected
    the leader.
    """
    scenario = Scenario()
    scenario.state(2, 0, [2, 3])
    scenario.change("/controller_epoch", 1)
    scenario.state(2, 0, [1, 2, 3])
    scenario.change("/controller_epoch", 2)
    scenario.state(leader, epoch, [1, 2])
    scenario.state(leader, epoch, [1, 2, 3])
    found = [each.text for each in check(scenario.record.history, ["epochs"])]
    assert [text for text in found if "controller" in text] == (
        ["leader epoch 1 was made by the controller of epoch 1, after 2 had begun"] if bad else []
    )


def test_the_history_has_topics_states_controllers_and_loss_receipts() -> None:
    scenario = Scenario()
    scenario.change("/config/topics/u", {"version": 1, "config": {"min.insync.replicas": "3"}})
    scenario.change("/brokers/topics/u", {"partitions": {"0": [1, 2, 3], "1": [2, 3]}})
    scenario.receipt(4)
    scenario.receipt(4)  # completed later
    for path, content in (("/controller", {"brokerid": 2}), ("/controller_epoch", 7)):
        scenario.record.committed(Node(99, path, json.dumps(content).encode(), 0, 9.0))
    scenario.change("/controller", {"brokerid": 3})  # the epoch is another transaction's
    scenario.change("/admin/delete_topics/t", {})
    history = scenario.record.history
    assert [(life.topic, life.min_isr) for life in history.lives] == [("t", 2), ("u", 3)]
    assert history.lives[0].doomed and not history.lives[1].doomed
    assert scenario.record.alive() == [("u", 0), ("u", 1)]
    assert [scenario.record.required(each) for each in scenario.record.alive()] == [3, 2]
    assert [(loss.partition, loss.reason) for loss in history.losses] == [(T0, "unclean-election")]
    assert [(term.epoch, term.broker) for term in history.controller_terms] == [(7, 2)]
    assert [(state.version, state.isr) for state in history.states] == [(0, (1, 2, 3))]


@pytest.mark.parametrize("is_admitted", (True, False))
def test_the_losses_of_a_recreated_topic_need_new_receipts(is_admitted: bool) -> None:
    """Loss receipts are deleted with their topic; the recreated topic restarts its leader epochs at
    0.
    """
    scenario = Scenario()

    def lose(is_told: bool) -> None:
        """Let all brokers lose power, so that no replica counts. One transaction elects a leader
        and writes the loss receipt.
        """
        scenario.state(-1, 1, [])
        scenario.state(3, 2, [3])
        if is_told:
            receipts = {"version": 1, "receipts": [{"leader_epoch": 2, "reason": "power-loss"}]}
            data = json.dumps(receipts).encode()
            zxid = scenario.changes
            scenario.record.committed(Node(zxid, "/pybroker/losses/t/0", data, 0, float(zxid)))

    lose(True)
    scenario.change("/admin/delete_topics/t", {})
    scenario.change("/pybroker/losses/t/0", None)
    scenario.change("/brokers/topics/t/partitions/0/state", None)
    scenario.change("/brokers/topics/t", None)
    scenario.make_topic("second")
    lose(is_admitted)
    found = [each.text for each in check(scenario.record.history, ["clean-elections"])]
    assert found == (
        []
        if is_admitted
        else ["version 2 makes 3 the leader, version 1 has () in sync and () eligible"]
    )
