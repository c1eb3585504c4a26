"""The requests of a group member, and the members in the JoinGroup response to the leader."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.client.assignors import GroupMember
from pybroker.client.errors import UnsupportedByBroker
from pybroker.client.groups.decisions import Identity
from pybroker.client.options import ConsumerOptions
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from pybroker.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

log = logging.getLogger(__name__)

JOIN_WITH_INSTANCE: Final = 5
LEAVE_SEVERAL: Final = 3


@dataclass(frozen=True, slots=True)
class Joining:
    """The data of a member for the leader of the group: the subscribed topics, the assignor's user
    data, and the owned partitions with their generation."""

    topics: tuple[str, ...]
    user_data: bytes | None
    owned: tuple[TopicPartition, ...]
    owned_in: int


def join(
    options: ConsumerOptions,
    group_id: str,
    identity: Identity,
    protocols: Sequence[tuple[str, Joining]],
    version: int,
) -> JoinGroupRequest:
    """Return the JoinGroup request. `protocols`: (assignor, its data) pairs in order of preference.
    Raises UnsupportedByBroker if group.instance.id is set, but the broker is too old for static
    membership."""
    if identity.instance_id is not None and version < JOIN_WITH_INSTANCE:
        raise UnsupportedByBroker(
            "the broker does not support group.instance.id, which needs Kafka 2.3: upgrade the"
            " broker, or do not set the option"
        )
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=options.session_timeout_ms,
        rebalance_timeout_ms=options.max_poll_interval_ms,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=[
            JoinGroupRequestProtocol(
                name=name,
                metadata=encode_subscription(
                    Subscription(
                        joining.topics,
                        joining.user_data,
                        joining.owned,
                        joining.owned_in,
                        options.client_rack or None,
                    )
                ),
            )
            for name, joining in protocols
        ],
    )


def members_of(answer: JoinGroupResponse) -> list[GroupMember]:
    """Return the members in the JoinGroup response to the leader. A member with a malformed
    subscription has no topics."""
    found = []
    for row in answer.members:
        try:
            subscription = decode_subscription(row.metadata)
        except MalformedInput as error:
            log.warning(
                "subscription cannot be decoded, the member gets no partitions member=%s reason=%s",
                row.member_id,
                error,
            )
            subscription = Subscription(())
        found.append(GroupMember(row.member_id, row.group_instance_id, subscription))
    return found


def sync(
    group_id: str,
    identity: Identity,
    protocol_name: str | None,
    given: Mapping[str, Sequence[TopicPartition]],
) -> SyncGroupRequest:
    """Return the SyncGroup request. `given` is the assignment (member id -> partitions) that the
    group's leader has computed. It is empty in the requests of other members."""
    return SyncGroupRequest(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(
                member_id=member_id, assignment=encode_assignment(Assignment(tuple(partitions)))
            )
            for member_id, partitions in given.items()
        ],
    )


def heartbeat(group_id: str, identity: Identity) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
    )


def leave(group_id: str, identity: Identity, version: int) -> LeaveGroupRequest:
    if version >= LEAVE_SEVERAL:
        member = MemberIdentity(member_id=identity.member_id)
        return LeaveGroupRequest(group_id=group_id, members=[member])
    return LeaveGroupRequest(group_id=group_id, member_id=identity.member_id)
