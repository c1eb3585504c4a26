"""Whether a leader knows that nobody else leads, and has gone on.

The controller may have elected another one while it could not reach this broker. That one, in sync
for all that is stored, gives this broker replica.lag.time.max.ms to be heard of before it commits
anything without it; unless the controller counted this broker among the lost, as it does with who
would rather not lead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from pybroker.model import TopicPartition
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition

LeadNow = Callable[[Sequence[Partition]], Awaitable[Collection[TopicPartition]]]
"""Asks ZooKeeper of which of these the replica here is the leader that is stored."""


def would_hand_over(replicas: ReplicaManager, partition: Partition) -> bool:
    """Whether this leader has asked for another one, who may lead by now. That one waits for
    nothing: the controller counts who would rather not lead, or leaves, among the lost."""
    # Of a successor that was found before that, those who follow it have told nothing since.
    last_s = 2 * replicas.lag_max_s
    has_asked = replicas.leadership_yield.has_asked(partition.topic_partition, last_s)
    return has_asked and partition.led_version is not None


def has_heard_all(replicas: ReplicaManager, partition: Partition) -> bool:
    """Whether each who may have been elected was heard of as a follower, or else ZooKeeper was
    asked, within replica.lag.time.max.ms."""
    return partition.certainly_leads(replicas.clock.monotonic(), replicas.lag_max_s)
