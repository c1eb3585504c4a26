"""How one partition's log behaves: the topic's configuration as the log and those around it use it.

Only values with their units; reading them from text, bounds and precedence are not done here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.records.batch import TimestampType
from pybroker.records.compression import Codec

NEVER: Final = 2**63 - 1
"""Kafka's "no limit" of times and counts."""
UNLIMITED: Final = -1
"""Kafka's "no limit" of retention."""
_STORED_CODECS: Final[Mapping[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""By the words of `compression.type`."""


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Defaults are those of Kafka 3.9 in ZooKeeper mode. The name in Kafka is given where it
    differs from the field's."""

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    index_size_bytes_max: int = 10 * 1024**2
    """segment.index.bytes: a segment ends when its offset index reaches this."""
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = UNLIMITED
    max_message_bytes: int = 1024**2 + 12
    """Largest batch, as it is on the wire."""
    cleanup_policies: frozenset[str] = frozenset({"delete"})
    """cleanup.policy: any of "delete" and "compact"."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """message.timestamp.type"""
    message_timestamp_before_max_ms: int = NEVER
    message_timestamp_after_max_ms: int = NEVER
    file_delete_delay_ms: int = 60_000
    flush_messages: int = NEVER
    """Records that may be appended before the log is made durable; 1: before each answer."""
    flush_ms: int = NEVER
    min_insync_replicas: int = 1
    unclean_leader_election: bool = False
    """unclean.leader.election.enable"""
    compression_type: str = "producer"
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    without_effect: frozenset[str] = frozenset()
    """Kafka's names of the topic's options that this version does not carry out: the broker has
    warned of them when it took this configuration in."""

    @property
    def stored_codec(self) -> Codec | None:
        """None keeps what came."""
        return _STORED_CODECS[self.compression_type]

    @property
    def deletes(self) -> bool:
        """Whether old records may be removed by age and size."""
        return "delete" in self.cleanup_policies

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policies
