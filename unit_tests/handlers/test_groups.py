"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what operators see of groups: on a broker, in
every version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pybroker.errors import ErrorCode
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from pybroker.wire.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from unit_tests.handlers.bench import Bench

PROPERTIES = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
KNOWN_ID = 4
"""The first version of JoinGroup in which a member needs an id (KIP-394)."""


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, properties=PROPERTIES) as bench:
        await find(bench)
        yield bench


async def find(bench: Bench) -> None:
    """Every client begins with this; it makes the topic."""
    answer = await bench.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    assert answer.error_code == 0
    await bench.app.groups.shards.settled()


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


async def join(
    bench: Bench,
    version: int = 7,
    *,
    group: str = "g",
    member_id: str = "",
    instance: str | None = None,
    session_ms: int = 10_000,
) -> JoinGroupResponse:
    """Once; error 79 is not followed."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        group_instance_id=instance if version >= 5 else None,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"wants")],
    )
    answer: JoinGroupResponse = await bench.ask(ApiKey.JOIN_GROUP, version, request)
    return answer


async def joined(bench: Bench, version: int = 7, *, group: str = "g") -> JoinGroupResponse:
    """The only member of a new generation."""
    answer = await join(bench, version, group=group)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await join(bench, version, group=group, member_id=answer.member_id)
    assert answer.error_code == 0
    return answer


def sync_request(
    member: JoinGroupResponse, version: int = 5, *, group: str = "g", instance: str | None = None
) -> SyncGroupRequest:
    given_to = [SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"gets")]
    return SyncGroupRequest(
        group_id=group,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=instance,
        protocol_type="consumer" if version >= 5 else None,
        protocol_name="range" if version >= 5 else None,
        assignments=given_to,
    )


async def stable(bench: Bench, *, group: str = "g") -> JoinGroupResponse:
    member = await joined(bench, group=group)
    answer = await bench.ask(ApiKey.SYNC_GROUP, 5, sync_request(member, group=group))
    assert (answer.error_code, answer.assignment) == (0, b"gets")
    return member


async def leave(bench: Bench, member: JoinGroupResponse, *, group: str = "g") -> None:
    request = LeaveGroupRequest(group_id=group, member_id=member.member_id)
    assert (await bench.ask(ApiKey.LEAVE_GROUP, 2, request)).error_code == 0


async def described(bench: Bench, group: str = "g", version: int = 5) -> DescribedGroup:
    request = DescribeGroupsRequest(groups=[group])
    answer = await bench.ask(ApiKey.DESCRIBE_GROUPS, version, request)
    found: DescribedGroup = answer.groups[0]
    return found


async def test_a_group_that_is_named_many_times_is_described_once(bench: Bench) -> None:
    """A name takes a few bytes, what its members have said of themselves may be megabytes."""
    await stable(bench)
    request = DescribeGroupsRequest(groups=["g", "h", *["g"] * 1000])
    answer = await bench.ask(ApiKey.DESCRIBE_GROUPS, 5, request)
    assert [group.group_id for group in answer.groups] == ["g", "h"]


@pytest.mark.parametrize("kind", ["consumer", ""])
async def test_a_join_that_begins_no_group_leaves_no_nodes(bench: Bench, kind: str) -> None:
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type=kind, protocols=[]
    )
    if not kind:
        request.protocols = [JoinGroupRequestProtocol(name="range")]
    answer = await bench.ask(ApiKey.JOIN_GROUP, 3, request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not [path for path in bench.tree.paths() if path.startswith("/consumers/")]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_a_member_joins_in_every_version(bench: Bench, version: int) -> None:
    answer = await join(bench, version)
    if version >= KNOWN_ID:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.generation_id == -1
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = await join(bench, version, member_id=answer.member_id)
    assert answer.error_code == 0
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id and answer.member_id.startswith("bench-")
    assert [(each.member_id, bytes(each.metadata)) for each in answer.members] == [
        (answer.member_id, b"wants")
    ]


async def test_a_member_without_a_rebalance_timeout_has_its_session_timeout(bench: Bench) -> None:
    first = await joined(bench, 0)
    second = asyncio.ensure_future(join(bench, 0))
    await asyncio.sleep(0)
    group = bench.app.groups.service.shard_of("g")._groups["g"]
    assert group.members[first.member_id].rebalance_timeout_ms == 10_000
    await leave(bench, first)
    assert (await second).generation_id == 2


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
async def test_a_leader_syncs_in_every_version(bench: Bench, version: int) -> None:
    member = await joined(bench)
    answer = await bench.ask(ApiKey.SYNC_GROUP, version, sync_request(member, version))
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"gets")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


async def test_a_sync_that_does_not_say_its_protocol_is_refused(bench: Bench) -> None:
    member = await joined(bench)
    request = sync_request(member)
    request.protocol_name = None
    answer = await bench.ask(ApiKey.SYNC_GROUP, 5, request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
async def test_heartbeats_in_every_version(bench: Bench, version: int) -> None:
    member = await stable(bench)

    async def beat(generation: int, member_id: str) -> int:
        request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
        return int((await bench.ask(ApiKey.HEARTBEAT, version, request)).error_code)

    assert await beat(1, member.member_id) == 0
    assert await beat(2, member.member_id) == ErrorCode.ILLEGAL_GENERATION
    assert await beat(1, "nobody") == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
async def test_members_leave_in_every_version(bench: Bench, version: int) -> None:
    member = await stable(bench)

    def request(member_id: str) -> LeaveGroupRequest:
        if version >= 3:
            return LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
        return LeaveGroupRequest(group_id="g", member_id=member_id)

    for member_id, code in (
        ("nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        (member.member_id, ErrorCode.NONE),
        (member.member_id, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        answer = await bench.ask(ApiKey.LEAVE_GROUP, version, request(member_id))
        if version >= 3:
            assert answer.error_code == 0
            assert [(each.member_id, each.error_code) for each in answer.members] == [
                (member_id, code)
            ]
        else:
            assert answer.error_code == code
    assert (await described(bench)).group_state == "Empty"


async def test_an_operator_takes_out_static_members(bench: Bench) -> None:
    answer = await join(bench, instance="one")
    assert answer.error_code == 0 and answer.member_id.startswith("one-")
    leaving = [MemberIdentity(member_id="", group_instance_id=name) for name in ("one", "two")]
    request = LeaveGroupRequest(group_id="g", members=leaving)
    gone = await bench.ask(ApiKey.LEAVE_GROUP, 4, request)
    assert [(each.group_instance_id, each.error_code) for each in gone.members] == [
        ("one", 0),
        ("two", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_groups_are_described_in_every_version(bench: Bench, version: int) -> None:
    member = await stable(bench)
    found = await described(bench, version=version)
    assert (found.error_code, found.group_id, found.group_state) == (0, "g", "Stable")
    assert (found.protocol_type, found.protocol_data) == ("consumer", "range")
    assert [
        (
            each.member_id,
            each.client_id,
            each.client_host,
            bytes(each.member_metadata),
            bytes(each.member_assignment),
        )
        for each in found.members
    ] == [(member.member_id, "bench", "/127.0.0.1", b"wants", b"gets")]
    nobody = await described(bench, "nobody", version)
    assert (nobody.error_code, nobody.group_state, nobody.members) == (0, "Dead", [])


async def test_authorized_operations_are_said_to_who_asks(bench: Bench) -> None:
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    answer = await bench.ask(ApiKey.DESCRIBE_GROUPS, 5, request)
    assert answer.groups[0].authorized_operations == (1 << 3 | 1 << 6 | 1 << 8)
    assert (await described(bench)).authorized_operations == -(2**31)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_groups_are_listed_in_every_version(bench: Bench, version: int) -> None:
    await stable(bench)
    await leave(bench, await stable(bench, group="h"), group="h")

    async def listed(*states: str) -> set[tuple[str, str, str]]:
        request = ListGroupsRequest(states_filter=list(states))
        answer = await bench.ask(ApiKey.LIST_GROUPS, version, request)
        assert answer.error_code == 0
        return {(each.group_id, each.protocol_type, each.group_state) for each in answer.groups}

    shown = {"g": "Stable", "h": "Empty"} if version >= 4 else {"g": "", "h": ""}
    everything = {(name, "consumer", state) for name, state in shown.items()}
    assert await listed() == everything
    if version >= 4:
        assert await listed("stable") == {("g", "consumer", "Stable")}
        assert await listed("Stable", "Empty") == everything
        assert await listed("Dead") == set()


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_groups_are_deleted_in_every_version(bench: Bench, version: int) -> None:
    await stable(bench)
    await leave(bench, await stable(bench, group="h"), group="h")
    request = DeleteGroupsRequest(groups_names=["g", "h", "nobody", "h"])
    answer = await bench.ask(ApiKey.DELETE_GROUPS, version, request)
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("h", ErrorCode.NONE),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert (await described(bench, "h")).group_state == "Dead"


@pytest.mark.parametrize("group", ["a/b", "..", ".", "grüße", "g" * 249, "ü" * 41])
async def test_strange_group_ids_are_groups(bench: Bench, group: str) -> None:
    member = await stable(bench, group=group)
    assert (await described(bench, group)).group_state == "Stable"
    await leave(bench, member, group=group)
    request = DeleteGroupsRequest(groups_names=[group])
    assert (await bench.ask(ApiKey.DELETE_GROUPS, 2, request)).results[0].error_code == 0


@pytest.mark.parametrize("group", ["", "g" * 300, "g" * 250, "ü" * 42, "/" * 84])
async def test_group_ids_that_cannot_be_names_of_nodes_are_refused(
    bench: Bench, group: str
) -> None:
    bad = ErrorCode.INVALID_GROUP_ID
    assert (await join(bench, group=group)).error_code == bad
    requests: list[tuple[ApiKey, int, Any]] = [
        (ApiKey.SYNC_GROUP, 3, SyncGroupRequest(group_id=group)),
        (ApiKey.HEARTBEAT, 3, HeartbeatRequest(group_id=group)),
        (ApiKey.LEAVE_GROUP, 2, LeaveGroupRequest(group_id=group)),
    ]
    for key, version, request in requests:
        assert (await bench.ask(key, version, request)).error_code == bad, key
    assert (await described(bench, group)).error_code == bad
    deletion = DeleteGroupsRequest(groups_names=[group])
    assert (await bench.ask(ApiKey.DELETE_GROUPS, 2, deletion)).results[0].error_code == bad


async def test_everybody_is_sent_elsewhere_without_a_coordinator(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=PROPERTIES) as bench:
        nobody = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await join(bench)).error_code == nobody
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await bench.ask(ApiKey.HEARTBEAT, 3, heartbeat)).error_code == nobody
        assert (await described(bench)).error_code == nobody
        listed = await bench.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
        assert (listed.error_code, listed.groups) == (0, [])


async def test_members_go_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=PROPERTIES) as bench:
        await find(bench)
        member = await stable(bench)
        await bench.crash()
        async with bench.again() as again:
            await find(again)
            heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member.member_id)
            assert (await again.ask(ApiKey.HEARTBEAT, 3, heartbeat)).error_code == 0
            found = await described(again)
            assert [bytes(each.member_assignment) for each in found.members] == [b"gets"]


async def test_who_waits_is_told_when_the_broker_stops(bench: Bench) -> None:
    await stable(bench)
    waiting = asyncio.ensure_future(join(bench, 0))
    async with asyncio.timeout(30):
        while (await described(bench)).group_state != "PreparingRebalance":  # noqa: ASYNC110
            await asyncio.sleep(0)
    await bench.stop()
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("session_ms", "metadata", "protocols", "code"),
    [
        (5_999, 1, 1, ErrorCode.INVALID_SESSION_TIMEOUT),
        (1_800_001, 1, 1, ErrorCode.INVALID_SESSION_TIMEOUT),
        (10_000, 1 << 20, 1, ErrorCode.MEMBER_ID_REQUIRED),
        (10_000, (1 << 20) + 1, 1, ErrorCode.INVALID_REQUEST),
        (10_000, 1, 64, ErrorCode.MEMBER_ID_REQUIRED),
        (10_000, 1, 65, ErrorCode.INVALID_REQUEST),
        (10_000, 1, 0, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
async def test_limits_of_a_join(
    bench: Bench, session_ms: int, metadata: int, protocols: int, code: ErrorCode
) -> None:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=session_ms,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(name=f"p{number}", metadata=b"x" * metadata)
            for number in range(protocols)
        ],
    )
    assert (await bench.ask(ApiKey.JOIN_GROUP, 7, request)).error_code == code


async def test_long_client_ids_give_ids_of_bounded_length(bench: Bench) -> None:
    answer = await join(bench, instance="i" * 32_000)
    assert answer.error_code == 0
    assert len(answer.member_id) == 200 + 1 + 36


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_a_static_leader_that_starts_again_leads_if_it_understands(
    bench: Bench, version: int
) -> None:
    first = await join(bench, version, instance="one")
    answer = await bench.ask(ApiKey.SYNC_GROUP, 3, sync_request(first, 3, instance="one"))
    assert answer.error_code == 0
    again = await join(bench, version, instance="one")
    assert (again.error_code, again.generation_id) == (0, 1)
    assert again.member_id != first.member_id
    skips = version >= 9
    assert again.skip_assignment == skips
    assert again.leader == (again.member_id if skips else first.member_id)
    assert len(again.members) == int(skips)
