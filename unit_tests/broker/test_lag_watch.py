"""Tests of the lag of groups for the metrics: committed offsets are read before log ends, one
request covers all groups, and a recent report is reused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from pybroker.broker import lag_watch
from pybroker.broker.lag_watch import (
    FRESH_S,
    GROUPS_AT_ONCE,
    POSITIONS_IN_DETAIL_MAX,
    LagWatch,
    Position,
)
from pybroker.clock import ManualClock
from pybroker.coordinator.groups.calls import GroupOverview, GroupView, MemberView
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import BrokerError, ErrorCode
from pybroker.group_lag import Lag, ProgressReport
from pybroker.model import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@dataclass(slots=True)
class Coordinated:
    """Groups with their committed offsets, the only shard, which coordinates them, and the leaders,
    whose logs end at 10."""

    committed: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    details: bool | None = None
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None
    reads: int = 0
    reads_at_once: int = 0

    @property
    def offsets(self) -> Coordinated:
        return self

    async def overviews(self) -> tuple[ErrorCode, Sequence[GroupOverview]]:
        self.asked.append("list")
        return ErrorCode.NONE, [
            GroupOverview(name, GroupState.STABLE if name in self.members else GroupState.EMPTY)
            for name in self.committed
        ]

    async def describe(self, group_id: str) -> GroupView:
        member = MemberView("m", None, "c", "/h")
        members = (member,) * self.members[group_id]
        return GroupView(group_id, GroupState.STABLE, members=members)

    def shard_of(self, group_id: str, *, may_be_empty: bool = False) -> Coordinated:
        assert may_be_empty, "some simple consumers commit without a name"
        if group_id in self.moved:
            raise BrokerError(ErrorCode.NOT_COORDINATOR)
        return self

    async def positions(self, group_id: str) -> Mapping[TopicPartition, int]:
        self.asked.append(f"commits of {group_id}")
        self.reads += 1
        self.reads_at_once = max(self.reads_at_once, self.reads)
        await asyncio.sleep(0)
        self.reads -= 1
        return dict(self.committed[group_id])

    async def ask(self, positions: Sequence[Position], details: bool) -> Sequence[Lag | None]:
        self.asked.append("ends")
        self.details = details
        await self.answering.wait()
        if self.failure is not None:
            raise self.failure
        return [None if key == A1 else Lag(10 - offset) for key, offset in positions]


def watch(groups: Coordinated, clock: ManualClock | None = None) -> LagWatch:
    groups.answering.set()
    return LagWatch(groups, groups.ask, clock or ManualClock())


def known(report: ProgressReport | None) -> dict[str, dict[TopicPartition, Lag]]:
    assert report is not None
    return {group.group_id: dict(group.lags) for group in report.groups}


async def test_committed_offsets_are_read_before_log_ends() -> None:
    groups = Coordinated({"g": {A0: 4, A1: 5}, "h": {A0: 10}, "i": {}}, {"g": 2})
    report = await watch(groups).report()
    assert report is not None
    assert groups.asked == ["list", "commits of g", "commits of h", "commits of i", "ends"]
    assert groups.details
    assert [(group.group_id, group.members, dict(group.committed)) for group in report.groups] == [
        ("g", 2, {A0: 4, A1: 5}),
        ("h", 0, {A0: 10}),
        ("i", 0, {}),
    ]
    assert known(report) == {"g": {A0: Lag(6)}, "h": {A0: Lag(0)}, "i": {}}


async def test_the_offsets_of_some_groups_are_read_at_once() -> None:
    """Reading one group after the other would cost a round trip to ZooKeeper for each node."""
    names = [f"g{number}" for number in range(3 * GROUPS_AT_ONCE)]
    groups = Coordinated({name: {A0: number % 10} for number, name in enumerate(names)})
    lags = known(await watch(groups).report())
    assert list(lags.items()) == [(name, {A0: Lag(10 - int(name[-1]))}) for name in names]
    assert groups.reads_at_once == GROUPS_AT_ONCE


async def test_groups_without_commits_cause_no_request_to_leaders() -> None:
    groups = Coordinated({"g": {}})
    assert known(await watch(groups).report()) == {"g": {}}
    assert "ends" not in groups.asked


async def test_a_recent_report_is_reused() -> None:
    groups, clock = Coordinated({"g": {A0: 4}}), ManualClock()
    watching = watch(groups, clock)
    await watching.report()
    groups.committed["g"][A0] = 7
    clock.advance(FRESH_S)
    report = await watching.report()
    assert report is not None and report.age_s == FRESH_S
    assert known(report) == {"g": {A0: Lag(6)}}
    clock.advance(1)
    assert known(await watching.report()) == {"g": {A0: Lag(3)}}


async def test_a_moved_group_leaves_the_report() -> None:
    groups = Coordinated({"g": {A0: 4}, "h": {A0: 5}, "i": {A0: 6}})
    groups.moved.add("i")
    watching = watch(groups)
    assert list(known(await watching.report())) == ["g", "h"]
    groups.moved.add("g")
    assert list(known(await watching.report())) == ["h"]


async def test_a_report_does_not_wait_for_slow_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_watch, "PATIENCE_S", 0.01)
    groups, clock = Coordinated({"g": {A0: 4}}), ManualClock()
    watching = watch(groups, clock)
    groups.answering.clear()
    assert await watching.report() is None
    assert await watching.report() is None
    assert groups.asked.count("list") == 1, "one look at a time"
    groups.answering.set()
    assert known(await watching.report()) == {"g": {A0: Lag(6)}}
    clock.advance(2 * FRESH_S)
    groups.answering.clear()
    earlier = await watching.report()
    assert earlier is not None and earlier.age_s == 2 * FRESH_S
    await watching.close()
    await watching.close()


async def test_a_failure_leaves_the_earlier_report(caplog: pytest.LogCaptureFixture) -> None:
    groups, clock = Coordinated({"g": {A0: 4}}), ManualClock()
    watching = watch(groups, clock)
    await watching.report()
    for failure in (OSError("no route"), BrokerError(ErrorCode.REQUEST_TIMED_OUT), KeyError("x")):
        clock.advance(2 * FRESH_S)
        groups.failure = failure
        assert known(await watching.report()) == {"g": {A0: Lag(6)}}
    assert caplog.text.count("group lag unknown") == 3


async def test_reports_of_many_partitions_omit_bytes_and_seconds() -> None:
    many = {TopicPartition("a", 2 + n): 0 for n in range(POSITIONS_IN_DETAIL_MAX)}
    groups = Coordinated({"g": many})
    await watch(groups).report()
    assert groups.details
    groups = Coordinated({"g": many, "h": {A0: 1}})
    await watch(groups).report()
    assert groups.details is False
