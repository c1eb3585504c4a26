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
    """The assignor "roundrobin". Members that do not subscribe to a partition's topic are
    skipped."""

    name: Final = "roundrobin"
    cooperative: Final = False

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[GroupMember]
    ) -> Assignments:
        found: Assignments = {member.member_id: [] for member in members}
        turns = itertools.cycle(in_order(members))
        for topic in topics_of(members, partition_counts):
            for number in range(partition_counts[topic]):
                member = next(m for m in turns if topic in m.subscription.topics)
                found[member.member_id].append(TopicPartition(topic, number))
        return found
