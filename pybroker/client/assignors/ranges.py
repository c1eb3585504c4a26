"""The assignor "range": it assigns consecutive partitions of each topic to each member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.client.assignors.base import (
    Assignments,
    Forgetful,
    GroupMember,
    in_order,
    topics_of,
)
from pybroker.model import TopicPartition


class RangeAssignor(Forgetful):
    """The assignor "range". If the same members subscribe to topics with equal partition counts,
    each member gets the same partition numbers of all these topics (co-partitioning)."""

    name: Final = "range"
    cooperative: Final = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        found: Assignments = {member.member_id: [] for member in members}
        ordered = in_order(members)
        for topic in topics_of(members, partition_counts):
            readers = [member for member in ordered if topic in member.subscription.topics]
            each, extra = divmod(partition_counts[topic], len(readers))
            start = 0
            for index, member in enumerate(readers):
                end = start + each + (index < extra)
                found[member.member_id] += [TopicPartition(topic, n) for n in range(start, end)]
                start = end
        return found
