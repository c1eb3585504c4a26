"""A consumer group that reads the topic of a run, for tests of its coordinators: members join and
leave, the test finds the coordinator, and the history is checked at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from integration_tests.faults.rig import PARTITIONS, Rig, Run
from integration_tests.members.members import Member, Members
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.testing.history.checker import check, report
from pybroker.testing.history.loader import load

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
"""The libraries of the members. kafka-python is left out: it does not search for a new coordinator
while its current coordinator is paused or dead, but tries to connect to it for a long time.
"""
OUTLASTING_MS: Final = 30_000
"""A session timeout in ms long enough for another broker to take over as coordinator."""


class Trial:
    """A group that reads the topic of a run, and its coordinator."""

    def __init__(self, run: Run, members: Members) -> None:
        self.run = run
        self.members = members
        self.group = run.topic
        self._partition = partition_of(self.group, OFFSETS_PARTITIONS)
        self.present: dict[str, Member] = {}

    def join(self, *names: str, session_ms: int = 6_000, by: int | None = None) -> None:
        """Start members. With `by` they get the address of this broker only, instead of all
        brokers.
        """
        bootstrap = None if by is None else self.run.cluster.cluster.address(by)
        for name in names:
            self.present[name] = self.members.join(
                LIBRARIES[name], name, group=self.group, session_ms=session_ms, bootstrap=bootstrap
            )

    def leave(self, name: str) -> None:
        self.present.pop(name).leave()

    def wait_until_shared(self) -> int:
        """Wait until the current members share all partitions. Return the generation."""
        return self.members.wait_until_shared(*self.present.values())

    def wait_for_commits(self) -> None:
        self.members.wait_for_commits(self.group)

    def coordinator(self, *, other_than: int | None = None) -> int:
        cluster = self.run.cluster.cluster
        return cluster.leader(OFFSETS_TOPIC, self._partition, other_than=other_than)

    @property
    def held(self) -> Mapping[str, object]:
        """Return member -> (generation, partitions)."""
        return {name: member.held for name, member in self.present.items()}

    def finish(self, *, allowed_errors: Collection[str] = ()) -> None:
        """Wait until the cluster and the group are healthy and all records are processed, then
        check the history.
        """
        found = self.run.finish(allowed_errors=allowed_errors).final()
        ends = {place: len(read.records) for place, read in found.items()}
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
