"""Tests that requests of the admin client about groups go to the coordinator, and again after it
moved; requests that may have been carried out are repeated only if that is harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.group_offsets import CommittedOffset
from pybroker.client.admin.lag import PartitionLag
from pybroker.client.errors import (
    ClientError,
    Closed,
    ConnectionLost,
    ResponseError,
    UnsupportedByBroker,
)
from pybroker.clock import SystemClock
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.builder import BatchBuilder
from pybroker.wire.api import ApiKey
from pybroker.wire.consumer_protocol import (
    Assignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from pybroker.wire.messages.cluster import ApiVersionsResponse
from pybroker.wire.messages.fetch import FetchRequest
from pybroker.wire.messages.group_admin import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from pybroker.wire.messages.groups import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from pybroker.wire.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import (
    BEHAVE,
    LOSE_ANSWER,
    NEVER_ANSWER,
    NODE,
    FakeBroker,
    versions,
)

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def admin(broker: FakeBroker, **options: Any) -> Admin:
    return Admin(broker.address, retry_backoff_ms=1, retry_backoff_max_ms=5, **options)


def coordinates(
    broker: FakeBroker, *, first: Sequence[ErrorCode] = ()
) -> Callable[[Message], Message]:
    """Return the answer of a broker that coordinates all groups itself, after these errors."""
    errors = list(first)

    def answer(request: Message) -> Message:
        assert isinstance(request, FindCoordinatorRequest)
        code = errors.pop(0) if errors else ErrorCode.NONE
        if request.key:
            return FindCoordinatorResponse(
                error_code=code, node_id=NODE, host="127.0.0.1", port=broker.port
            )
        return FindCoordinatorResponse(
            coordinators=[
                Coordinator(
                    key=key, error_code=code, node_id=NODE, host="127.0.0.1", port=broker.port
                )
                for key in request.coordinator_keys
            ],
        )

    return answer


def in_turn(*answers: Message) -> Callable[[Message], Message]:
    rest = list(answers)
    return lambda _: rest.pop(0) if len(rest) > 1 else rest[0]


def limited(**highest: int) -> Message:
    """Return the API versions of a broker with lower maxima for some APIs."""
    offer = versions()
    assert isinstance(offer, ApiVersionsResponse)
    for row in offer.api_keys:
        row.max_version = highest.get(ApiKey(row.api_key).name.lower(), row.max_version)
    return offer


async def test_groups_are_listed_with_their_states() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.LIST_GROUPS] = in_turn(
            ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            ListGroupsResponse(
                groups=[
                    ListedGroup(group_id="b", protocol_type="consumer", group_state="Stable"),
                    ListedGroup(group_id="a", protocol_type="connect", group_state="Empty"),
                ]
            ),
        )
        found = (await target.list_groups(["Stable", "Empty"])).check().groups
        assert [(row.group_id, row.state, row.is_consumer) for row in found] == [
            ("a", "Empty", False),
            ("b", "Stable", True),
        ]
        asked = broker.requests(ListGroupsRequest)[-1]
        assert isinstance(asked, ListGroupsRequest)
        assert asked.states_filter == ["Stable", "Empty"]


async def test_an_old_broker_cannot_choose_by_state() -> None:
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: limited(list_groups=3)
        broker.handlers[ApiKey.LIST_GROUPS] = lambda _: ListGroupsResponse(
            groups=[ListedGroup(group_id="a", protocol_type="")]
        )
        async with admin(broker) as target:
            assert (await target.list_groups()).check().groups[0].state == ""
            refused = await target.list_groups(["Stable"])
            assert refused.groups == () and list(refused.errors) == [NODE]
            with pytest.raises(UnsupportedByBroker):
                refused.check()


@pytest.mark.parametrize("find_version", [3, 4])
async def test_a_group_is_looked_for_again_when_it_has_moved(find_version: int) -> None:
    member = DescribedGroupMember(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="/h",
        member_metadata=encode_subscription(Subscription(("a",))),
        member_assignment=encode_assignment(Assignment((A0,))),
    )
    good = DescribedGroup(
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=[member],
    )
    other = DescribedGroup(group_id="h", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    moved = DescribedGroup(group_id="g", error_code=ErrorCode.NOT_COORDINATOR)
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: limited(find_coordinator=find_version)
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(
            broker, first=[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
        )
        broker.handlers[ApiKey.DESCRIBE_GROUPS] = in_turn(
            DescribeGroupsResponse(groups=[moved, other]), DescribeGroupsResponse(groups=[good])
        )
        async with admin(broker) as target:
            described = await target.describe_groups(["h", "g"])
        assert list(described) == ["h", "g"]
        with pytest.raises(ResponseError, match="GROUP_AUTHORIZATION_FAILED"):
            described["h"].check()
        group = described["g"].check()
        assert (group.state, group.assignor, group.is_consumer) == ("Stable", "range", True)
        assert group.coordinator is not None and group.coordinator.port == broker.port
        assert group.members[0].partitions() == (A0,)
        assert group.members[0].subscription().topics == ("a",)
        asked = [
            request.groups
            for request in broker.requests(DescribeGroupsRequest)
            if isinstance(request, DescribeGroupsRequest)
        ]
        assert sorted(asked[0]) == ["g", "h"] and asked[1:] == [["g"]]


async def test_a_group_without_a_coordinator_has_an_error() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(
            broker, first=[ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1_000
        )
        found = await target.describe_groups(["g"], timeout_ms=300)
        error = found["g"].error
        assert isinstance(error, ResponseError)
        assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_last_answer_is_the_reason_if_the_deadline_cuts_a_request_short() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(
            broker, first=[ErrorCode.COORDINATOR_NOT_AVAILABLE]
        )
        broker.will(ApiKey.FIND_COORDINATOR, BEHAVE, NEVER_ANSWER)
        found = await target.describe_groups(["g"], timeout_ms=300)
        error = found["g"].error
        assert isinstance(error, ResponseError), error
        assert error.code == ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_deletion_without_answer_is_not_repeated() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.DELETE_GROUPS] = lambda _: DeleteGroupsResponse(
            results=[
                DeletableGroupResult(group_id="g"),
                DeletableGroupResult(group_id="h", error_code=ErrorCode.NON_EMPTY_GROUP),
            ]
        )
        results = await target.delete_groups(["g", "h"])
        assert results["g"] is None
        assert isinstance(results["h"], ResponseError)
        broker.will(ApiKey.DELETE_GROUPS, LOSE_ANSWER)
        assert isinstance((await target.delete_groups(["g"]))["g"], ConnectionLost)
        assert len(broker.requests(DeleteGroupsRequest)) == 2


async def test_static_members_are_taken_out() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.LEAVE_GROUP] = in_turn(
            LeaveGroupResponse(
                members=[
                    MemberResponse(group_instance_id="i"),
                    MemberResponse(group_instance_id="j", error_code=ErrorCode.UNKNOWN_MEMBER_ID),
                ]
            ),
            LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED),
        )
        results = await target.remove_members("g", ["i", "j", "k"])
        codes = [
            error.code if isinstance(error, ResponseError) else None for error in results.values()
        ]
        assert codes == [None, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_SERVER_ERROR]
        (asked,) = broker.requests(LeaveGroupRequest)
        assert isinstance(asked, LeaveGroupRequest)
        assert [(row.member_id, row.group_instance_id) for row in asked.members] == [
            ("", "i"),
            ("", "j"),
            ("", "k"),
        ]
        with pytest.raises(ResponseError, match="GROUP_AUTHORIZATION_FAILED"):
            await target.remove_members("g", ["i"])


def stored(request: Message) -> Message:
    """a-0 is committed at 5, a-1 not at all; group h is refused."""
    assert isinstance(request, OffsetFetchRequest)
    rows = [(0, 5, "note"), (1, -1, "")]
    if not request.groups:
        parts = [
            OffsetFetchResponsePartition(partition_index=p, committed_offset=o, metadata=m)
            for p, o, m in rows
        ]
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED if request.group_id == "h" else ErrorCode.NONE
        topics = [OffsetFetchResponseTopic(name="a", partitions=parts)]
        return OffsetFetchResponse(error_code=code, topics=[] if code else topics)
    several = [
        OffsetFetchResponsePartitions(partition_index=p, committed_offset=o, metadata=m)
        for p, o, m in rows
    ]
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            )
            if group.group_id == "h"
            else OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=[OffsetFetchResponseTopics(name="a", partitions=several)],
            )
            for group in request.groups
        ]
    )


@pytest.mark.parametrize(("version", "requests"), [(8, 1), (7, 2), (2, 2)])
async def test_committed_offsets_of_several_groups(version: int, requests: int) -> None:
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: limited(offset_fetch=version)
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.OFFSET_FETCH] = stored
        async with admin(broker) as target:
            found = await target.committed_offsets({"g": None, "h": [A0, A1]})
        assert found["g"].check().offsets == {A0: CommittedOffset(5, -1, "note")}
        assert isinstance(found["h"].error, ResponseError)
        assert len(broker.requests(OffsetFetchRequest)) == requests


async def test_an_old_broker_has_no_stable_offsets() -> None:
    async with FakeBroker() as broker:
        broker.handlers[ApiKey.API_VERSIONS] = lambda _: limited(offset_fetch=6)
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        async with admin(broker) as target:
            found = await target.committed_offsets({"g": None}, require_stable=True)
        assert isinstance(found["g"].error, UnsupportedByBroker)


def commit_answer(*codes: ErrorCode) -> Message:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name="a",
                partitions=[
                    OffsetCommitResponsePartition(partition_index=number, error_code=code)
                    for number, code in enumerate(codes)
                ],
            )
        ]
    )


async def test_offsets_are_committed_from_outside() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.OFFSET_COMMIT] = in_turn(
            commit_answer(ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
            commit_answer(ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        )
        results = await target.alter_offsets("g", {A0: CommittedOffset(3), A1: CommittedOffset(4)})
        assert results[A0] is None and isinstance(results[A1], ResponseError)
        requests = broker.requests(OffsetCommitRequest)
        assert len(requests) == 2
        asked = requests[-1]
        assert isinstance(asked, OffsetCommitRequest)
        assert (asked.generation_id, asked.member_id) == (-1, "")
        assert [row.committed_offset for row in asked.topics[0].partitions] == [3, 4]


async def test_offsets_are_forgotten() -> None:
    async with FakeBroker() as broker, admin(broker) as target:
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        parts = [
            OffsetDeleteResponsePartition(partition_index=0),
            OffsetDeleteResponsePartition(
                partition_index=1, error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            ),
        ]
        broker.handlers[ApiKey.OFFSET_DELETE] = in_turn(
            OffsetDeleteResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            OffsetDeleteResponse(topics=[OffsetDeleteResponseTopic(name="a", partitions=parts)]),
            OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND),
        )
        results = await target.delete_offsets("g", [A0, A1])
        assert results[A0] is None and isinstance(results[A1], ResponseError)
        with pytest.raises(ResponseError, match="GROUP_ID_NOT_FOUND"):
            await target.delete_offsets("g", [A0])


async def test_a_closed_client_sends_no_request_about_groups() -> None:
    async with FakeBroker() as broker:
        target = admin(broker)
        async with target:
            pass
        for call in (
            target.describe_groups(["g"]),
            target.delete_groups(["g"]),
            target.committed_offsets({"g": None}),
            target.alter_offsets("g", {}),
            target.delete_offsets("g", []),
            target.remove_members("g", []),
            target.partition_lag({}),
        ):
            with pytest.raises(Closed):
                await call


class StandingClock(SystemClock):
    def wall_ms(self) -> int:
        return 50_000


async def test_the_lag_of_a_group() -> None:
    """Committed at 5; eight records in two batches, one a second from 30 s on, read at 50 s."""
    async with FakeBroker({"a": 2}) as broker, admin(broker, clock=StandingClock()) as target:
        for first in (0, 4):
            builder = BatchBuilder()
            for number in range(first, first + 4):
                builder.append(30_000 + 1_000 * number, None, b"v")
            broker.partition("a", 0).append(builder.build())
        sizes = [DescribeLogDirsPartition(partition_index=0, partition_size=800)]
        broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: DescribeLogDirsResponse(
            results=[
                DescribeLogDirsResult(topics=[DescribeLogDirsTopic(name="a", partitions=sizes)])
            ]
        )
        broker.handlers[ApiKey.FIND_COORDINATOR] = coordinates(broker)
        broker.handlers[ApiKey.OFFSET_FETCH] = stored
        found = await target.group_lag(["g", "h"])
        assert isinstance(found["h"].error, ClientError)
        assert found["g"].check().partitions == {
            A0: PartitionLag(5, 0, 8, 8, records=3, stable_records=3, bytes=300, seconds=15.0)
        }
        kinds = [type(request).__name__ for request in broker.seen]
        assert kinds.index("OffsetFetchRequest") < kinds.index("ListOffsetsRequest")


async def test_lag_where_nothing_is_left_or_nothing_is_known() -> None:
    async with FakeBroker({"a": 2}) as broker, admin(broker) as target:
        builder = BatchBuilder()
        builder.append(-1, None, b"v")
        broker.partition("a", 1).append(builder.build())
        broker.handlers[ApiKey.DESCRIBE_LOG_DIRS] = lambda _: DescribeLogDirsResponse()
        nosuch = TopicPartition("b", 0)
        found = await target.partition_lag({A0: 7, A1: 0, nosuch: 1}, timeout_ms=500)
        assert found[A0] == PartitionLag(7, 0, 0, 0, 0, 0, None, 0.0)
        assert found[A1] == PartitionLag(0, 0, 1, 1, 1, 1, None, None)
        assert isinstance(found[nosuch].error, ResponseError)
        assert (found[nosuch].committed, found[nosuch].records) == (1, None)
        before = len(broker.requests(FetchRequest))
        cheap = await target.partition_lag({A1: 0}, details=False)
        assert (cheap[A1].records, cheap[A1].bytes, cheap[A1].seconds) == (1, None, None)
        assert len(broker.requests(FetchRequest)) == before
