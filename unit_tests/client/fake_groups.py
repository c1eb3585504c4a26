"""A fake coordinator for `FakeBroker` with one group, which refuses requests on demand.

It follows the rules that a member can observe. A rebalance begins when a member joins or leaves. It
is complete when every member has joined again. Requests of an older generation are refused.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.consumer_protocol import Subscription, decode_subscription
from pybroker.wire.messages.groups import (
    Coordinator,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import NODE, FakeBroker
from unit_tests.patience import PATIENCE_S


@dataclass(slots=True)
class _Member:
    request: JoinGroupRequest
    joined: asyncio.Future[JoinGroupResponse] | None = None
    synced: asyncio.Future[SyncGroupResponse] | None = None


@dataclass(slots=True)
class FakeGroup:
    """A coordinator of one group; `attach` adds it to a broker. A test queues refusals for each
    API. Each request uses up one of them."""

    broker: FakeBroker
    refusals: dict[ApiKey, deque[ErrorCode]] = field(default_factory=lambda: defaultdict(deque))
    members: dict[str, _Member] = field(default_factory=dict)
    generation: int = 0
    rebalancing: bool = False
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    commits: list[dict[TopicPartition, int]] = field(default_factory=list)
    """The committed offsets, in order."""
    assignment_override: bytes | None = None
    phantoms: list[JoinGroupResponseMember] = field(default_factory=list)
    """Members that only the leader sees; they never send a request."""
    _ids: int = 0
    _given: dict[str, bytes] = field(default_factory=dict)

    def attach(self) -> FakeGroup:
        self.broker.handlers |= {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._fetch,
        }
        return self

    def will(self, key: ApiKey, *codes: ErrorCode) -> None:
        self.refusals[key].extend(codes)

    def expel(self, member_id: str) -> None:
        """Remove a member as if its session had expired."""
        del self.members[member_id]
        self._begin()

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions in all JoinGroup requests with a member id, in order of
        arrival."""
        return [
            decode_subscription(request.protocols[0].metadata)
            for request in self.broker.seen
            if isinstance(request, JoinGroupRequest) and request.member_id
        ]

    def seen(self, kind: type[Message]) -> list[Any]:
        return self.broker.requests(kind)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.broker.until(condition)

    # Answers

    def _refusal(self, key: ApiKey, member_id: str = "") -> ErrorCode:
        queue = self.refusals[key]
        code = queue.popleft() if queue else ErrorCode.NONE
        if code == ErrorCode.UNKNOWN_MEMBER_ID and member_id in self.members:
            self.expel(member_id)
        return code

    def _find(self, request: Message) -> Message:
        code = self._refusal(ApiKey.FIND_COORDINATOR)
        row = Coordinator(
            key="g", node_id=NODE, host="127.0.0.1", port=self.broker.port, error_code=code
        )
        return FindCoordinatorResponse(coordinators=[row])

    async def _join(self, request: Message) -> Message:
        assert isinstance(request, JoinGroupRequest)
        code = self._refusal(ApiKey.JOIN_GROUP, request.member_id)
        if code:
            return JoinGroupResponse(error_code=code, protocol_name="")
        member_id = request.member_id or self._known_instance(request.group_instance_id)
        if not member_id:
            self._ids += 1
            member_id = f"m{self._ids}"
            if request.group_instance_id is None:
                return JoinGroupResponse(
                    error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id, protocol_name=""
                )
        member = self.members.setdefault(member_id, _Member(request))
        member.request = request
        joined: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        member.joined = joined
        self._begin()
        return await joined

    def _known_instance(self, instance_id: str | None) -> str:
        for member_id, member in self.members.items():
            if instance_id is not None and member.request.group_instance_id == instance_id:
                return member_id
        return ""

    def _begin(self) -> None:
        """Begin a rebalance. The rebalance ends at once if all members have joined already."""
        self.rebalancing = True
        for member in self.members.values():
            if member.synced is not None and not member.synced.done():
                member.synced.set_result(
                    SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
                )
        if any(member.joined is None for member in self.members.values()) or not self.members:
            return
        self.rebalancing = False
        self.generation += 1
        self._given = {}
        leader, first = next(iter(self.members.items()))
        common = [
            row.name
            for row in first.request.protocols
            if all(
                row.name in {other.name for other in member.request.protocols}
                for member in self.members.values()
            )
        ]
        for member_id, member in self.members.items():
            assert member.joined is not None
            member.joined.set_result(
                JoinGroupResponse(
                    generation_id=self.generation,
                    protocol_type="consumer",
                    protocol_name=common[0],
                    leader=leader,
                    member_id=member_id,
                    members=self._told(common[0]) if member_id == leader else [],
                )
            )
            member.joined = None
            member.synced = asyncio.get_running_loop().create_future()

    def _told(self, protocol: str) -> list[JoinGroupResponseMember]:
        return [
            JoinGroupResponseMember(
                member_id=member_id,
                group_instance_id=member.request.group_instance_id,
                metadata=next(r.metadata for r in member.request.protocols if r.name == protocol),
            )
            for member_id, member in self.members.items()
        ] + self.phantoms

    def _check(self, member_id: str, generation: int) -> ErrorCode:
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    async def _sync(self, request: Message) -> Message:
        assert isinstance(request, SyncGroupRequest)
        code = self._refusal(ApiKey.SYNC_GROUP, request.member_id)
        code = code or self._check(request.member_id, request.generation_id)
        if not code and self.rebalancing:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code:
            return SyncGroupResponse(error_code=code)
        for row in request.assignments:
            if row.member_id not in self.members:
                continue
            given = self.assignment_override or row.assignment
            self._given[row.member_id] = given
            waiting = self.members[row.member_id].synced
            assert waiting is not None
            waiting.set_result(SyncGroupResponse(assignment=given))
        synced = self.members[request.member_id].synced
        assert synced is not None
        return await asyncio.shield(synced)

    def _heartbeat(self, request: Message) -> Message:
        assert isinstance(request, HeartbeatRequest)
        code = self._refusal(ApiKey.HEARTBEAT, request.member_id)
        code = code or self._check(request.member_id, request.generation_id)
        if not code and self.rebalancing:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return HeartbeatResponse(error_code=code)

    def _leave(self, request: Message) -> Message:
        assert isinstance(request, LeaveGroupRequest)
        for row in request.members:
            member = self.members.pop(row.member_id, None)
            if member is not None:
                if member.joined is not None:
                    member.joined.set_result(
                        JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, protocol_name="")
                    )
                self._begin()
        return LeaveGroupResponse(
            members=[MemberResponse(member_id=row.member_id) for row in request.members]
        )

    def _commit(self, request: Message) -> Message:
        assert isinstance(request, OffsetCommitRequest)
        code = self._refusal(ApiKey.OFFSET_COMMIT, request.member_id)
        if not code and (request.generation_id >= 0 or self.members):
            code = self._check(request.member_id, request.generation_id)
        offsets = {
            TopicPartition(topic.name, row.partition_index): row.committed_offset
            for topic in request.topics
            for row in topic.partitions
        }
        if not code:
            self.commits.append(offsets)
            self.committed |= offsets
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=row.partition_index, error_code=code
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _fetch(self, request: Message) -> Message:
        assert isinstance(request, OffsetFetchRequest)
        code = self._refusal(ApiKey.OFFSET_FETCH)
        (group,) = request.groups
        unstable = code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    error_code=ErrorCode.NONE if unstable else code,
                    topics=[
                        OffsetFetchResponseTopics(
                            name=topic.name,
                            partitions=[
                                OffsetFetchResponsePartitions(
                                    partition_index=number,
                                    committed_offset=self.committed.get(
                                        TopicPartition(topic.name, number), -1
                                    ),
                                    metadata="",
                                    error_code=code if unstable else ErrorCode.NONE,
                                )
                                for number in topic.partition_indexes
                            ],
                        )
                        for topic in group.topics or ()
                    ],
                )
            ]
        )
