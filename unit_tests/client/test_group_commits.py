"""Tests of committed offsets: which offsets are stored, in which order, and the effect of a
refusal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.client.consumer import Consumer
from pybroker.client.errors import (
    ClientError,
    CommitFailed,
    DeadlinePassed,
    FencedInstance,
    NotAssigned,
    OffsetUnavailable,
    RebalanceInProgress,
    ResponseError,
)
from pybroker.client.group_values import OffsetAndMetadata
from pybroker.client.groups.offsets import Turnstile
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import HeartbeatRequest
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import LOSE_REQUEST
from unit_tests.client.fake_groups import FakeGroup
from unit_tests.client.group_readers import a_group, first, join, member, tp
from unit_tests.client.held_logs import batch, holding
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import PATIENCE_S

MANUAL: dict[str, Any] = {"enable_auto_commit": False}


async def a_member_with_records(group: FakeGroup, consumer: Consumer) -> None:
    """Let the consumer join, and read record `a` of the records `a`, `b` and `c`."""
    holding(group.broker.partition(), batch(b"a", b"b", b"c"))
    consumer.subscribe(["t"])
    assert await first(consumer) == b"a"


async def test_positions_are_committed_unless_offsets_are_given() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        await consumer.commit()
        await consumer.commit({tp(0): OffsetAndMetadata(7, "why", 3)})
        await consumer.commit({tp(0): 8})
        assert group.commits == [{tp(0): 1}, {tp(0): 7}, {tp(0): 8}]
        rows = [request.topics[0].partitions[0] for request in group.seen(OffsetCommitRequest)]
        assert [row.committed_metadata for row in rows] == ["", "why", ""]
        assert [row.committed_leader_epoch for row in rows] == [7, 3, -1]
        assert await consumer.committed([tp(0), tp(3)]) == {
            tp(0): OffsetAndMetadata(8),
            tp(3): None,
        }
        with pytest.raises(ValueError, match="expected 0 or more"):
            await consumer.commit({tp(0): -1})


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
async def test_a_commit_is_tried_again(code: ErrorCode) -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        group.will(ApiKey.OFFSET_COMMIT, code, code)
        group.broker.will(ApiKey.OFFSET_COMMIT, LOSE_REQUEST)
        await consumer.commit()
        assert group.commits == [{tp(0): 1}]


async def test_a_commit_ends_with_its_time_limit() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        group.will(ApiKey.OFFSET_COMMIT, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 1_000)
        with pytest.raises(
            DeadlinePassed, match=r"not committed within the time limit .*COORDINATOR_LOAD"
        ):
            await consumer.commit(timeout_ms=300)


async def test_a_commit_that_waits_for_an_earlier_one_ends_with_its_time_limit() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        group.will(ApiKey.OFFSET_COMMIT, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 100_000)
        older = asyncio.ensure_future(consumer.commit({tp(0): 1}))
        await idle()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(DeadlinePassed, match="earlier") as caught:
                await consumer.commit({tp(0): 2}, timeout_ms=50)
        assert caught.value.definite
        group.refusals.clear()
        await older
        assert group.commits == [{tp(0): 1}]


async def test_a_partition_missing_in_the_coordinators_answer_is_not_committed() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        group.broker.handlers |= {
            ApiKey.OFFSET_COMMIT: lambda _: OffsetCommitResponse(),
            ApiKey.OFFSET_FETCH: lambda _: OffsetFetchResponse(
                groups=[OffsetFetchResponseGroup(group_id="g")]
            ),
        }
        with pytest.raises(ResponseError, match="response has no result for"):
            await consumer.commit({tp(0): 1})
        with pytest.raises(ResponseError, match="response has no result for"):
            await consumer.committed([tp(0)])


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailed, "lower max.poll.records"),
        (ErrorCode.ILLEGAL_GENERATION, CommitFailed, "other members may own its"),
        (ErrorCode.REBALANCE_IN_PROGRESS, RebalanceInProgress, "call getmany"),
        (ErrorCode.FENCED_INSTANCE_ID, FencedInstance, "joined with group.instance.id"),
        (ErrorCode.OFFSET_METADATA_TOO_LARGE, ResponseError, "too large"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ResponseError, "Not authorized"),
    ],
)
async def test_a_refused_commit_raises_its_error(
    code: ErrorCode, kind: type[ClientError], words: str
) -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        group.will(ApiKey.OFFSET_COMMIT, code)
        with pytest.raises(kind, match=words) as caught:
            await consumer.commit()
        assert caught.value.retriable == (kind is RebalanceInProgress)
        if code == ErrorCode.FENCED_INSTANCE_ID:
            with pytest.raises(FencedInstance):
                await consumer.getmany()
            return
        if kind is not ResponseError:
            assert await first(consumer) == b"a", "it joined again, and began at what is committed"
        await consumer.commit()
        assert group.commits == [{tp(0): 1}]


async def test_a_member_that_is_out_commits_nothing() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(CommitFailed):
            await consumer.commit({tp(0): 1})
        assert not group.seen(OffsetCommitRequest)


async def test_an_older_commit_does_not_overtake_a_newer_one() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        outcomes: list[tuple[int, ClientError | None]] = []

        def note(
            offsets: dict[TopicPartition, OffsetAndMetadata], error: ClientError | None
        ) -> None:
            outcomes.append((offsets[tp(0)].offset, error))

        group.will(ApiKey.OFFSET_COMMIT, *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3)
        older = asyncio.ensure_future(consumer.commit({tp(0): 1}))
        await loop_turns(1)
        consumer.commit_async({tp(0): 2}, note)
        await consumer.commit({tp(0): 3})
        assert group.commits == [{tp(0): 1}, {tp(0): 2}, {tp(0): 3}]
        assert outcomes == [(2, None)]
        await older


async def test_a_cancelled_turn_does_not_change_the_order_of_the_others() -> None:
    turnstile = Turnstile()
    first_one, second, third = (turnstile.ticket() for _ in range(3))
    second.cancel()
    turnstile.leave(second)
    assert (first_one.done(), third.done()) == (True, False)
    turnstile.leave(first_one)
    assert third.done()


async def test_an_async_commit_is_not_tried_again_and_tells_how_it_went() -> None:
    async with a_group(t=1) as group, member(group, **MANUAL) as consumer:
        await a_member_with_records(group, consumer)
        told: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()

        async def note(_: object, error: ClientError | None) -> None:
            told.set_result(error)

        group.will(ApiKey.OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        consumer.commit_async(callback=note)
        error = await told
        assert error is not None
        assert error.retriable
        assert not group.commits


async def test_closing_waits_for_async_commits() -> None:
    async with a_group(t=1) as group:
        async with member(group, **MANUAL) as consumer:
            consumer.assign([tp(0)])
            consumer.commit_async({tp(0): 5})
        assert group.committed == {tp(0): 5}


async def test_a_record_is_committed_when_the_next_one_is_asked_for() -> None:
    async with a_group(t=1) as group, member(group, auto_commit_interval_ms=0) as consumer:
        await a_member_with_records(group, consumer)
        assert group.committed.get(tp(0), 0) == 0
        consumer.pause(tp(0))
        async with asyncio.timeout(PATIENCE_S):
            while group.committed != {tp(0): 1}:
                assert await consumer.getmany(timeout_ms=5) == {}


async def test_waiting_for_records_commits_those_before() -> None:
    async with a_group(t=1) as group, member(group, auto_commit_interval_ms=1) as consumer:
        await a_member_with_records(group, consumer)
        assert [await first(consumer), await first(consumer)] == [b"b", b"c"]
        waiting = asyncio.ensure_future(consumer.getone())
        await group.until(lambda: group.committed == {tp(0): 3})
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_late_answer_does_not_hold_up_the_next_commit() -> None:
    async with a_group(t=1) as group, member(group, auto_commit_interval_ms=1) as consumer:
        released = asyncio.Event()

        async def late(request: Message) -> Message:
            await released.wait()
            found = behaving(request)
            assert isinstance(found, Message)
            return found

        behaving = group.broker.handlers[ApiKey.OFFSET_COMMIT]
        group.broker.handlers[ApiKey.OFFSET_COMMIT] = late
        await a_member_with_records(group, consumer)
        assert [await first(consumer), await first(consumer)] == [b"b", b"c"]
        waiting = asyncio.ensure_future(consumer.getone())
        await group.until(lambda: bool(group.seen(OffsetCommitRequest)))
        beats = len(group.seen(HeartbeatRequest))
        await group.until(lambda: len(group.seen(HeartbeatRequest)) > beats + 2)
        released.set()
        await group.until(lambda: group.committed == {tp(0): 3})
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.parametrize("one_by_one", [True, False])
async def test_an_exception_leaves_records_in_hand_uncommitted(
    one_by_one: bool,
) -> None:
    async with a_group(t=1) as group:
        holding(group.broker.partition(), batch(b"a", b"b", b"c"))
        with pytest.raises(ZeroDivisionError):
            async with member(group) as consumer:
                consumer.subscribe(["t"])
                if one_by_one:
                    async for record in consumer:
                        1 // (record.value != b"b")
                while True:
                    for records in (await consumer.getmany(timeout_ms=20, max_records=1)).values():
                        1 // (records[0].value != b"b")
        assert group.committed == {tp(0): 1}


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_exception_does_not_take_back_a_commit_of_the_user(
    is_async: bool,
) -> None:
    async with a_group(t=1) as group:
        with pytest.raises(LookupError):
            async with member(group) as consumer:
                await a_member_with_records(group, consumer)
                if is_async:
                    consumer.commit_async()
                else:
                    await consumer.commit()
                raise LookupError("of the user's")
        assert group.commits == [{tp(0): 1}]


async def test_records_returned_again_after_a_commit_count_as_not_handled() -> None:
    """The position equals the committed one, but the consumer has returned the same records again
    after the commit."""
    async with a_group(t=1) as group:
        with pytest.raises(LookupError):
            async with member(group) as consumer:
                await a_member_with_records(group, consumer)
                await consumer.commit()
                consumer.seek(tp(0), 0)
                assert await first(consumer) == b"a"
                raise LookupError("of the user's")
        assert group.commits == [{tp(0): 1}, {tp(0): 0}]


async def test_automatic_commits_survive_refusals() -> None:
    async with a_group(t=1) as group, member(group, auto_commit_interval_ms=0) as consumer:
        await a_member_with_records(group, consumer)
        group.will(ApiKey.OFFSET_COMMIT, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT)
        assert await first(consumer) == b"b"
        async with asyncio.timeout(PATIENCE_S):
            while not group.commits:
                await consumer.getmany(timeout_ms=5, max_records=1)


async def test_a_partition_that_is_gone_holds_up_no_rebalance() -> None:
    """The offset of the deleted partition cannot be committed. The offsets of the other partitions
    are committed."""
    async with a_group(t=1) as group, member(group) as consumer:
        await a_member_with_records(group, consumer)
        del group.broker.topics["t"]
        group.will(ApiKey.OFFSET_COMMIT, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000)
        await consumer.unsubscribe()
        assert not group.commits


async def test_a_partition_that_the_coordinator_does_not_know_yet_is_committed_later() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        await a_member_with_records(group, consumer)
        group.will(ApiKey.OFFSET_COMMIT, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 3)
        await consumer.unsubscribe()
        assert group.committed == {tp(0): 1}


async def test_partitions_by_hand_keep_their_offsets_in_the_group() -> None:
    async with a_group(t=1) as group:
        holding(group.broker.partition(), batch(b"a", b"b", b"c"))
        group.committed[tp(0)] = 1
        async with member(group) as consumer:
            consumer.assign([tp(0)])
            assert await first(consumer) == b"b"
        assert group.committed == {tp(0): 2}
        (commit,) = group.seen(OffsetCommitRequest)
        assert (commit.generation_id, commit.member_id) == (-1, "")
        async with member(group) as inside, member(group, **MANUAL) as outside:
            inside.subscribe(["t"])
            await join(inside)
            with pytest.raises(CommitFailed, match="only to a group without members"):
                await outside.commit({tp(0): 0})


async def test_reset_none_says_that_nothing_is_committed() -> None:
    async with a_group(t=1) as group, member(group, auto_offset_reset="none") as consumer:
        consumer.assign([tp(0)])
        with pytest.raises(OffsetUnavailable, match="the group has committed nothing"):
            await first(consumer)
        consumer.seek(tp(0), 0)
        holding(group.broker.partition(), batch(b"a"))
        assert await first(consumer) == b"a"


async def test_read_committed_waits_for_offsets_in_open_transactions() -> None:
    async with a_group(t=1) as group:
        holding(group.broker.partition(), batch(b"a", b"b"))
        group.committed[tp(0)] = 1
        group.will(ApiKey.OFFSET_FETCH, *[ErrorCode.UNSTABLE_OFFSET_COMMIT] * 2)
        async with member(group, isolation_level="read_committed") as consumer:
            consumer.subscribe(["t"])
            assert await first(consumer) == b"b"
        assert all(request.require_stable for request in group.seen(OffsetFetchRequest))


async def test_reading_offsets_without_authorization_is_an_error() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        group.will(ApiKey.OFFSET_FETCH, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        consumer.assign([tp(0)])
        with pytest.raises(ResponseError, match="Not authorized for this group"):
            await first(consumer)


async def test_seeking_to_a_time_and_lag() -> None:
    async with a_group(t=2) as group, member(group) as consumer:
        holding(group.broker.partition(), batch(b"a", b"b", b"c"))
        holding(group.broker.partition("t", 1), batch(b"x"))
        consumer.assign([tp(0), tp(1)])
        assert consumer.lag(tp(0)) is None
        await consumer.seek_to_time(1_001)
        assert await first(consumer) == b"b"
        assert consumer.lag(tp(0)) == 1
        assert await consumer.position(tp(1)) == 1
        await consumer.seek_to_time(0, tp(0))
        assert await first(consumer) == b"a"
        assert consumer.lag(tp(0)) == 2
        with pytest.raises(NotAssigned):
            await consumer.seek_to_time(0, tp(7))
