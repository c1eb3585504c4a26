"""What an assignor is given and what it gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import Subscription

Assignments = dict[str, list[TopicPartition]]
"""By the member's id; every member has an entry."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the leader is told of it."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


class Assignor(Protocol):
    """One for each strategy of a consumer: some remember what they were given."""

    @property
    def name(self) -> str:
        """As members call it in JoinGroup."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions while they join; all others give everything back
        before."""

    def user_data(self) -> bytes | None:
        """What the leader shall know of this member, besides its topics."""

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """Who gets what. Topics without a count do not exist (yet) and are left out."""

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """What this member was given in that generation."""


class Forgetful:
    """The part of an assignor that needs to know nothing of earlier assignments."""

    def user_data(self) -> bytes | None:
        return None

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        pass


def member_order(member: GroupMember) -> tuple[bool, str]:
    """Static members first, by instance id, so that restarts change nothing; then by member id."""
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.member_id


def in_order(members: Iterable[GroupMember]) -> list[GroupMember]:
    return sorted(members, key=member_order)


def topics_of(members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> list[str]:
    """The topics that somebody reads and that exist, sorted."""
    wanted = {topic for member in members for topic in member.subscription.topics}
    return sorted(topic for topic in wanted if partition_counts.get(topic, 0) > 0)
