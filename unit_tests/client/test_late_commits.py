"""Tests of commits that still wait for earlier commits when their member leaves its generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pybroker.client.consumer import Consumer
from pybroker.client.errors import ClientError, CommitFailed, RebalanceInProgress
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import HeartbeatRequest, LeaveGroupRequest
from pybroker.wire.messages.offsets import OffsetCommitRequest
from pybroker.wire.schema import Message
from unit_tests.client.fake_groups import FakeGroup
from unit_tests.client.group_readers import Reader, a_group, join, member, tp
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import PATIENCE_S


@dataclass(slots=True)
class Stage:
    """A member in its first generation with two commits. The coordinator answers the first commit
    only when `go_on` is set, and the second commit is sent after that answer."""

    group: FakeGroup
    consumer: Consumer
    go_on: asyncio.Event
    errors: asyncio.Queue[ClientError | None]

    async def outcomes(self) -> list[ClientError | None]:
        """Return the outcomes of both commits."""
        async with asyncio.timeout(PATIENCE_S):
            return [await self.errors.get(), await self.errors.get()]


@asynccontextmanager
async def a_stage() -> AsyncIterator[Stage]:
    async with a_group(t=2) as group, member(group, enable_auto_commit=False) as consumer:
        stage = Stage(group, consumer, asyncio.Event(), asyncio.Queue())
        answer = group._commit

        async def late(request: Message) -> Message:
            await stage.go_on.wait()
            return answer(request)

        group.broker.handlers[ApiKey.OFFSET_COMMIT] = late
        consumer.subscribe(["t"])
        await join(consumer)
        for offset in (1, 2):
            consumer.commit_async({tp(0): offset}, lambda _, error: stage.errors.put_nowait(error))
        await group.until(lambda: bool(group.seen(OffsetCommitRequest)))
        yield stage
        stage.go_on.set()


async def test_a_member_leaves_when_its_commits_have_arrived() -> None:
    async with a_stage() as stage:
        leaving = asyncio.create_task(stage.consumer.unsubscribe())
        await idle()
        stage.go_on.set()
        await leaving
        assert stage.group.commits == [{tp(0): 1}, {tp(0): 2}]
        kinds = [type(request) for request in stage.group.broker.seen]
        asked = [kind for kind in kinds if kind in (OffsetCommitRequest, LeaveGroupRequest)]
        assert asked == [OffsetCommitRequest, OffsetCommitRequest, LeaveGroupRequest]


async def test_a_commit_of_a_member_outside_the_generation_is_not_sent() -> None:
    """A group without members accepts a commit of a consumer that is not a member."""
    async with a_stage() as stage:
        (member_id,) = stage.group.members
        stage.group.expel(member_id)
        leaving = asyncio.create_task(stage.consumer.unsubscribe())
        await idle()
        stage.go_on.set()
        await leaving
        assert all(isinstance(error, CommitFailed) for error in await stage.outcomes())
        assert stage.group.commits == []


async def test_a_commit_of_one_generation_is_not_sent_in_the_next() -> None:
    """By then another member may own the partition, and may have committed a later offset."""
    async with a_stage() as stage:
        async with Reader(stage.group, enable_auto_commit=False) as other:
            async with asyncio.timeout(PATIENCE_S):
                while len(stage.consumer.assignment()) != 1 or not other.numbers:
                    await stage.consumer.getmany(timeout_ms=20)
            stage.go_on.set()
            _, error = await stage.outcomes()
        assert isinstance(error, RebalanceInProgress)
        assert stage.group.commits == []


async def test_a_call_that_is_given_up_while_partitions_move_gives_them_back() -> None:
    """Otherwise no member would read these partitions: their owner has released them, and no member
    has been assigned them."""
    options: dict[str, Any] = {
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": 60_000,
    }
    async with a_group(t=2) as group, Reader(group, **options) as one:
        await one.until(0, 1)
        for number in (0, 1):
            await one.consumer.position(tp(number))
        answer, is_moving, go_on = group._commit, asyncio.Event(), asyncio.Event()

        async def late(request: Message) -> Message:
            assert isinstance(request, OffsetCommitRequest)
            if request.generation_id > 1:
                is_moving.set()
                await go_on.wait()
            return answer(request)

        group.broker.handlers[ApiKey.OFFSET_COMMIT] = late
        async with Reader(group, **options) as two:
            async with asyncio.timeout(PATIENCE_S):
                await is_moving.wait()
            await one.give_up()
            go_on.set()
            await two.until(1)
            assert ("revoked", [1]) in one.calls


async def test_a_cancelled_unsubscribe_leaves_a_member_that_can_join_again() -> None:
    """The call is cancelled at every possible moment. Afterwards the member must send
    heartbeats."""
    async with a_group(t=1) as group, member(group, enable_auto_commit=False) as consumer:
        for turns in range(1, 7):
            consumer.subscribe(["t"])
            await join(consumer)
            leaving = asyncio.ensure_future(consumer.unsubscribe())
            await loop_turns(turns)
            leaving.cancel()
            await asyncio.wait([leaving])
            group.members.clear()  # it may not have said goodbye
            consumer.subscribe(["t"])
            await join(consumer)
            group.broker.seen.clear()
            await group.until(lambda: len(group.seen(HeartbeatRequest)) > 1)
            await consumer.unsubscribe()
