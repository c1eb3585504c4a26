"""Group requests of valid and invalid clients, field by field: one function per API, which returns
the response or its error code.
"""

from __future__ import annotations

from typing import Any, Final

from integration_tests.committer import commit_request, only_code
from integration_tests.wire_client import Connection
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
)
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from pybroker.wire.schema import Message

TOPIC: Final = "t"


def join_request(group: str, member_id: str = "", **changes: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "session_timeout_ms": 1_800_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"")],
    }
    return JoinGroupRequest(**{**values, **changes})


def join(
    connection: Connection, group: str, member_id: str = "", *, version: int = 3, **changes: Any
) -> JoinGroupResponse:
    """Join without a second request, like clients before KIP-394."""
    return connection.ask(version, join_request(group, member_id, **changes), JoinGroupResponse)


def sync(
    connection: Connection, group: str, member_id: str, generation: int, **changes: Any
) -> SyncGroupResponse:
    given = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"all")]
    values: dict[str, Any] = {
        "group_id": group,
        "member_id": member_id,
        "generation_id": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": given,
    }
    return connection.ask(5, SyncGroupRequest(**{**values, **changes}), SyncGroupResponse)


def stable(
    connection: Connection, group: str, *, version: int = 3, **changes: Any
) -> JoinGroupResponse:
    """Join as the only member, and sync. Return the member of the Stable group."""
    joined = join(connection, group, version=version, **changes)
    assert joined.error_code == 0, joined
    instance = changes.get("group_instance_id")
    synced = sync(
        connection, group, joined.member_id, joined.generation_id, group_instance_id=instance
    )
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
    return joined


def heartbeat(
    connection: Connection, group: str, member_id: str, generation: int, instance: str | None = None
) -> int:
    request = HeartbeatRequest(
        group_id=group,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=instance,
    )
    return connection.ask(4, request, HeartbeatResponse).error_code


def leave(
    connection: Connection, group: str, member_id: str, instance: str | None = None
) -> list[int]:
    who = MemberIdentity(member_id=member_id, group_instance_id=instance)
    request = LeaveGroupRequest(group_id=group, members=[who])
    answer = connection.ask(4, request, LeaveGroupResponse)
    return [each.error_code for each in answer.members] or [answer.error_code]


def commit(
    connection: Connection,
    group: str,
    *,
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    topic: str = TOPIC,
    partition: int = 0,
    metadata: str | None = "",
) -> int:
    row = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=7, committed_metadata=metadata
    )
    request = OffsetCommitRequest(
        group_id=group,
        member_id=member_id,
        generation_id=generation,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[row])],
    )
    return only_code(connection.ask(8, request, OffsetCommitResponse))


def fetch(connection: Connection, group: str) -> OffsetFetchResponse:
    topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=group, topics=topics)
    return connection.ask(7, request, OffsetFetchResponse)


def fetched(connection: Connection, group: str) -> int:
    answer = fetch(connection, group)
    assert answer.error_code == 0
    return answer.topics[0].partitions[0].committed_offset


def deleted(connection: Connection, group: str) -> int:
    request = DeleteGroupsRequest(groups_names=[group])
    return connection.ask(2, request, DeleteGroupsResponse).results[0].error_code


def sample(key: ApiKey) -> Message:
    """Return a request with an element in every list."""
    match key:
        case ApiKey.JOIN_GROUP:
            return join_request("bytes")
        case ApiKey.SYNC_GROUP:
            given = SyncGroupRequestAssignment(member_id="m", assignment=b"all")
            return SyncGroupRequest(group_id="bytes", member_id="m", assignments=[given])
        case ApiKey.HEARTBEAT:
            return HeartbeatRequest(group_id="bytes", member_id="m")
        case ApiKey.LEAVE_GROUP:
            return LeaveGroupRequest(group_id="bytes", members=[MemberIdentity(member_id="m")])
        case ApiKey.OFFSET_COMMIT:
            return commit_request("bytes", TOPIC, {0: 7})
        case ApiKey.OFFSET_FETCH:
            topics = [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
            return OffsetFetchRequest(group_id="bytes", topics=topics)
        case ApiKey.OFFSET_DELETE:
            parts = [OffsetDeleteRequestPartition(partition_index=0)]
            topic = OffsetDeleteRequestTopic(name=TOPIC, partitions=parts)
            return OffsetDeleteRequest(group_id="bytes", topics=[topic])
        case ApiKey.DESCRIBE_GROUPS:
            return DescribeGroupsRequest(groups=["bytes"])
        case ApiKey.DELETE_GROUPS:
            return DeleteGroupsRequest(groups_names=["bytes"])
        case _:
            return FindCoordinatorRequest(key="bytes")
