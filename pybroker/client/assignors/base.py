"""The interface of an assignor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pybroker.model import TopicPartition
from pybroker.wire.consumer_protocol import Subscription

Assignments = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id. Every member has an entry."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of the group, with the subscription in its JoinGroup request."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


class Assignor(Protocol):
    """The interface of an assignor. Each consumer has its own instances."""

    @property
    def name(self) -> str:
        """The name of the assignor in JoinGroup requests."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions while they join. If false, they release all
        partitions before they join."""

    def user_data(self) -> bytes | None:
        """Return the user data of this member's subscription in JoinGroup; None if the assignor
        needs none."""

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """Return member id -> partitions. `partition_counts` has the existing topics; the
        partitions of other topics are not assigned."""

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        """Store the partitions that this member got in the generation."""


class Forgetful:
    """The base class of assignors that ignore earlier assignments."""

    def user_data(self) -> bytes | None:
        return None

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        pass


def member_order(member: GroupMember) -> tuple[bool, str]:
    """Return the sort key of a member. Static members come first, in the order of their instance
    ids. All others follow, in the order of their member ids."""
    if member.instance_id is not None:
        return False, member.instance_id
    return True, member.member_id


def in_order(members: Iterable[GroupMember]) -> list[GroupMember]:
    return sorted(members, key=member_order)


def topics_of(members: Iterable[GroupMember], partition_counts: Mapping[str, int]) -> list[str]:
    """Return the existing topics to which any member subscribes, sorted."""
    wanted = {topic for member in members for topic in member.subscription.topics}
    return sorted(topic for topic in wanted if partition_counts.get(topic, 0) > 0)
