"""Tests of groups on a broker: their nodes in ZooKeeper, and the answers to members when it
stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.group_admin import (
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
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from unit_tests.handlers.bench import Bench
from unit_tests.idle_loop import idle

PROPERTIES = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}
SESSION_MS = 1_800_000
"""The session timeout is long, so that no session expires on a slow machine."""


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, properties=PROPERTIES) as bench:
        await find(bench)
        yield bench


async def find(bench: Bench) -> None:
    """Find the coordinator, as every client does first. The request creates the topic."""
    answer = await bench.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
    assert answer.error_code == 0
    await bench.app.groups.shards.settled()


async def join(bench: Bench) -> JoinGroupResponse:
    """Join without a member id, as clients before KIP-394 do."""
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=SESSION_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"wants")],
    )
    answer: JoinGroupResponse = await bench.ask(ApiKey.JOIN_GROUP, 0, request)
    return answer


async def stable(bench: Bench) -> JoinGroupResponse:
    """Let one member join and sync, as the only member of a new generation."""
    member = await join(bench)
    assert member.error_code == 0
    request = SyncGroupRequest(
        group_id="g",
        generation_id=member.generation_id,
        member_id=member.member_id,
        assignments=[SyncGroupRequestAssignment(member_id=member.member_id, assignment=b"gets")],
    )
    answer = await bench.ask(ApiKey.SYNC_GROUP, 3, request)
    assert (answer.error_code, answer.assignment) == (0, b"gets")
    return member


async def leave(bench: Bench, member: JoinGroupResponse) -> None:
    request = LeaveGroupRequest(group_id="g", member_id=member.member_id)
    assert (await bench.ask(ApiKey.LEAVE_GROUP, 2, request)).error_code == 0


async def described(bench: Bench) -> DescribedGroup:
    answer = await bench.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=["g"]))
    found: DescribedGroup = answer.groups[0]
    return found


@pytest.mark.parametrize("kind", ["consumer", ""])
async def test_a_rejected_join_creates_no_nodes(bench: Bench, kind: str) -> None:
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type=kind, protocols=[]
    )
    if not kind:
        request.protocols = [JoinGroupRequestProtocol(name="range")]
    answer = await bench.ask(ApiKey.JOIN_GROUP, 3, request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not [path for path in bench.tree.paths() if path.startswith("/consumers/")]


async def test_a_member_without_a_rebalance_timeout_has_its_session_timeout(bench: Bench) -> None:
    first = await join(bench)
    second = asyncio.ensure_future(join(bench))
    await asyncio.sleep(0)
    group = bench.app.groups.service.shard_of("g")._groups["g"]
    assert group.members[first.member_id].rebalance_timeout_ms == SESSION_MS
    await leave(bench, first)
    assert (await second).generation_id == 2


async def test_requests_without_a_coordinator_get_coordinator_not_available(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=PROPERTIES) as bench:
        nobody = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await join(bench)).error_code == nobody
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        assert (await bench.ask(ApiKey.HEARTBEAT, 3, heartbeat)).error_code == nobody
        assert (await described(bench)).error_code == nobody
        listed = await bench.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
        assert (listed.error_code, listed.groups) == (0, [])


async def test_members_continue_after_the_broker_was_killed(tmp_path: Path) -> None:
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


async def test_a_waiting_join_is_answered_when_the_broker_stops(bench: Bench) -> None:
    await stable(bench)
    waiting = asyncio.ensure_future(join(bench))
    await idle()
    assert (await described(bench)).group_state == "PreparingRebalance"
    await bench.stop()
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
