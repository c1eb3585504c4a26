"""range: divides each topic by itself, into runs of consecutive partitions."""

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
    """The first members of a topic get one partition more if they do not divide evenly. Members of
    topics with equally many partitions get the same numbers of each: joins by key stay on one
    member."""

    name: Final = "range"
    cooperative: Final = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """See `Assignor`."""
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
