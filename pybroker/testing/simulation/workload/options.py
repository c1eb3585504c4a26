"""The options of a workload, and the timeouts that keep its clients fast."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

CLIENT_OPTIONS: Final[Mapping[str, int]] = {
    "bootstrap_timeout_ms": 2_000,
    "request_timeout_ms": 2_500,
    "default_api_timeout_ms": 4_000,
    "socket_connection_setup_timeout_ms": 1_500,
    "reconnect_backoff_ms": 50,
    "reconnect_backoff_max_ms": 400,
    "retry_backoff_ms": 60,
    "retry_backoff_max_ms": 400,
    "metadata_max_age_ms": 2_000,
}
PRODUCER_OPTIONS: Final[Mapping[str, int | bool]] = {
    **CLIENT_OPTIONS,
    "delivery_timeout_ms": 15_000,
    "max_block_ms": 3_000,
    "allow_auto_create_topics": False,
}
GROUP_OPTIONS: Final[Mapping[str, int]] = {
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 3_000,
    "auto_commit_interval_ms": 300,
}
"""Of group members."""


class ProducerKind(enum.Enum):
    """The acks mode of a producer, which decides how its values are checked."""

    IDEMPOTENT = "idempotent"
    PLAIN = "plain"
    """acks=all without idempotence: values may be stored more than once."""
    LEADER_ONLY = "leader-only"
    """acks=1: creates log tails that only a leader has."""
    UNACKNOWLEDGED = "unacknowledged"
    """acks=0."""

    @property
    def acks(self) -> int:
        return {ProducerKind.LEADER_ONLY: 1, ProducerKind.UNACKNOWLEDGED: 0}.get(self, -1)

    @property
    def is_idempotent(self) -> bool:
        return self is ProducerKind.IDEMPOTENT

    @property
    def keeps_order(self) -> bool:
        """Whether values keep their order. Our producer keeps it even without idempotence, as it
        has one pending batch per partition.
        """
        return self.acks == -1


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Times are in virtual seconds. Each mean is that of an exponential distribution; 0: never."""

    topics: int = 1
    partitions: int = 2
    replication: int = 3
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    producers: tuple[ProducerKind, ...] = (ProducerKind.IDEMPOTENT, ProducerKind.PLAIN)
    records_per_s: float = 20.0
    """Of each producer."""
    burst_max: int = 4
    linger_ms: int = 5
    batch_bytes: int = 16_384
    codecs: tuple[str, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    """A producer draws one at each start."""
    padding_bytes_max: int = 200
    """The maximum size of the padding in a record's key."""
    unanswered_max: int = 100
    """The maximum number of pending sends of a producer."""
    readers: int = 1
    askers: int = 1
    groups: int = 0
    """The number of consumer groups; each reads all of the first topic."""
    members: int = 3
    """Of each group."""
    member_life_mean_s: float = 4.0
    """The mean time until a member leaves, is killed, or falls silent."""
    offsets_partitions: int = 3
    """Of the topic that the brokers' groups belong to."""
    fetch_wait_ms: int = 50
    fetch_bytes: int = 65_536
    crash_mean_s: float = 0.0
    """The mean lifetime of a client before it is killed."""
    pause_mean_s: float = 3.0
    """The mean working time of a client before it pauses."""
    pause_s_max: float = 1.0
    churn_mean_s: float = 0.0
    """The mean time between two changes of topics: create, delete, recreate, add partitions."""
    churned_topics_max: int = 2
    election_mean_s: float = 0.0
    """The mean time between two elections of preferred leaders."""
    unclean_mean_s: float = 0.0
    """The mean time between two unclean elections, which may lose records."""

    def partition_choice(self, rng: random.Random, partitions: int) -> int:
        """Return a random partition; some are more likely than others."""
        return min(rng.randrange(partitions), rng.randrange(partitions))
