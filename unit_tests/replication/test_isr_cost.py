"""Tests of the number of ZooKeeper requests for the ISR of many partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pybroker.model import TopicPartition
from pybroker.ports import CoordOp, OpResult
from pybroker.replication.isr_review import IsrReview
from pybroker.replication.leader_state import LOOK_SHARE, SessionRequests
from pybroker.replication.partition import Partition
from unit_tests.patience import until
from unit_tests.replication.leading import ALL, LAG_S, Leading
from unit_tests.replication.recreated_topic import RecreatedTopic
from unit_tests.replication.vocabulary import ME

MANY = [TopicPartition("t", number) for number in range(250)]


def count_multis(leading: Leading) -> Callable[[], int]:
    """Count the multis from now on, including refused ones. Return a function that returns the
    number."""
    multis = 0
    write = leading.coord.multi

    async def counted(ops: Sequence[CoordOp]) -> list[OpResult]:
        nonlocal multis
        multis += 1
        return await write(ops)

    leading.coord.multi = counted  # type: ignore[method-assign]
    return lambda: multis


async def test_hundreds_of_changes_share_a_few_multis(leading: Leading) -> None:
    await leading.lead(*MANY)
    for key in MANY:
        leading.replicas.append(key=key)
        leading.fetch(2, 1, key=key)
    multis = count_multis(leading)
    leading.clock.advance(LAG_S + 1)
    for key in MANY:
        leading.fetch(2, 1, key=key)
    await leading.changes.review_all()
    await leading.until_stored(ME, 2, keys=MANY)
    assert multis() == 3


async def test_lead_now_checks_many_partitions_in_few_multis(leading: Leading) -> None:
    await leading.lead(*MANY)
    led = [leading.partition(key) for key in MANY]
    multis = count_multis(leading)
    assert await leading.changes.lead_now(led) == set(MANY)
    assert multis() == 3
    await leading.meddle(MANY[7], leader=2, leader_epoch=1)
    assert await leading.changes.lead_now(led) == {*MANY} - {MANY[7]}
    assert multis() == 3 + 3 + 100
    await RecreatedTopic(leading.tree, MANY[0]).recreate()
    assert await leading.changes.lead_now(led) == set()


def certain(leading: Leading, key: TopicPartition) -> bool:
    return leading.partition(key).certainly_leads(leading.clock.monotonic(), LAG_S * 0.1)


async def test_an_idle_partition_costs_zookeeper_little_while_a_follower_is_down(
    strict: Leading,
) -> None:
    """The ISR is too small without the follower, so the follower stays eligible: the controller may
    elect it at any time."""
    await strict.lead(*MANY, isr=(ME,), eligible=(2,))
    multis = count_multis(strict)
    for _ in range(10):
        strict.clock.advance(LAG_S * (LOOK_SHARE + 0.1))
        await strict.changes.review_all()
        await until(lambda: all(certain(strict, key) for key in MANY))
    assert multis() == 10 * 3


async def test_a_review_looks_only_at_partitions_that_are_not_settled(leading: Leading) -> None:
    await leading.lead(*MANY)
    for key in MANY:
        for broker in (2, 3):
            leading.fetch(broker, 0, key=key)
            leading.fetch(broker, 0, key=key)
    await leading.changes.review_all()
    await leading.until_stored(*ALL, keys=MANY)
    reviewed: list[TopicPartition] = []
    manager = leading.replicas.manager
    review = manager.review_isr

    def noting(partition: Partition) -> None:
        reviewed.append(partition.topic_partition)
        review(partition)

    manager.review_isr = noting  # type: ignore[method-assign]
    await leading.changes.review_all()
    assert reviewed == []
    leading.replicas.append(key=MANY[7])
    await leading.changes.review_all()
    assert reviewed == [MANY[7]]
    leading.clock.advance(LAG_S)
    await leading.changes.review_all()
    assert set(reviewed) == set(MANY)


class Quiet:
    """Many led partitions at rest, with two followers that fetch in one session each.
    `reviewed` returns the partitions at which the next review looks."""

    def __init__(self, leading: Leading, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leading = leading
        self.sessions = {broker: SessionRequests(leading.clock.monotonic()) for broker in (2, 3)}
        self._looked_at: list[TopicPartition] = []
        look_at = IsrReview._look_at

        def noting(review: IsrReview, key: TopicPartition, now: float) -> None:
            self._looked_at.append(key)
            look_at(review, key, now)

        monkeypatch.setattr(IsrReview, "_look_at", noting)

    async def begin(self) -> None:
        await self.leading.lead(*MANY)
        for key in MANY:
            self.fetch(key, 0)
            self.fetch(key, 0)
        self.fetch_nothing()
        self.fetch_nothing()
        await self.reviewed()
        await until(lambda: not any(self._is_pending(key) for key in MANY))
        await self.reviewed()

    def _is_pending(self, key: TopicPartition) -> bool:
        followers = self.leading.partition(key).followers
        return followers is not None and followers.pending is not None

    def fetch(self, key: TopicPartition, offset: int) -> None:
        """Let both followers fetch the partition, and then repeat the fetch in their sessions."""
        for broker, session in self.sessions.items():
            self.leading.fetch(broker, offset, key=key)
            self.leading.partition(key).session_repeats(broker, session)

    def fetch_nothing(self, *brokers: int) -> None:
        """Let the followers send a request of their session that has no changed partition."""
        for broker in brokers or (2, 3):
            self.sessions[broker].arrived(self.leading.clock.monotonic())

    async def reviewed(self) -> list[TopicPartition]:
        self._looked_at.clear()
        await self.leading.changes.review_all()
        return sorted(self._looked_at)


@pytest.fixture
async def quiet(leading: Leading, monkeypatch: pytest.MonkeyPatch) -> Quiet:
    stage = Quiet(leading, monkeypatch)
    await stage.begin()
    return stage


async def test_a_review_does_not_look_at_quiet_partitions(quiet: Quiet) -> None:
    for _ in range(10):
        quiet.leading.clock.advance(LAG_S / 4)
        quiet.fetch_nothing()
        quiet.leading.clock.advance(LAG_S / 4)
        quiet.fetch_nothing()
        assert await quiet.reviewed() == []


@pytest.mark.parametrize("stopped", [2, 3])
async def test_a_follower_whose_session_stops_is_noticed(quiet: Quiet, stopped: int) -> None:
    for _ in range(2):
        quiet.leading.clock.advance(LAG_S * (LOOK_SHARE + 0.1) / 2)
        quiet.fetch_nothing(5 - stopped)
    assert await quiet.reviewed() == MANY
    assert set(quiet.leading.replicas.manager.isr_changes) == set(MANY)


def append(quiet: Quiet) -> None:
    quiet.leading.replicas.append(key=MANY[7])


def fetch_again(quiet: Quiet) -> None:
    quiet.leading.fetch(2, 0, key=MANY[7])


def restart_follower(quiet: Quiet) -> None:
    quiet.leading.fetch(2, 0, key=MANY[7], incarnation=1)


def leave_session(quiet: Quiet) -> None:
    quiet.leading.partition(MANY[7]).session_ends(2, quiet.sessions[2])


@pytest.mark.parametrize("event", [append, fetch_again, restart_follower, leave_session])
async def test_each_event_of_a_partition_lets_the_review_look_at_it(
    quiet: Quiet, event: Callable[[Quiet], None]
) -> None:
    event(quiet)
    assert await quiet.reviewed() == [MANY[7]]


async def test_a_new_leader_epoch_lets_the_review_look_at_the_partition(quiet: Quiet) -> None:
    await quiet.leading.lead(MANY[7], epoch=1)
    assert await quiet.reviewed() == [MANY[7]]


async def test_a_partition_in_lag_is_looked_at_until_it_is_quiet_again(quiet: Quiet) -> None:
    append(quiet)
    for _ in range(3):
        quiet.fetch_nothing()
        assert await quiet.reviewed() == [MANY[7]]
    quiet.fetch(MANY[7], 1)
    quiet.fetch_nothing()
    quiet.fetch_nothing()
    assert await quiet.reviewed() == [MANY[7]]
    assert await quiet.reviewed() == []
