"""Tests of replicas that sync their logs before they acknowledge appended records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.replication import fetcher
from pybroker.replication.group_commit import GroupCommit
from pybroker.storage.log_config import LogConfig
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S
from unit_tests.replication.copying import Group, Member
from unit_tests.replication.vocabulary import T0


@pytest.fixture
async def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Group]:
    """Leader 1 and follower 2 with flush.messages=1, and without periodic checks."""
    monkeypatch.setattr(fetcher, "_BUSY_S", 10 * PATIENCE_S)
    group = Group(tmp_path, config=LogConfig(flush_messages=1, min_insync_replicas=2))
    commits = [
        GroupCommit(logs=member.logs, replicas=member.manager, blocking=member.blocking)
        for member in group.members.values()
    ]
    for commit in commits:
        commit.start()
    await group.lead(1, 0)
    yield group
    for member, commit in zip(group.members.values(), commits, strict=True):
        member.blocking.open_all()
        await commit.stop()
    await group.close()


def ends(member: Member) -> tuple[int, int, int]:
    partition = member.partition()
    return partition.log.log_end_offset, partition.log.durable_end, partition.high_watermark


async def test_a_follower_reports_only_its_durable_end(group: Group) -> None:
    leader, follower = group[1], group[2]
    leader.append(b"the first of its leader epoch")
    await group.copied(1)
    await group.until(lambda: ends(leader) == ends(follower) == (1, 1, 1))
    gate = follower.blocking.hold()
    leader.append(b"a")
    async with asyncio.timeout(PATIENCE_S):
        await gate.reached.wait()
    assert ends(follower) == (2, 1, 1)
    assert ends(leader) == (2, 2, 1)
    assert all(asked[T0].fetch_offset <= 1 for (who, _), asked in group.asked if who == 2)
    gate.open.set()
    await group.copied(2)
    assert ends(leader) == ends(follower) == (2, 2, 2)


async def test_a_new_leader_epoch_is_durable_before_its_first_record(group: Group) -> None:
    """It becomes so in a thread: the event loop of a follower does not wait for the disk."""
    leader, follower = group[1], group[2]
    gate = follower.blocking.hold()
    leader.append(b"a")
    async with asyncio.timeout(PATIENCE_S):
        await gate.reached.wait()
    assert ends(follower) == (0, 0, 0)
    gate.open.set()
    await group.copied(1)
    assert not follower.partition().log.epoch_file.changed


async def test_the_high_watermark_waits_for_the_leaders_own_sync(group: Group) -> None:
    leader, follower = group[1], group[2]
    gate = leader.blocking.hold()
    leader.append(b"a")
    await group.until(lambda: group.asked[-1][1][T0].fetch_offset == 1)
    assert ends(follower) == (1, 1, 0)
    assert ends(leader) == (1, 0, 0)
    gate.open.set()
    async with asyncio.timeout(PATIENCE_S):
        await leader.manager.produces.wait([T0], missing_bytes=1, timeout_s=PATIENCE_S)
    assert ends(leader) == (1, 1, 1)


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Member]:
    """A leader without followers, with flush.messages=1."""
    group = Group(tmp_path, size=1, config=LogConfig(flush_messages=1))
    member = group[1]
    commit = GroupCommit(logs=member.logs, replicas=member.manager, blocking=member.blocking)
    commit.start()
    await group.lead(1, 0)
    yield member
    member.blocking.open_all()
    await commit.stop()
    await group.close()


async def test_a_sync_wakes_its_waiters_although_an_append_noticed_its_end(
    lone: Member,
) -> None:
    """The sync ends in a thread, and the next append reads the durable end before the event loop
    is notified."""
    gate = lone.blocking.hold()
    lone.append(b"a", b"b", b"c")
    async with asyncio.timeout(PATIENCE_S):
        await gate.reached.wait()
    produces, fetches = lone.manager.produces, lone.manager.fetches
    waiting = [
        asyncio.ensure_future(each.wait([T0], missing_bytes=3, timeout_s=3600))
        for each in (produces, fetches)
    ]
    await idle()
    lone.partition().log.flush()
    lone.append(b"d")
    assert ends(lone) == (4, 3, 0)
    gate.open.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*waiting)
