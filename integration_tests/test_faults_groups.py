"""Groups whose coordinators die, stand still, lose ZooKeeper or their session, in both places that
offsets may be kept in: members join and leave, nothing is skipped, what is committed stays so, and
who no longer coordinates changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pytest

from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.faults.tormented import SESSION_S, Tormented
from integration_tests.members.members import Member, Members
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.testing.history.checker import check, report
from pybroker.testing.history.loader import load

pytestmark = pytest.mark.ours

OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_PARTITIONS: Final = 3
CLIENTS: Final = ("idempotent", "reader")
LIBRARIES: Final = {
    "a": "confluent-kafka",
    "b": "pybroker",
    "c": "aiokafka",
    "d": "kafka-python",
    "e": "confluent-kafka",
}
"""kafka-python's does not look for a coordinator while the one that it knows stands still: it
connects to this one for ever."""
OUTLASTING_MS: Final = 30_000
"""A session that no client takes for over while another broker takes its coordinator's place."""


@pytest.fixture(scope="module", params=["zookeeper", "kafka"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tormented]:
    config = {
        "offsets.storage": request.param,
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
        "group.min.session.timeout.ms": 1_000,
    }
    folder = tmp_path_factory.mktemp("groups")
    with Tormented(folder, proxied=True, config=config) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


class Trial:
    """A group that reads the topic of a run, and its coordinator."""

    def __init__(self, run: Run, members: Members) -> None:
        self.run = run
        self.members = members
        self.group = run.topic
        self._partition = partition_of(self.group, OFFSETS_PARTITIONS)
        self.present: dict[str, Member] = {}

    def join(self, *names: str, session_ms: int = 6_000) -> None:
        for name in names:
            self.present[name] = self.members.join(
                LIBRARIES[name], name, group=self.group, session_ms=session_ms
            )

    def leave(self, name: str) -> None:
        self.present.pop(name).leave()

    def wait_until_shared(self) -> int:
        """Until who is present shares everything; gives the generation."""
        return self.members.wait_until_shared(*self.present.values())

    def wait_for_commits(self) -> None:
        self.members.wait_for_commits(self.group)

    def coordinator(self, *, other_than: int | None = None) -> int:
        cluster = self.run.cluster.cluster
        return cluster.leader(OFFSETS_TOPIC, self._partition, other_than=other_than)

    def finish(self) -> None:
        """The cluster and the group are well, everything is processed and judged."""
        ends = {place: len(read.records) for place, read in self.run.finish().final().items()}
        assert len(ends) == PARTITIONS
        self.members.wait_until_all_is_committed(ends)
        self.members.note_calm()
        self.members.leave_all(self.present.values())
        history = load(self.run.ops_folder)
        violations = check(history)
        assert not violations, report(violations)
        assert history.groups.processed and history.groups.answers


@contextlib.contextmanager
def trial_of(rig: Rig, name: str) -> Iterator[Trial]:
    with (
        rig.run(name, clients=CLIENTS) as run,
        Members(
            run.cluster.bootstrap,
            run.ops_folder,
            {name: PARTITIONS},
            offsets_partitions=OFFSETS_PARTITIONS,
        ) as members,
    ):
        yield Trial(run, members)


def test_coordinator_killed_under_a_stable_group(rig: Rig) -> None:
    """Another broker knows the group: the generation goes on, with everybody's partitions."""
    with trial_of(rig, "group-coordinator-killed") as trial:
        trial.join("a", "b", "c", session_ms=OUTLASTING_MS)
        generation = trial.wait_until_shared()
        trial.wait_for_commits()
        rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        before = {name: member.held for name, member in trial.present.items()}
        for _ in range(2):
            coordinator = trial.coordinator()
            with trial.run.fault("kill9", coordinator):
                rig.cluster.kill9(coordinator)
            trial.coordinator(other_than=coordinator)
            trial.wait_for_commits()
            assert {name: member.held for name, member in trial.present.items()} == before
            rig.cluster.start(coordinator)
            rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        trial.join("d", session_ms=OUTLASTING_MS)
        assert trial.wait_until_shared() > generation
        trial.finish()


def test_coordinator_killed_while_members_come_and_go(rig: Rig) -> None:
    with trial_of(rig, "group-rebalance-killed") as trial:
        trial.join("a", "b")
        trial.wait_until_shared()
        trial.wait_for_commits()
        coordinator = trial.coordinator()
        trial.join("c", "d")
        with trial.run.fault("kill9", coordinator):
            rig.cluster.kill9(coordinator)
        trial.wait_until_shared()
        trial.wait_for_commits()
        rig.cluster.start(coordinator)
        trial.leave("a")
        trial.wait_until_shared()
        trial.finish()


def test_coordinator_paused_and_woken(rig: Rig) -> None:
    """Commits lie in its sockets when it wakes up: it carries out none of them."""
    with trial_of(rig, "group-coordinator-paused") as trial:
        trial.join("a", "b")
        trial.wait_until_shared()
        trial.wait_for_commits()
        coordinator = trial.coordinator()
        with trial.run.fault("pause", coordinator):
            rig.cluster.pause(coordinator)
            trial.join("c")
            trial.coordinator(other_than=coordinator)
            trial.wait_until_shared()
            trial.wait_for_commits()
        rig.cluster.resume(coordinator)
        trial.wait_for_commits()
        trial.leave("b")
        trial.wait_until_shared()
        trial.finish()


def test_coordinator_cut_from_zookeeper(rig: Rig) -> None:
    """Its members still reach it; after its session they go on with another broker, in the same
    generation, and others join there."""
    with trial_of(rig, "group-coordinator-cut") as trial:
        trial.join("a", "c", session_ms=OUTLASTING_MS)
        trial.wait_until_shared()
        trial.wait_for_commits()
        rig.cluster.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        before = {name: member.held for name, member in trial.present.items()}
        coordinator = trial.coordinator()
        with trial.run.fault("cut", coordinator):
            rig.cluster.cut(coordinator, "zookeeper")
            trial.coordinator(other_than=coordinator)
            trial.wait_for_commits()
            trial.run.wait(SESSION_S)
            assert {name: member.held for name, member in trial.present.items()} == before
            trial.join("b", "e", session_ms=OUTLASTING_MS)
            trial.wait_until_shared()
            trial.wait_for_commits()
        rig.cluster.heal()
        trial.wait_for_commits()
        trial.wait_until_shared()
        trial.finish()


def test_sessions_of_coordinators_expire(rig: Rig) -> None:
    with trial_of(rig, "group-sessions-expire") as trial:
        trial.join("a", "b")
        trial.wait_until_shared()
        for name in ("c", "d"):
            trial.wait_for_commits()
            coordinator = trial.coordinator()
            trial.join(name)
            with trial.run.fault("expire", coordinator):
                rig.cluster.expire_session(coordinator)
            trial.wait_until_shared()
        trial.leave("a")
        trial.wait_until_shared()
        trial.wait_for_commits()
        trial.finish()
