"""Simulated consumer groups. Members join, process records, commit, pause, crash, leave and return.
Clients outside of the groups request committed offsets."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pybroker.client import Consumer, ConsumerRecord
from pybroker.client.backoff import Deadline
from pybroker.client.coordinator_link import CoordinatorLink
from pybroker.client.errors import ClientError
from pybroker.client.groups.decisions import Identity
from pybroker.client.groups.offsets import Offsets
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.model import TopicPartition
from pybroker.testing.history.model import Commit
from pybroker.testing.simulation.workload.clients import Client, Shared
from pybroker.testing.simulation.workload.late_commits import LateCommits
from pybroker.testing.simulation.workload.options import (
    CLIENT_OPTIONS,
    GROUP_OPTIONS,
    WorkloadOptions,
)

TOPIC: Final = "load-0"
"""The topic that every group must read completely. Other topics may be created and deleted during
the run."""
_EVERYTHING: Final = "(load|churned)-.*"
_POLL_MS: Final = 100
_RECORDS_MAX: Final = (1, 5, 500)
_WORK_MEAN_S: Final = 0.01
_SLOW: Final = 0.004
"""The share of record batches whose processing takes longer than the consumer's
max.poll.interval.ms."""
_SLOW_S: Final = (1.0, 5.0)
_SILENT_S: Final = (0.1, 6.0)
_COMMITS: Final = ("sync", "async", "each", "automatic")
_ENDS: Final = ("leave", "leave", "unsubscribe", "crash", "pause", "pause")
_ASSIGNORS: Final = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("cooperative-sticky",),
)
_ASK_MEAN_S: Final = 0.4
_NO_TOPIC_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The parameters that all members of a consumer group share."""

    name: str
    assignors: tuple[str, ...]
    is_static: bool
    reads_everything: bool
    """Whether the members subscribe to a pattern. Topics that match it are created and deleted
    during the run."""

    @classmethod
    def drawn(cls, name: str, rng: random.Random, options: WorkloadOptions) -> GroupPlan:
        assignors = rng.choice(_ASSIGNORS)
        # The return of a static member does not start a rebalance for partitions that were
        # added meanwhile.
        is_static = rng.random() < 0.3 and not options.churn_mean_s
        return cls(name, assignors, is_static, not is_static and rng.random() < 0.3)


class _GroupClient(Client):
    def __init__(self, shared: Shared, name: str, plan: GroupPlan) -> None:
        super().__init__(shared, name)
        self.plan = plan

    @property
    def is_stopping(self) -> bool:
        """Return whether the clients of groups must stop. Groups stop later than other clients,
        after they have read all records of the producers."""
        return self.shared.groups_are_stopping

    def make(self, **more: Any) -> Consumer:
        return Consumer(
            self.shared.bootstrap,
            clock=self.clock,
            rng=self.rng,
            client_id=self.name,
            group_id=self.plan.name,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=self.options.fetch_wait_ms,
            max_partition_fetch_bytes=self.options.fetch_bytes,
            **CLIENT_OPTIONS,
            **more,
        )


class MemberClient(_GroupClient):
    """A simulated member of a consumer group. Each process of the member leaves, unsubscribes,
    crashes or pauses after a random time. Once `Workload.spread` or `Workload.stop` has been
    called, a process does none of this until `Workload.stop_groups`."""

    def __init__(self, shared: Shared, name: str, plan: GroupPlan) -> None:
        super().__init__(shared, name, plan)
        self._open: list[Commit] = []
        """The commits of the present process whose outcome is not known."""
        self._again: LateCommits | None = None

    @property
    def _who(self) -> str:
        return f"{self.name}/{self.incarnation}"

    def start(self) -> None:
        """Start the member's next process. If the topic of the groups does not exist yet, try again
        later."""
        if TOPIC not in self.shared.catalog.topics and not self.is_stopping:
            self.shared.environment.after(_NO_TOPIC_S, self.start)
            return
        super().start()
        lives_s = self._fate.expovariate(1 / self.options.member_life_mean_s)
        if self.machine.loop is not None:
            self.shared.environment.after(lives_s, self._change_state, self.incarnation)

    @property
    def _stays(self) -> bool:
        return self.shared.is_even or self.shared.is_stopping

    def _crash(self, incarnation: int) -> None:
        if not self._stays:
            super()._crash(incarnation)

    def _change_state(self, incarnation: int) -> None:
        loop = self.machine.loop
        if loop is None or incarnation != self.incarnation or self._stays:
            return
        fate = self._fate.choice(_ENDS)
        if fate == "crash":
            self._crash(incarnation)
        elif fate == "pause":
            loop.pause()
            self.shared.environment.after(self._fate.uniform(*_SILENT_S), loop.resume)
            self.shared.environment.after(
                self._fate.expovariate(1 / self.options.member_life_mean_s),
                self._change_state,
                incarnation,
            )
        else:
            self._farewell = fate

    def killed(self) -> None:
        for commit in self._open:
            self.recorder.commit_ended(commit, "info", "killed")
        self._open.clear()
        if self._again is not None:
            self._again.killed()

    async def run(self) -> None:
        self._farewell = ""
        how = self.rng.choice(_COMMITS)
        consumer = await self.opened(partial(self._make, how))
        if consumer is None:
            return
        self._follow_commits(consumer)
        self._subscribe(consumer)
        most = self.rng.choice(_RECORDS_MAX)
        while not self.is_stopping and not self._farewell:
            for partition, records in (
                await consumer.getmany(timeout_ms=_POLL_MS, max_records=most)
            ).items():
                await self._work(consumer, partition, records, how)
            await self._commit(consumer, how)
        if self._farewell == "unsubscribe":
            await consumer.unsubscribe()
        await consumer.close()

    def _make(self, how: str) -> Consumer:
        more = dict(GROUP_OPTIONS)
        if self.plan.is_static:
            more["group_instance_id"] = self.name
        return self.make(
            enable_auto_commit=how == "automatic",
            partition_assignment_strategy=self.plan.assignors,
            **more,
        )

    def _subscribe(self, consumer: Consumer) -> None:
        told = _identity(consumer)

        def hold(given: Sequence[TopicPartition] = ()) -> None:
            kept = sorted(consumer.assignment() - {*given})
            member = told.instance_id or told.member_id
            self.recorder.holds(self.plan.name, self._who, member, told.generation, kept)

        def assigned(_added: list[TopicPartition]) -> None:
            nonlocal told
            told = _identity(consumer)
            hold()

        wanted: dict[str, Any] = {"topics": [TOPIC]}
        if self.plan.reads_everything:
            wanted = {"pattern": _EVERYTHING}
        consumer.subscribe(**wanted, on_assigned=assigned, on_revoked=hold, on_lost=hold)

    async def _work(
        self,
        consumer: Consumer,
        partition: TopicPartition,
        records: Sequence[ConsumerRecord],
        how: str,
    ) -> None:
        is_slow = self.rng.random() < _SLOW and not self._stays
        await self.rest(self.rng.uniform(*_SLOW_S) if is_slow else _WORK_MEAN_S)
        for record in records:
            self.recorder.processed(self.plan.name, self._who, partition, record.offset)
            if how == "each":
                consumer.commit_async({partition: record.offset + 1}, lambda offsets, error: None)

    async def _commit(self, consumer: Consumer, how: str) -> None:
        if how == "async":
            consumer.commit_async(callback=lambda offsets, error: None)
        elif how == "sync" and consumer.assignment():
            try:
                await consumer.commit()
            except ClientError as error:
                self.recorder.refused[type(error).__name__] += 1

    # outcomes of commits

    def _follow_commits(self, consumer: Consumer) -> None:
        """Record all commits that the consumer sends, including automatic ones."""
        group = consumer._group
        assert group is not None
        offsets, self._open = group._offsets, []
        commit = offsets.commit
        again = self._again = self._late_commits(consumer)

        def followed(
            wanted: Offsets, deadline: Deadline, **more: bool
        ) -> Coroutine[Any, Any, frozenset[TopicPartition]]:
            if again is not None:
                again.sent(wanted)
            generation = _identity(consumer).generation
            begun = [
                self.recorder.commit_begun(
                    self.plan.name, self._who, generation, partition, each.offset
                )
                for partition, each in wanted.items()
            ]
            self._open += begun
            return self._heard(consumer, begun, commit(wanted, deadline, **more))

        offsets.commit = followed  # type: ignore[method-assign, assignment]

    def _late_commits(self, consumer: Consumer) -> LateCommits | None:
        if not self.options.late_commits:
            return None
        rng = self.shared.environment.rng(f"late commits of {self._who}")
        link = _link(consumer)
        return LateCommits(link, partial(_identity, consumer), self.recorder, self._who, rng)

    async def _heard(
        self,
        consumer: Consumer,
        begun: list[Commit],
        work: Coroutine[Any, Any, frozenset[TopicPartition]],
    ) -> frozenset[TopicPartition]:
        outcome, text, gone = "info", "given up", frozenset[TopicPartition]()
        try:
            gone = await work
            outcome, text = "ok", ""
        except ClientError as error:
            text = str(error)
            raise
        finally:
            for commit in begun:
                # A retry of a commit uses the generation of that moment.
                commit.generation = max(commit.generation, _identity(consumer).generation)
                self._open.remove(commit)
                if commit.partition in gone:
                    self.recorder.commit_ended(commit, "info", "the partition is gone")
                else:
                    self.recorder.commit_ended(commit, outcome, text)
        return gone


class CommittedOffsetClient(_GroupClient):
    """A client, outside of the group, that requests the committed offsets of a group one by one."""

    async def run(self) -> None:
        consumer = await self.opened(lambda: self.make(enable_auto_commit=False))
        if consumer is None:
            return
        while not self.is_stopping:
            count = self.shared.catalog.topics.get(TOPIC, 0)
            if count:
                await self._ask(consumer, [TopicPartition(TOPIC, each) for each in range(count)])
            await self.rest(_ASK_MEAN_S)
        await consumer.close()

    async def _ask(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        asked = self.recorder.now()
        try:
            answers = await consumer.committed(partitions)
        except ClientError as error:
            self.recorder.refused[type(error).__name__] += 1
            return
        for partition, answer in answers.items():
            offset = -1 if answer is None else answer.offset
            self.recorder.told_committed(self.plan.name, self.name, partition, asked, offset)


def _link(consumer: Consumer) -> CoordinatorLink:
    assert consumer._group is not None
    return consumer._group._offsets._link


def _identity(consumer: Consumer) -> Identity:
    assert consumer._group is not None
    return consumer._group._member.identity


def clients_of_groups(shared: Shared, name: str) -> list[Client]:
    """Return the members of all groups, and one client per group that requests the group's
    committed offsets."""
    options, found = shared.options, list[Client]()
    for number in range(options.groups):
        group = f"{name}-group-{number}"
        plan = GroupPlan.drawn(group, shared.environment.rng(f"plan of {group}"), options)
        partition = partition_of(group, options.offsets_partitions)
        shared.recorder.group(group, [TOPIC], partition)
        found += [
            MemberClient(shared, f"{group}-member-{each}", plan) for each in range(options.members)
        ]
        found.append(CommittedOffsetClient(shared, f"{group}-asker", plan))
    return found
