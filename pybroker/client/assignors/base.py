"""The interface of an assignor: its input and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import Subscription

Assignments = dict[str, list[TopicPartition]]
"""The partitions by member id; every member has an entry."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


class Assignor(Protocol):
    """A consumer has one for each strategy: some remember earlier assignments."""

    @property
    def name(self) -> str:
        """The name that members send in JoinGroup."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions while they join; with other assignors they give all
        back before."""

    def user_data(self) -> bytes | None:
        """Return the bytes that the leader gets about this member, besides its topics."""

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """Return the partitions of each member. Topics without a count do not exist (yet) and are
        left out."""

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """Note the partitions that this member was assigned in that generation."""


class Forgetful:
    """The part of an assignor that ignores earlier assignments."""

    def user_data(self) -> bytes | None:
        return None

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        pass


def member_order(member: GroupMember) -> tuple[bool, str]:
    """Return the sort key of a member: static members first, by instance id, so that restarts
    change nothing; then by member id."""
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.member_id


def in_order(members: Iterable[GroupMember]) -> list[GroupMember]:
    return sorted(members, key=member_order)


def topics_of(members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> list[str]:
    """Return the topics that some member reads and that exist, sorted."""
    wanted = {topic for member in members for topic in member.subscription.topics}
    return sorted(topic for topic in wanted if partition_counts.get(topic, 0) > 0)
