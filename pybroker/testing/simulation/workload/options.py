"""What a workload is like, and how its clients are told to be quick."""

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
"""Of who is a member of a group."""


class ProducerKind(enum.Enum):
    """What a producer waits for; its values are judged accordingly."""

    IDEMPOTENT = "idempotent"
    PLAIN = "plain"
    """acks=all without idempotence: values may be stored more than once."""
    LEADER_ONLY = "leader-only"
    """acks=1: makes tails that only a leader has."""
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
        """Ours has one batch of a partition under way unless it is idempotent, too."""
        return self.acks == -1


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Times are virtual seconds; each mean is that of an exponential distribution, 0: never."""

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
    """A record's key has up to so many bytes that say nothing."""
    unanswered_max: int = 100
    """A producer that waits for so many outcomes sends no more until it has some."""
    readers: int = 1
    askers: int = 1
    groups: int = 0
    """Of consumers that read the first topic together, each group all of it."""
    members: int = 3
    """Of each group."""
    member_life_mean_s: float = 4.0
    """How long a member is there until it leaves, is killed, or silent for a while."""
    offsets_partitions: int = 3
    """Of the topic that the brokers' groups belong to."""
    fetch_wait_ms: int = 50
    fetch_bytes: int = 65_536
    crash_mean_s: float = 0.0
    """How long a client lives until it is killed."""
    pause_mean_s: float = 3.0
    """How long a client works until it does nothing for a while."""
    pause_s_max: float = 1.0
    churn_mean_s: float = 0.0
    """Between two changes of topics: created, deleted, created again, grown."""
    churned_topics_max: int = 2
    election_mean_s: float = 0.0
    """Between two elections of preferred leaders."""
    unclean_mean_s: float = 0.0
    """Between two elections of whoever is left, which may lose records."""

    def partition_choice(self, rng: random.Random, partitions: int) -> int:
        """Some partitions get more than others."""
        return min(rng.randrange(partitions), rng.randrange(partitions))
