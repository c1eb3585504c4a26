"""Tests of consumers in a group: joining, staying and leaving, and the reactions to the
coordinator's answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid

import pytest

from pybroker.client.consumer import Consumer
from pybroker.client.errors import (
    CommitFailed,
    FencedInstance,
    InvalidSessionTimeout,
    JoinRefused,
    ResponseError,
    SubscriptionConflict,
)
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.consumer_protocol import Subscription, encode_subscription
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponseMember,
    LeaveGroupRequest,
)
from pybroker.wire.messages.metadata import MetadataRequest
from unit_tests.client.fake_broker import LOSE_REQUEST, FakeBroker
from unit_tests.client.fake_groups import FakeGroup
from unit_tests.client.group_readers import QUICKLY, Reader, a_group, first, join, member, tp
from unit_tests.client.held_logs import batch, holding
from unit_tests.idle_loop import loop_turns


async def test_a_member_starts_where_the_group_is_commits_at_the_end_and_leaves() -> None:
    async with a_group(t=1) as group:
        holding(group.broker.partition(), batch(b"a", b"b", b"c"))
        group.committed[tp(0)] = 1
        async with member(group) as consumer:
            consumer.subscribe(["t"])
            assert await first(consumer) == b"b"
            assert consumer.subscription() == {"t"}
        assert group.committed == {tp(0): 2}
        assert not group.members
        ids = [request.member_id for request in group.seen(JoinGroupRequest)]
        assert ids == ["", "m1"], "the second request carries the id that the first was given"


async def test_members_share_the_partitions_and_take_over_those_of_a_leaving_one() -> None:
    async with a_group() as group, Reader(group) as one:
        await one.until(0, 1, 2, 3)
        async with Reader(group) as two:
            await one.until(0, 1)
            await two.until(2, 3)
        await one.until(0, 1, 2, 3)
        assert one.calls == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", [0, 1, 2, 3]),
            ("assigned", [0, 1]),
            ("revoked", [0, 1]),
            ("assigned", [0, 1, 2, 3]),
        ]
        assert two.calls == [("assigned", [2, 3]), ("revoked", [2, 3])]


async def test_cooperative_members_keep_partitions_that_do_not_move() -> None:
    options = {"partition_assignment_strategy": "cooperative-sticky"}
    async with a_group() as group, Reader(group, **options) as one:
        await one.until(0, 1, 2, 3)
        one.consumer.pause(tp(0), tp(3))
        async with Reader(group, **options) as two:
            await two.until(2, 3)
            await one.until(0, 1)
            assert one.consumer.paused() == {tp(0)}
        await one.until(0, 1, 2, 3)
        assert ("revoked", [2, 3]) in one.calls
        assert not any(0 in found for name, found in one.calls[1:]), "0 never moved"
        owned = [told.owned_partitions for told in group.subscriptions()]
        assert (tp(0), tp(1)) in owned, "the second join comes after giving back"


async def test_more_members_than_partitions_stand_by() -> None:
    async with a_group(t=1) as group, Reader(group) as one:
        await one.until(0)
        async with Reader(group) as two:
            await two.until_called(("assigned", []))
            group.expel("m1")
            await two.until(0)
            await one.until_called(
                ("assigned", [0]),
                ("revoked", [0]),
                ("assigned", [0]),
                ("lost", [0]),
                ("assigned", []),
            )


async def test_two_groups_get_everything_each() -> None:
    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"a"))
        for group_id in ("g", "h"):
            FakeGroup(broker).attach()
            async with Consumer(broker.address, **{**QUICKLY, "group_id": group_id}) as consumer:
                consumer.subscribe(["t"])
                assert await first(consumer) == b"a"


async def test_heartbeats_go_on_while_a_handler_is_slow() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        holding(group.broker.partition(), batch(b"a"))
        consumer.subscribe(["t"])
        assert await first(consumer) == b"a"
        count = len(group.seen(HeartbeatRequest))
        await group.until(lambda: len(group.seen(HeartbeatRequest)) >= count + 5)


async def test_a_consumer_that_does_not_read_leaves_and_comes_back() -> None:
    async with a_group(t=1) as group, member(group, max_poll_interval_ms=60) as consumer:
        holding(group.broker.partition(), batch(b"a"))
        lost: list[TopicPartition] = []
        consumer.subscribe(["t"], on_lost=lost.extend)
        assert await first(consumer) == b"a"
        await group.until(lambda: bool(group.seen(LeaveGroupRequest)))
        with pytest.raises(CommitFailed, match=r"max\.poll\.interval\.ms"):
            await consumer.commit()
        assert lost == []
        assert await first(consumer) == b"a", "it was not committed, so it comes again"
        assert lost == [tp(0)]


async def test_waiting_for_records_counts_as_reading() -> None:
    async with a_group(t=1) as group, member(group, max_poll_interval_ms=50) as consumer:
        consumer.subscribe(["t"])
        waiting = asyncio.ensure_future(first(consumer))
        await group.until(lambda: len(group.seen(HeartbeatRequest)) >= 20)
        holding(group.broker.partition(), batch(b"late"))
        assert await waiting == b"late"
        assert not group.seen(LeaveGroupRequest)


@pytest.mark.parametrize(
    ("code", "member_id"),
    [(ErrorCode.UNKNOWN_MEMBER_ID, ""), (ErrorCode.ILLEGAL_GENERATION, "m1")],
)
async def test_a_member_that_is_not_counted_in_any_more_joins_anew(
    code: ErrorCode, member_id: str
) -> None:
    async with a_group(t=1) as group, Reader(group) as one:
        await one.until(0)
        joins = len(group.seen(JoinGroupRequest))
        group.will(ApiKey.HEARTBEAT, code)
        await one.until_called(("assigned", [0]), ("lost", [0]), ("assigned", [0]))
        assert group.seen(JoinGroupRequest)[joins].member_id == member_id


@pytest.mark.parametrize(
    "key", [ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_FETCH]
)
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ],
)
async def test_a_temporary_refusal_is_retried(key: ApiKey, code: ErrorCode) -> None:
    async with a_group(t=1) as group:
        group.will(key, code, code)
        async with Reader(group) as one:
            holding(group.broker.partition(), batch(b"a"))
            await one.until_read(1)
        assert not group.refusals[key]


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (ApiKey.JOIN_GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
        (ApiKey.JOIN_GROUP, ErrorCode.REBALANCE_IN_PROGRESS),
        (ApiKey.SYNC_GROUP, ErrorCode.REBALANCE_IN_PROGRESS),
        (ApiKey.SYNC_GROUP, ErrorCode.UNKNOWN_MEMBER_ID),
        (ApiKey.SYNC_GROUP, ErrorCode.ILLEGAL_GENERATION),
    ],
)
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_a_member_survives_any_failure_while_it_joins(
    key: ApiKey, code: ErrorCode, strategy: str
) -> None:
    """Failures are injected into the first join and into the second, at which the member has
    partitions to lose."""
    async with a_group(t=1) as group, Reader(group, partition_assignment_strategy=strategy) as one:
        group.will(key, code)
        await one.until(0)
        group.will(key, code)
        group.will(ApiKey.HEARTBEAT, ErrorCode.REBALANCE_IN_PROGRESS)
        await group.until(lambda: not group.refusals[key] and not group.refusals[ApiKey.HEARTBEAT])
        await one.until(0)
        holding(group.broker.partition(), batch(b"a"))
        await one.until_read(1)


async def test_a_coordinator_that_moves_is_found_again() -> None:
    async with a_group(t=1) as group, Reader(group) as one:
        await one.until(0)
        asked = len(group.seen(FindCoordinatorRequest))
        group.will(ApiKey.HEARTBEAT, ErrorCode.NOT_COORDINATOR)
        await group.until(lambda: len(group.seen(FindCoordinatorRequest)) > asked)
        beats = len(group.seen(HeartbeatRequest))
        await group.until(lambda: len(group.seen(HeartbeatRequest)) > beats + 2)
        assert one.calls == [("assigned", [0])], "the member stays in its generation"


async def test_a_lost_coordinator_is_not_asked_for_its_successor() -> None:
    """An isolated coordinator would name itself again and again."""
    async with a_group(t=1) as group, FakeBroker({"t": 1}) as other:
        other.handlers[ApiKey.FIND_COORDINATOR] = group.broker.handlers[ApiKey.FIND_COORDINATOR]
        both = f"{group.broker.address},{other.address}"
        async with Consumer(both, group_id="g", retry_backoff_ms=1) as consumer:
            await consumer.committed([TopicPartition("t", 0)])
            assert not other.requests(FindCoordinatorRequest)
            group.will(ApiKey.OFFSET_FETCH, ErrorCode.NOT_COORDINATOR)
            await consumer.committed([TopicPartition("t", 0)])
            assert len(group.seen(FindCoordinatorRequest)) == 1
            assert len(other.requests(FindCoordinatorRequest)) == 1


async def test_a_broken_connection_is_no_reason_to_rebalance() -> None:
    async with a_group(t=1) as group, Reader(group) as one:
        await one.until(0)
        group.broker.will(ApiKey.HEARTBEAT, LOSE_REQUEST)
        group.broker.drop_connections()
        beats = len(group.seen(HeartbeatRequest))
        await group.until(lambda: len(group.seen(HeartbeatRequest)) > beats + 3)
        assert one.calls == [("assigned", [0])]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (ErrorCode.FENCED_INSTANCE_ID, FencedInstance, "group.instance.id"),
        (ErrorCode.INVALID_SESSION_TIMEOUT, InvalidSessionTimeout, "group.min.session.timeout.ms"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, JoinRefused, "partition.assignment.strategy"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, JoinRefused, "as many members"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ResponseError, "Not authorized"),
    ],
)
async def test_a_final_error_is_raised_again_and_again(
    code: ErrorCode, kind: type[Exception], words: str
) -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        group.will(ApiKey.JOIN_GROUP, code)
        consumer.subscribe(["t"])
        for _ in range(2):
            with pytest.raises(kind, match=words):
                await join(consumer)
        await consumer.unsubscribe()
        consumer.subscribe(["t"])
        await join(consumer)


async def test_a_fenced_static_member_stops() -> None:
    async with a_group(t=1) as group, member(group, group_instance_id="i") as consumer:
        consumer.subscribe(["t"])
        await join(consumer)
        group.will(ApiKey.HEARTBEAT, ErrorCode.FENCED_INSTANCE_ID)
        with pytest.raises(FencedInstance, match=r"joined with group\.instance\.id i"):
            while True:
                await consumer.getmany(timeout_ms=20)


async def test_a_static_member_does_not_leave() -> None:
    async with a_group(t=1) as group:
        for _ in range(2):
            async with member(group, group_instance_id="i") as consumer:
                consumer.subscribe(["t"])
                await join(consumer)
        assert list(group.members) == ["m1"]
        assert not group.seen(LeaveGroupRequest)
        beats = group.seen(HeartbeatRequest)
        assert {request.group_instance_id for request in beats} <= {"i"}


async def test_a_pattern_follows_the_topics_that_there_are() -> None:
    async with FakeBroker({"a-1": 1, "b": 1, "__a": 1}) as broker:
        group = FakeGroup(broker).attach()
        async with Reader(group, pattern="a.*|__a", metadata_max_age_ms=30) as one:
            await one.until(0)
            assert one.consumer.subscription() == {"a-1"}
            broker.topics["a-2"] = 2
            await one.until(0, 0, 1)
            del broker.topics["a-1"]
            await one.until(0, 1)
            assert one.consumer.subscription() == {"a-2"}


async def test_new_partitions_make_the_leader_divide_anew() -> None:
    async with a_group(t=1) as group, Reader(group, metadata_max_age_ms=30) as one:
        await one.until(0)
        group.broker.topics["t"] = 3
        await one.until(0, 1, 2)


async def test_a_broker_that_does_not_know_new_partitions_causes_no_rebalance() -> None:
    """Otherwise its outdated answer would hide the new partitions from the group until the next
    refresh."""
    async with a_group(t=3) as group:
        group.broker.topic_ids["t"] = uuid.UUID(int=1)
        async with Reader(group, metadata_max_age_ms=1) as one:
            await one.until(0, 1, 2)
            group.broker.topics["t"] = 1
            asked = len(group.seen(MetadataRequest))
            await group.until(lambda: len(group.seen(MetadataRequest)) > asked + 3)
            holding(group.broker.partition(number=2), batch(b"a"))
            await one.until_read(1)
            assert one.calls == [("assigned", [0, 1, 2])]


@pytest.mark.parametrize("pattern", [None, "t"])
async def test_brokers_that_know_no_topics_for_a_moment_cause_no_rebalance(
    pattern: str | None,
) -> None:
    async with a_group(t=1) as group:
        options = {"metadata_max_age_ms": 1, "retry_backoff_max_ms": 1_000}
        async with Reader(group, pattern=pattern, **options) as one:
            await one.until(0)
            topics = dict(group.broker.topics)
            group.broker.topics.clear()
            asked = len(group.seen(MetadataRequest))
            await group.until(lambda: len(group.seen(MetadataRequest)) > asked + 3)
            group.broker.topics |= topics
            holding(group.broker.partition(), batch(b"a"))
            await one.until_read(1)
            assert one.calls == [("assigned", [0])]


async def test_partitions_of_a_vanished_owner_are_assigned_again() -> None:
    """An owner vanishes, for example, if a static member dies before it rejoins, and its next
    process replaces it."""
    async with a_group() as group:
        told = Subscription(("t",), owned_partitions=tuple(map(tp, range(4))), generation_id=1)
        group.phantoms.append(
            JoinGroupResponseMember(member_id="gone", metadata=encode_subscription(told))
        )
        async with Reader(
            group, partition_assignment_strategy="cooperative-sticky", session_timeout_ms=50
        ) as one:
            await one.until_called(("assigned", []))
            group.phantoms.clear()
            await one.until(0, 1, 2, 3)


async def test_a_topic_that_comes_later_is_read_then() -> None:
    async with FakeBroker({}) as broker:
        group = FakeGroup(broker).attach()
        async with Reader(group, "t") as one:
            await one.until_called(("assigned", []))
            broker.topics["t"] = 1
            await one.until(0)


async def test_a_topic_that_was_not_there_is_waited_for_again_after_unsubscribing() -> None:
    async with FakeBroker({}) as broker:
        group = FakeGroup(broker).attach()
        async with member(group) as consumer:
            for _ in range(2):
                consumer.subscribe(["t"])
                await consumer.getmany(timeout_ms=20)
                await consumer.unsubscribe()
            consumer.subscribe(["t"])
            await consumer.getmany(timeout_ms=20)
            broker.topics["t"] = 1
            await join(consumer)


async def test_concurrent_closes_wait_for_the_last_commit() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        holding(group.broker.partition(), batch(b"a"))

        async def on_revoked(_: list[TopicPartition]) -> None:
            await consumer.close()

        consumer.subscribe(["t"], on_revoked=on_revoked)
        assert await first(consumer) == b"a"
        await asyncio.gather(consumer.close(), consumer.close())
        assert group.committed == {tp(0): 1}
        assert not group.members


async def test_another_subscription_replaces_the_first() -> None:
    async with a_group(t=1, u=2) as group, Reader(group) as one:
        await one.until(0)
        one.consumer.subscribe(["u"])
        await one.until(0, 1)
        assert one.consumer.subscription() == {"u"}


async def test_unsubscribing_gives_back_commits_and_leaves() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        holding(group.broker.partition(), batch(b"a"))
        revoked: list[TopicPartition] = []

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            revoked.extend(partitions)

        consumer.subscribe(["t"], on_revoked=on_revoked)
        assert await first(consumer) == b"a"
        await consumer.unsubscribe()
        assert (revoked, consumer.assignment(), consumer.subscription()) == (
            [tp(0)],
            frozenset(),
            frozenset(),
        )
        assert group.committed == {tp(0): 1}
        assert not group.members
        consumer.assign([tp(0)])
        holding(group.broker.partition(), batch(b"b"))
        assert await first(consumer) == b"b"


async def test_a_call_that_is_given_up_leaves_the_group_whole() -> None:
    """A reading task is cancelled at every possible moment."""
    async with a_group(t=1) as group, member(group) as consumer:
        holding(group.broker.partition(), batch(b"a"))
        consumer.subscribe(["t"])
        found = None
        for turns in range(200):
            reading = asyncio.ensure_future(consumer.getone())
            await loop_turns(turns)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                found = await reading
                break
        if found is None:
            assert await first(consumer) == b"a"
        assert len(group.seen(JoinGroupRequest)) == 2


async def test_an_unreadable_assignment_is_refused() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        group.assignment_override = b"\x00\x01\xff"
        consumer.subscribe(["t"])
        with pytest.raises(JoinRefused, match="cannot be decoded"):
            await join(consumer)


async def test_topics_partitions_and_groups_exclude_each_other() -> None:
    async with a_group(t=1) as group, member(group) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(SubscriptionConflict, match="subscribed to topics"):
            consumer.assign([tp(0)])
        await consumer.unsubscribe()
        consumer.assign([tp(0)])
        with pytest.raises(SubscriptionConflict, match=r"assigned by assign\(\)"):
            consumer.subscribe(pattern=re.compile("t"))
        for wrong in ((), ["t"]):
            with pytest.raises(ValueError, match="expected one of them: pass topics or pattern"):
                consumer.subscribe(wrong, pattern="t" if wrong else None)
        with pytest.raises(ValueError, match="must be a list of names"):
            consumer.subscribe("t")
        async with Consumer(group.broker.address) as alone:
            with pytest.raises(SubscriptionConflict, match=r"set the option group\.id"):
                alone.subscribe(["t"])
