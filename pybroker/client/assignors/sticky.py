"""The assignors "sticky" and "cooperative-sticky": balanced assignments in which members keep their
partitions if possible."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pybroker.client.assignors.balance import Ownership, balanced, owners
from pybroker.client.assignors.base import Assignments, GroupMember
from pybroker.errors import MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.codec import decode_message, encode_message
from pybroker.wire.consumer_protocol import NO_GENERATION, Subscription
from pybroker.wire.primitives import REQUEST_ELEMENTS_MAX
from pybroker.wire.schema import Message, array, int32, int32_array, message, string

_GENERATION = struct.Struct(">i")
USER_DATA_VERSION: Final = 1


@message
class _Partitions(Message):
    topic: str = string("The topic name.")
    partitions: list[int] = int32_array("The partition numbers.")


@message
class _StickyUserData(Message):
    """The user data of Kafka's sticky assignor: the member's partitions. From version 1 on, it also
    has the generation in which the member got them."""

    previous_assignment: list[_Partitions] = array(
        _Partitions, "The previous partitions of the member."
    )
    generation: int = int32(
        "The generation of the previous partitions.", since=1, ignorable=True, default=NO_GENERATION
    )


class StickyAssignor:
    """The assignor "sticky". Members release all partitions before they join, and mostly get the
    same ones again."""

    name: Final = "sticky"
    cooperative: Final = False

    def __init__(self) -> None:
        self._partitions: tuple[TopicPartition, ...] = ()
        self._generation = NO_GENERATION

    def user_data(self) -> bytes | None:
        """Return the partitions of this member in its last generation, as bytes."""
        if not self._partitions:
            return None
        topics: dict[str, _Partitions] = {}
        for topic, number in self._partitions:
            topics.setdefault(topic, _Partitions(topic=topic)).partitions.append(number)
        data = _StickyUserData(
            previous_assignment=list(topics.values()), generation=self._generation
        )
        return encode_message(data, USER_DATA_VERSION, False)

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """Return member id -> partitions. As few partitions as possible change their owner."""
        ownerships = {member.member_id: _earlier(member.subscription) for member in members}
        return balanced(partition_counts, members, owners(ownerships))

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._partitions = tuple(partitions)
        self._generation = generation


class CooperativeStickyAssignor:
    """The assignor "cooperative-sticky". A partition moves in two rebalances: one releases the
    partition, the next assigns it."""

    name: Final = "cooperative-sticky"
    cooperative: Final = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self) -> bytes | None:
        """Return the generation in which this member got its partitions, for subscriptions below
        version 2."""
        return _GENERATION.pack(self._generation)

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """Return member id -> partitions. A partition that has to move is assigned to no member
        while its old owner still reports it as owned."""
        ownerships = {member.member_id: _present(member.subscription) for member in members}
        valid = owners(ownerships)
        found = balanced(partition_counts, members, valid)
        holders: dict[TopicPartition, set[str]] = {}
        for member_id, ownership in ownerships.items():
            for partition in ownership.partitions:
                holders.setdefault(partition, set()).add(member_id)
        for member_id, partitions in found.items():
            partitions[:] = [
                partition
                for partition in partitions
                if valid.get(partition) == member_id or holders.get(partition, set()) <= {member_id}
            ]
        return found

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._generation = generation


def _earlier(subscription: Subscription) -> Ownership:
    """Return the partitions and generation in the user data of a "sticky" member. Malformed user
    data counts as no partitions."""
    for version in (USER_DATA_VERSION, 0):
        try:
            data = decode_message(
                _StickyUserData,
                version,
                False,
                subscription.user_data or b"",
                REQUEST_ELEMENTS_MAX,
            )
        except MalformedInput:
            continue
        partitions = tuple(
            TopicPartition(row.topic, number)
            for row in data.previous_assignment
            for number in row.partitions
        )
        return Ownership(partitions, data.generation)
    return Ownership((), NO_GENERATION)


def _present(subscription: Subscription) -> Ownership:
    """Return the partitions that a "cooperative-sticky" member reports as owned, and the generation
    in which it owned them. Before version 2 of the subscription, the generation is in the user
    data: user data of 4 bytes is the generation, other user data has the format of "sticky"."""
    generation = subscription.generation_id
    data = subscription.user_data or b""
    if generation == NO_GENERATION and len(data) == _GENERATION.size:
        (generation,) = _GENERATION.unpack(data)
    elif generation == NO_GENERATION:
        generation = _earlier(subscription).generation
    return Ownership(subscription.owned_partitions, generation)
