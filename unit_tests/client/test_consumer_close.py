"""Tests of the end of a consumer in a group: it commits, leaves, and does not wait long for brokers
that do not answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pybroker.client import Consumer
from pybroker.client.groups import committer
from pybroker.client.groups import member as groups_member
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import LeaveGroupRequest
from unit_tests.client.fake_broker import NEVER_ANSWER
from unit_tests.client.fake_groups import FakeGroup
from unit_tests.client.group_readers import a_group, first, member, tp
from unit_tests.client.held_logs import batch, holding


def silence(group: FakeGroup) -> None:
    """Let the broker receive requests and answer none."""
    for key in ApiKey:
        group.broker.will(key, *[NEVER_ANSWER] * 10_000)


async def read_two(group: FakeGroup, consumer: Consumer) -> None:
    holding(group.broker.partition(), batch(b"a", b"b"))
    assert [await first(consumer), await first(consumer)] == [b"a", b"b"]


class Elapsed:
    """Measures time on the loop's clock, which does not count how slow the machine is."""

    def __init__(self) -> None:
        self._start = asyncio.get_running_loop().time()

    @property
    def seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._start


@pytest.mark.parametrize("reason", [LookupError, asyncio.CancelledError])
async def test_a_block_that_an_exception_ends_leaves_the_group_at_once(
    reason: type[BaseException],
) -> None:
    async with a_group(t=1) as group:
        with suppress(reason):
            async with member(group, topics=["t"]) as consumer:
                await read_two(group, consumer)
                elapsed = Elapsed()
                raise reason
        assert elapsed.seconds < 0.5
        assert group.seen(LeaveGroupRequest)
        assert not group.members
        assert group.committed == {tp(0): 1}, "the second record is not processed"


@pytest.mark.parametrize("commits", [True, False])
async def test_a_block_that_an_exception_ends_does_not_wait_for_silent_brokers(
    commits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "LAST_COMMIT_LIMIT_MS", 60_000)
    monkeypatch.setattr(committer, "QUICK_COMMIT_LIMIT_MS", 100)
    monkeypatch.setattr(groups_member, "LEAVE_LIMIT_S", 0.1)
    async with a_group(t=1) as group:
        with suppress(LookupError):
            async with member(group, topics=["t"], enable_auto_commit=commits) as consumer:
                await read_two(group, consumer)
                silence(group)
                consumer.commit_async()
                elapsed = Elapsed()
                raise LookupError
        assert 0.1 < elapsed.seconds < 5


async def test_the_end_of_a_block_waits_once_for_commits_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "LAST_COMMIT_LIMIT_MS", 400)
    async with a_group(t=1) as group:
        async with member(group, topics=["t"]) as consumer:
            await read_two(group, consumer)
            silence(group)
            consumer.commit_async()
            group.broker.faults[ApiKey.LEAVE_GROUP].clear()
            elapsed = Elapsed()
        assert 0.4 < elapsed.seconds < 1.1
