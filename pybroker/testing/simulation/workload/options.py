"""The options of the simulated clients. Their timeouts are short."""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pybroker.client.keywords import CompressionType

CLIENT_OPTIONS: Final[Mapping[str, Any]] = {
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
PRODUCER_OPTIONS: Final[Mapping[str, Any]] = {
    **CLIENT_OPTIONS,
    "delivery_timeout_ms": 15_000,
    "max_block_ms": 3_000,
    "allow_auto_create_topics": False,
}
GROUP_OPTIONS: Final[Mapping[str, Any]] = {
    "session_timeout_ms": 2_000,
    "heartbeat_interval_ms": 500,
    "max_poll_interval_ms": 3_000,
    "auto_commit_interval_ms": 300,
}
"""The client options of group members."""


OUTPUT_TOPIC: Final = "transformed-0"
"""The topic into which loops write. It exists if the workload has loops."""


KEYED_TOPIC: Final = "keyed-0"
"""The compacted topic. It exists if the workload has producers of keyed records."""


class ProducerKind(enum.Enum):
    """The guarantees of a producer, by acks and idempotence."""

    IDEMPOTENT = "idempotent"
    PLAIN = "plain"
    """acks=all without idempotence: values may be stored more than once."""
    LEADER_ONLY = "leader-only"
    """acks=1: a leader may have acknowledged records that no follower has."""
    UNACKNOWLEDGED = "unacknowledged"
    """acks=0."""

    @property
    def acks(self) -> Literal[-1, 0, 1]:
        if self is ProducerKind.LEADER_ONLY:
            return 1
        return 0 if self is ProducerKind.UNACKNOWLEDGED else -1

    @property
    def is_idempotent(self) -> bool:
        return self is ProducerKind.IDEMPOTENT

    @property
    def keeps_order(self) -> bool:
        """Return whether records are stored in the order of sending. With acks=all they are, even
        without idempotence: `pybroker.client.Producer` has one batch in flight per partition."""
        return self.acks == -1


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The options of the simulated clients. Times are in virtual seconds. A time with `mean` in its
    name is the mean of an exponential distribution; 0 means never."""

    topics: int = 1
    partitions: int = 2
    replication: int = 3
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    producers: tuple[ProducerKind, ...] = (ProducerKind.IDEMPOTENT, ProducerKind.PLAIN)
    records_per_s: float = 20.0
    """The number of values that each producer sends in a second."""
    burst_max: int = 4
    linger_ms: int = 5
    batch_bytes: int = 16_384
    codecs: tuple[CompressionType, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
    """The compression codecs from which a producer draws one at each start."""
    padding_bytes_max: int = 200
    """The maximum size in bytes of the padding in a record's key."""
    unanswered_max: int = 100
    """The maximum number of sends of a producer that await a response."""
    readers: int = 1
    askers: int = 1
    groups: int = 0
    """The number of consumer groups. Each group reads all of the first topic."""
    members: int = 3
    """The number of members in each group."""
    late_commits: bool = False
    """Whether members also send commits twice, and commits of their earlier generations."""
    member_life_mean_s: float = 4.0
    """The mean time until a member leaves, is killed, or pauses."""
    offsets_partitions: int = 3
    """The number of partitions of __consumer_offsets."""
    writers: int = 0
    """The number of transactional ids whose producers write to all topics."""
    loops: int = 0
    """The number of transactional ids whose producers write a record for each record that they
    read, and commit the offsets of these records in the same transaction."""
    has_api_transactions: bool = False
    """Whether the clients with transactional ids use `pybroker.client.Producer`. If not, they send
    each request themselves."""
    keyed_writers: int = 0
    """The number of producers that write to the compacted topic; see `keyed.py`."""
    keyed_configs: Mapping[str, str] = field(default_factory=dict)
    """The options of the compacted topic."""
    fetch_wait_ms: int = 50
    fetch_bytes: int = 65_536
    crash_mean_s: float = 0.0
    """The mean time until a client is killed."""
    pause_mean_s: float = 3.0
    """The mean time until a client pauses."""
    pause_s_max: float = 1.0
    churn_mean_s: float = 0.0
    """The mean time between two changes of topics: create, delete, recreate, add partitions."""
    churned_topics_max: int = 2
    election_mean_s: float = 0.0
    """The mean time between two elections of preferred leaders."""
    unclean_mean_s: float = 0.0
    """The mean time between two unclean elections, which may lose records."""

    @property
    def topic_names(self) -> list[str]:
        """Return the topics that exist during the whole run."""
        names = [f"load-{number}" for number in range(self.topics)]
        return [*names, OUTPUT_TOPIC] if self.loops else names

    @property
    def has_transactions(self) -> bool:
        return bool(self.writers or self.loops)

    def partition_choice(self, rng: random.Random, partitions: int) -> int:
        """Return a random partition number below `partitions`, not evenly distributed."""
        return min(rng.randrange(partitions), rng.randrange(partitions))
