"""The assignor "roundrobin": it assigns the partitions of all topics to the members in turn."""

from __future__ import annotations

import itertools
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


class RoundRobinAssignor(Forgetful):
    """The assignor "roundrobin": it gives each partition of all topics to the next member, in a
    circle. A member that does not subscribe to the partition's topic is skipped. The assignment is
    balanced if all members read the same topics."""

    name: Final = "roundrobin"
    cooperative: Final = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        """Return the partitions of each member, by member id, as `Assignor.assign` describes."""
        found: Assignments = {member.member_id: [] for member in members}
        turns = itertools.cycle(in_order(members))
        for topic in topics_of(members, partition_counts):
            for number in range(partition_counts[topic]):
                member = next(m for m in turns if topic in m.subscription.topics)
                found[member.member_id].append(TopicPartition(topic, number))
        return found
