"""Listing, describing and deleting groups, and removing static members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.admin.calls import Calls
from pybroker.client.connection import Connection
from pybroker.client.coordinator_calls import ask_coordinators
from pybroker.client.errors import ClientError, ResponseError, UnsupportedByBroker
from pybroker.client.leader_calls import response_error
from pybroker.client.metadata import Node
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    decode_assignment,
    decode_subscription,
)
from pybroker.wire.messages.group_admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from pybroker.wire.messages.groups import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

STATES_VERSION: Final = 4
MEMBERS_VERSION: Final = 3
CONSUMER_TYPES: Final = frozenset({PROTOCOL_TYPE, ""})
"""The protocol types of groups that consume topics. A group with an empty type only commits
offsets."""


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in the list of a broker. `state` is empty from brokers before Kafka 2.6."""

    group_id: str
    protocol_type: str
    state: str

    @property
    def is_consumer(self) -> bool:
        """Whether the members are consumers, and not for example workers of Kafka Connect."""
        return self.protocol_type in CONSUMER_TYPES


@dataclass(frozen=True, slots=True)
class GroupList:
    """The groups of a cluster, sorted by group id. `errors` has an error for each broker whose
    request failed; the groups of such a broker are missing."""

    groups: tuple[GroupListing, ...]
    errors: Mapping[int, ClientError] = field(default_factory=dict)

    def check(self) -> GroupList:
        """Return the groups. Raises the first of the `errors`."""
        for error in self.errors.values():
            raise error
        return self


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group. `client_host` is its address as the coordinator shows it ("/127.0.0.1").
    The format of `metadata` and `assignment` depends on the group's protocol type."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""

    def subscription(self) -> Subscription:
        """Return the subscription in the `metadata` of a consumer. Raises MalformedInput if
        `metadata` is malformed, or is empty because the group rebalances."""
        return decode_subscription(self.metadata)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions in the `assignment` of a consumer. Raises MalformedInput."""
        return decode_assignment(self.assignment).partitions


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state and the members of a group. `state` is Kafka's name, such as "Stable", or "Dead"
    for an unknown group. `assignor` is set only in "Stable". If the request failed, only `error` is
    set."""

    group_id: str
    state: str = ""
    protocol_type: str = ""
    assignor: str = ""
    members: tuple[GroupMember, ...] = ()
    coordinator: Node | None = None
    error: ClientError | None = None

    @property
    def is_consumer(self) -> bool:
        """Whether the members are consumers, and not for example workers of Kafka Connect."""
        return self.protocol_type in CONSUMER_TYPES

    def check(self) -> GroupDescription:
        """Return the description itself, or raise its `error`."""
        if self.error is not None:
            raise self.error
        return self


async def list_groups(calls: Calls, states: Iterable[str], *, timeout_ms: int | None) -> GroupList:
    """Return the groups of all brokers, sorted by group id, with one of these states (empty:
    all)."""
    wanted = list(states)

    async def ask(connection: Connection, timeout_s: float) -> ListGroupsResponse:
        version = connection.version_of(ApiKey.LIST_GROUPS)
        if wanted and version < STATES_VERSION:
            raise UnsupportedByBroker(
                f"the broker supports ListGroups up to version {version}, but version "
                f"{STATES_VERSION} or above is needed to list groups by state"
            )
        answer = await connection.send(
            ApiKey.LIST_GROUPS,
            ListGroupsRequest(states_filter=wanted),
            ListGroupsResponse,
            timeout_s=timeout_s,
        )
        if error := response_error(answer.error_code):
            raise error
        return answer

    found: dict[str, GroupListing] = {}
    errors: dict[int, ClientError] = {}
    for broker, answer in (await calls.each_broker(None, ask, timeout_ms)).items():
        if isinstance(answer, ClientError):
            errors[broker] = answer
            continue
        for row in answer.groups:
            found[row.group_id] = GroupListing(row.group_id, row.protocol_type, row.group_state)
    return GroupList(tuple(found[name] for name in sorted(found)), errors)


async def describe_groups(
    calls: Calls, groups: Iterable[str], *, timeout_ms: int | None
) -> dict[str, GroupDescription]:
    """Return the state and the members of each group, or the error."""
    calls.check_opened()

    async def ask(
        connection: Connection, node: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, GroupDescription | ClientError]:
        answer = await connection.send(
            ApiKey.DESCRIBE_GROUPS,
            DescribeGroupsRequest(groups=list(chosen)),
            DescribeGroupsResponse,
            timeout_s=timeout_s,
        )
        return {
            row.group_id: response_error(row.error_code) or _description(row, node)
            for row in answer.groups
        }

    answers = await ask_coordinators(
        calls.cluster, groups, ask, deadline=calls.deadline(timeout_ms)
    )
    return {
        group: GroupDescription(group, error=answer) if isinstance(answer, ClientError) else answer
        for group, answer in answers.items()
    }


async def delete_groups(
    calls: Calls, groups: Iterable[str], *, timeout_ms: int | None
) -> dict[str, ClientError | None]:
    """Delete groups without members. Return None for each deleted group, else the error. A request
    that the coordinator may have processed is not retried, because a retry could delete a new group
    with the same id."""
    calls.check_opened()

    async def ask(
        connection: Connection, _: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, bool | ClientError]:
        answer = await connection.send(
            ApiKey.DELETE_GROUPS,
            DeleteGroupsRequest(groups_names=list(chosen)),
            DeleteGroupsResponse,
            timeout_s=timeout_s,
        )
        return {row.group_id: response_error(row.error_code) or True for row in answer.results}

    answers = await ask_coordinators(
        calls.cluster, groups, ask, deadline=calls.deadline(timeout_ms), repeatable=False
    )
    return {
        group: answer if isinstance(answer, ClientError) else None
        for group, answer in answers.items()
    }


async def remove_members(
    calls: Calls, group: str, instance_ids: Sequence[str], *, timeout_ms: int | None
) -> dict[str, ClientError | None]:
    """Remove static members from a group. Return None for each removed member, else the error.
    Raises ClientError if the coordinator does not answer, or refuses the whole request."""
    calls.check_opened()
    request = LeaveGroupRequest(
        group_id=group,
        members=[MemberIdentity(group_instance_id=name) for name in instance_ids],
    )

    async def ask(
        connection: Connection, _: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, LeaveGroupResponse | ClientError]:
        version = connection.version_of(ApiKey.LEAVE_GROUP)
        if version < MEMBERS_VERSION:
            raise UnsupportedByBroker(
                f"the broker supports LeaveGroup up to version {version}, but version "
                f"{MEMBERS_VERSION} or above is needed to remove static members"
            )
        answer = await connection.send(
            ApiKey.LEAVE_GROUP, request, LeaveGroupResponse, timeout_s=timeout_s
        )
        return {group: response_error(answer.error_code) or answer}

    answers = await ask_coordinators(
        calls.cluster, [group], ask, deadline=calls.deadline(timeout_ms), repeatable=False
    )
    answer = answers[group]
    if isinstance(answer, ClientError):
        raise answer
    found = {row.group_instance_id: response_error(row.error_code) for row in answer.members}
    return {name: found.get(name, _NOT_ANSWERED) for name in instance_ids}


_NOT_ANSWERED = ResponseError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator's response has no result for the member"
)


def _description(row: DescribedGroup, coordinator: Node) -> GroupDescription:
    return GroupDescription(
        row.group_id,
        row.group_state,
        row.protocol_type,
        row.protocol_data,
        tuple(map(_member, row.members)),
        coordinator,
    )


def _member(row: DescribedGroupMember) -> GroupMember:
    return GroupMember(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        bytes(row.member_metadata),
        bytes(row.member_assignment),
    )
