"""Tests of the requests of group members and operators, in every version of each request."""

from __future__ import annotations

from typing import Any

import pytest

from integration_tests.wire_client import Connection
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
from pybroker.wire.schema import Message
from unit_tests.patience import wait_until

SESSION_MS = 1_800_000
"""A session timeout in ms so long that it does not expire while the machine stalls."""
KNOWN_ID = 4
"""The first version of JoinGroup that requires a member id (KIP-394)."""


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


def ask(connection: Connection, version: int, request: Message) -> Any:
    """Send a request and return the answer."""
    (api,) = (api for api in APIS.values() if api.request is type(request))
    return connection.ask(version, request, api.response)


@pytest.fixture
def group(connection: Connection, topic: str) -> str:
    """Return the id of a new group that has a coordinator."""
    return coordinated(connection, topic)


def coordinated(connection: Connection, group: str) -> str:
    """Return whether the broker coordinates the group: only the coordinator answers
    UNKNOWN_MEMBER_ID.
    """

    def has_coordinator() -> bool:
        found = ask(connection, 3, FindCoordinatorRequest(key=group)).error_code
        nobody = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
        told = ask(connection, 3, nobody).error_code
        return (found, told) == (0, ErrorCode.UNKNOWN_MEMBER_ID)

    wait_until(has_coordinator, what=f"a coordinator of {group}")
    return group


def join(
    connection: Connection,
    group: str,
    version: int = 7,
    *,
    member_id: str = "",
    instance: str | None = None,
) -> JoinGroupResponse:
    """Join once, without a second request after error 79 (MEMBER_ID_REQUIRED)."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member_id,
        group_instance_id=instance if version >= 5 else None,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"wants")],
    )
    answer: JoinGroupResponse = ask(connection, version, request)
    return answer


def joined(connection: Connection, group: str) -> JoinGroupResponse:
    """Join as the only member of a new generation."""
    answer = join(connection, group)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
    answer = join(connection, group, member_id=answer.member_id)
    assert answer.error_code == 0
    return answer


def sync_request(
    group: str, member: JoinGroupResponse, version: int = 5, instance: str | None = None
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


def stable(connection: Connection, group: str) -> JoinGroupResponse:
    member = joined(connection, group)
    answer = ask(connection, 5, sync_request(group, member))
    assert (answer.error_code, answer.assignment) == (0, b"gets")
    return member


def emptied(connection: Connection, group: str) -> str:
    """Return the id of an empty group that had a member."""
    member = stable(connection, coordinated(connection, group))
    request = LeaveGroupRequest(group_id=group, member_id=member.member_id)
    assert ask(connection, 2, request).error_code == 0
    return group


def described(connection: Connection, group: str, version: int = 5) -> DescribedGroup:
    answer = ask(connection, version, DescribeGroupsRequest(groups=[group]))
    found: DescribedGroup = answer.groups[0]
    return found


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_member_joins_in_every_version(connection: Connection, group: str, version: int) -> None:
    answer = join(connection, group, version)
    if version >= KNOWN_ID:
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert answer.generation_id == -1
        assert answer.protocol_name == (None if version >= 7 else "")
        answer = join(connection, group, version, member_id=answer.member_id)
    assert answer.error_code == 0
    assert (answer.generation_id, answer.protocol_name) == (1, "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert answer.leader == answer.member_id and answer.member_id.startswith("wire-test-")
    assert [(each.member_id, bytes(each.metadata)) for each in answer.members] == [
        (answer.member_id, b"wants")
    ]


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_a_leader_syncs_in_every_version(connection: Connection, group: str, version: int) -> None:
    member = joined(connection, group)
    answer = ask(connection, version, sync_request(group, member, version))
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"gets")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


def test_a_sync_without_its_protocol_is_refused(connection: Connection, group: str) -> None:
    request = sync_request(group, joined(connection, group))
    request.protocol_name = None
    answer = ask(connection, 5, request)
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_heartbeats_in_every_version(connection: Connection, group: str, version: int) -> None:
    member = stable(connection, group)
    for generation, member_id, code in (
        (1, member.member_id, ErrorCode.NONE),
        (2, member.member_id, ErrorCode.ILLEGAL_GENERATION),
        (1, "nobody", ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        request = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
        assert ask(connection, version, request).error_code == code


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
def test_members_leave_in_every_version(connection: Connection, group: str, version: int) -> None:
    member = stable(connection, group)
    for member_id, code in (
        ("nobody", ErrorCode.UNKNOWN_MEMBER_ID),
        (member.member_id, ErrorCode.NONE),
        (member.member_id, ErrorCode.UNKNOWN_MEMBER_ID),
    ):
        request = LeaveGroupRequest(group_id=group, member_id=member_id)
        if version >= 3:
            request = LeaveGroupRequest(
                group_id=group, members=[MemberIdentity(member_id=member_id)]
            )
        answer = ask(connection, version, request)
        if version >= 3:
            assert answer.error_code == 0
            (left,) = answer.members
            assert (left.member_id, left.error_code) == (member_id, code)
        else:
            assert answer.error_code == code
    assert described(connection, group).group_state == "Empty"


def test_an_operator_removes_static_members(connection: Connection, group: str) -> None:
    answer = join(connection, group, instance="one")
    assert answer.error_code == 0 and answer.member_id.startswith("one-")
    leaving = [MemberIdentity(member_id="", group_instance_id=name) for name in ("one", "two")]
    gone = ask(connection, 4, LeaveGroupRequest(group_id=group, members=leaving))
    assert [(each.group_instance_id, each.error_code) for each in gone.members] == [
        ("one", 0),
        ("two", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


@pytest.mark.parametrize("version", [7, 8, 9])
def test_a_restarted_static_leader_leads_from_the_version_with_skip_assignment(
    connection: Connection, group: str, version: int
) -> None:
    first = join(connection, group, version, instance="one")
    answer = ask(connection, 3, sync_request(group, first, 3, instance="one"))
    assert answer.error_code == 0
    again = join(connection, group, version, instance="one")
    assert (again.error_code, again.generation_id) == (0, 1)
    assert again.member_id != first.member_id
    skips = version >= 9
    assert again.skip_assignment == skips
    assert again.leader == (again.member_id if skips else first.member_id)
    assert len(again.members) == int(skips)


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
def test_groups_are_described_in_every_version(
    connection: Connection, group: str, version: int
) -> None:
    member = stable(connection, group)
    found = described(connection, group, version)
    assert (found.error_code, found.group_id, found.group_state) == (0, group, "Stable")
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
    ] == [(member.member_id, "wire-test", "/127.0.0.1", b"wants", b"gets")]
    nobody = described(connection, coordinated(connection, f"{group}-nobody"), version)
    assert (nobody.error_code, nobody.group_state, nobody.members) == (0, "Dead", [])


@pytest.mark.ours
def test_a_group_that_is_requested_many_times_is_described_once(
    connection: Connection, group: str
) -> None:
    """A group id takes a few bytes, but the metadata of its members may take megabytes. Apache
    describes the group each time.
    """
    stable(connection, group)
    other = coordinated(connection, f"{group}-other")
    request = DescribeGroupsRequest(groups=[group, other, *[group] * 1000])
    answer = ask(connection, 5, request)
    assert [each.group_id for each in answer.groups] == [group, other]


def test_authorized_operations_are_returned_on_request(connection: Connection, group: str) -> None:
    stable(connection, group)
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    (told,) = ask(connection, 5, request).groups
    assert told.authorized_operations == (1 << 3 | 1 << 6 | 1 << 8)
    assert described(connection, group).authorized_operations == -(2**31)


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
def test_groups_are_listed_in_every_version(
    connection: Connection, group: str, version: int
) -> None:
    stable(connection, group)
    empty = emptied(connection, f"{group}-empty")

    def listed(*states: str) -> set[tuple[str, str, str]]:
        answer = ask(connection, version, ListGroupsRequest(states_filter=list(states)))
        assert answer.error_code == 0
        return {
            (each.group_id, each.protocol_type, each.group_state)
            for each in answer.groups
            if each.group_id.startswith(group)
        }

    shown = {group: "Stable", empty: "Empty"} if version >= 4 else {group: "", empty: ""}
    everything = {(name, "consumer", state) for name, state in shown.items()}
    assert listed() == everything
    if version >= 4:
        assert listed("stable") == {(group, "consumer", "Stable")}
        assert listed("Stable", "Empty") == everything
        assert listed("Dead") == set()


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_groups_are_deleted_in_every_version(
    connection: Connection, group: str, version: int
) -> None:
    stable(connection, group)
    empty = emptied(connection, f"{group}-empty")
    nobody = coordinated(connection, f"{group}-nobody")
    answer = ask(connection, version, DeleteGroupsRequest(groups_names=[group, empty, nobody]))
    assert {each.group_id: each.error_code for each in answer.results} == {
        group: ErrorCode.NON_EMPTY_GROUP,
        empty: ErrorCode.NONE,
        nobody: ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert described(connection, empty).group_state == "Dead"


@pytest.mark.ours
def test_a_group_that_is_deleted_twice_has_one_result(connection: Connection, group: str) -> None:
    """As in DescribeGroups, Apache answers each occurrence of the group id."""
    empty = emptied(connection, group)
    answer = ask(connection, 2, DeleteGroupsRequest(groups_names=[empty, empty]))
    assert [(each.group_id, each.error_code) for each in answer.results] == [(empty, 0)]


@pytest.mark.parametrize("name", ["a/b", "..", ".", "grüße", "g" * 249, "ü" * 41])
def test_strange_group_ids_are_groups(connection: Connection, name: str) -> None:
    emptied(connection, name)
    assert described(connection, name).group_state == "Empty"
    (deleted,) = ask(connection, 2, DeleteGroupsRequest(groups_names=[name])).results
    assert deleted.error_code == 0


@pytest.mark.ours
@pytest.mark.parametrize("name", ["", "g" * 300, "g" * 250, "ü" * 42, "/" * 84])
def test_group_ids_that_are_not_valid_node_names_are_refused(
    connection: Connection, name: str
) -> None:
    """Apache keeps its groups in its log only."""
    bad = ErrorCode.INVALID_GROUP_ID
    assert join(connection, name).error_code == bad
    assert ask(connection, 3, SyncGroupRequest(group_id=name)).error_code == bad
    assert ask(connection, 3, HeartbeatRequest(group_id=name)).error_code == bad
    assert ask(connection, 2, LeaveGroupRequest(group_id=name)).error_code == bad
    assert described(connection, name).error_code == bad
    (deleted,) = ask(connection, 2, DeleteGroupsRequest(groups_names=[name])).results
    assert deleted.error_code == bad


@pytest.mark.parametrize(
    ("session_ms", "metadata", "protocols", "code"),
    [
        (5_999, 1, 1, ErrorCode.INVALID_SESSION_TIMEOUT),
        (1_800_001, 1, 1, ErrorCode.INVALID_SESSION_TIMEOUT),
        (10_000, 1 << 20, 1, ErrorCode.MEMBER_ID_REQUIRED),
        (10_000, 1, 64, ErrorCode.MEMBER_ID_REQUIRED),
        (10_000, 1, 0, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        # Apache has no such limits
        pytest.param(10_000, (1 << 20) + 1, 1, ErrorCode.INVALID_REQUEST, marks=pytest.mark.ours),
        pytest.param(10_000, 1, 65, ErrorCode.INVALID_REQUEST, marks=pytest.mark.ours),
    ],
)
def test_limits_of_a_join(
    connection: Connection,
    group: str,
    session_ms: int,
    metadata: int,
    protocols: int,
    code: ErrorCode,
) -> None:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=session_ms,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(name=f"p{number}", metadata=b"x" * metadata)
            for number in range(protocols)
        ],
    )
    assert ask(connection, 7, request).error_code == code


@pytest.mark.ours
def test_long_client_ids_give_ids_of_bounded_length(connection: Connection, group: str) -> None:
    """Apache's member ids contain the whole client id, however long it is."""
    answer = join(connection, group, instance="i" * 32_000)
    assert answer.error_code == 0
    assert len(answer.member_id) == 200 + 1 + 36
