"""The table of a topic's options, and the broker's options that give the defaults. The values that
are set for a topic are its "overrides"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.broker_options import (
    CLEANUP_POLICIES,
    COMPACTION,
    COMPRESSION_TYPES,
    DELETION,
    LONG_MAX,
    TIMESTAMP_TYPES,
)
from pybroker.config.declaration import (
    SUGGESTIONS_MAX,
    VALUE_BYTES_MAX,
    Option,
    Value,
    boolean,
    double,
    fits_in_message,
    integer,
    listing,
    long,
    nearest_name,
    options_of,
    parse_values,
    shortened,
    string,
)
from pybroker.config.kafka_versions import VERSION, VERSION_SHAPE
from pybroker.errors import ConfigError

_COMPACTION_LAGS: Final = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_REPLICA: Final = r"\*|[0-9]+:[0-9]+"
_REPLICA_SHAPE: Final = "PARTITION:BROKER,PARTITION:BROKER or *"
_NOT_THROTTLED: Final = "replication is not throttled"
_TIERED: Final = ("remote.", "local.retention.")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The values of all options of one topic. `TopicConfig()` has Kafka's defaults."""

    # fmt: off
    cleanup_policy: tuple[str, ...] = listing("cleanup.policy", ("delete",), "What happens to old records: delete removes them by age and size, compact keeps only the last record of each key.", choices=CLEANUP_POLICIES, inherits=("log.cleanup.policy",))
    compression_type: str = string("compression.type", "producer", "The compression codec in which batches are stored; producer means that each batch keeps the producer's codec.", choices=COMPRESSION_TYPES, inherits=("compression.type",))
    compression_gzip_level: int = integer("compression.gzip.level", -1, "The compression level with which the broker compresses batches with gzip; -1 means the codec's default.", minimum=-1, maximum=9, excluded=(0,), inherits=("compression.gzip.level",))
    compression_lz4_level: int = integer("compression.lz4.level", 9, "The compression level with which the broker compresses batches with lz4.", minimum=1, maximum=17, inherits=("compression.lz4.level",))
    compression_zstd_level: int = integer("compression.zstd.level", 3, "The compression level with which the broker compresses batches with zstd.", minimum=-131_072, maximum=22, inherits=("compression.zstd.level",))
    delete_retention_ms: int = long("delete.retention.ms", 86_400_000, "How long a compacted topic keeps the tombstones of deleted keys.", minimum=0, inherits=("log.cleaner.delete.retention.ms",))
    file_delete_delay_ms: int = long("file.delete.delay.ms", 60_000, "How long the files of a deleted segment stay on disk, under another name, before they are removed.", minimum=0, inherits=("log.segment.delete.delay.ms",))
    flush_messages: int = long("flush.messages", LONG_MAX, "The number of new records after which a partition's log is synced to disk. With 1 each write is synced before it is acknowledged.", minimum=1, inherits=("log.flush.interval.messages",))
    flush_ms: int = long("flush.ms", LONG_MAX, "The maximum time before a new record is synced to disk.", minimum=0, inherits=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"), inherited="flush_ms")
    follower_replication_throttled_replicas: tuple[str, ...] = listing("follower.replication.throttled.replicas", (), "The followers (PARTITION:BROKER) whose replication the broker's quota throttles; * means all.", pattern=_REPLICA, shape=_REPLICA_SHAPE, effective=False, instead=_NOT_THROTTLED)
    index_interval_bytes: int = integer("index.interval.bytes", 4096, "How many bytes of the log are between two entries of an index.", minimum=0, inherits=("log.index.interval.bytes",))
    leader_replication_throttled_replicas: tuple[str, ...] = listing("leader.replication.throttled.replicas", (), "The leaders (PARTITION:BROKER) whose replication the broker's quota throttles; * means all.", pattern=_REPLICA, shape=_REPLICA_SHAPE, effective=False, instead=_NOT_THROTTLED)
    max_compaction_lag_ms: int = long("max.compaction.lag.ms", LONG_MAX, "The maximum age of an uncompacted record. If a log has an older uncompacted record, the log is compacted, even if few of its bytes are uncompacted.", minimum=1, inherits=("log.cleaner.max.compaction.lag.ms",))
    max_message_bytes: int = integer("max.message.bytes", 1_048_588, "The maximum size, in bytes, of a record batch that a producer sends. For a compressed batch the compressed size counts.", minimum=0, inherits=("message.max.bytes",))
    message_downconversion_enable: bool = boolean("message.downconversion.enable", True, "Whether batches are converted to an older message format for old clients.", inherits=("log.message.downconversion.enable",), effective=False, instead="all clients get batches in the newest format")
    message_format_version: str = string("message.format.version", "3.0-IV1", "Without effect since Kafka 3.0: batches always have the newest message format.", pattern=VERSION, shape=VERSION_SHAPE, inherits=("log.message.format.version",), effective=False, instead="batches are always of the newest format")
    message_timestamp_after_max_ms: int = long("message.timestamp.after.max.ms", LONG_MAX, "How far in the future the timestamp of a new record may be. A record with a later timestamp is rejected.", minimum=0, inherits=("log.message.timestamp.after.max.ms",))
    message_timestamp_before_max_ms: int = long("message.timestamp.before.max.ms", LONG_MAX, "How far in the past the timestamp of a new record may be. A record with an earlier timestamp is rejected.", minimum=0, inherits=("log.message.timestamp.before.max.ms",))
    message_timestamp_difference_max_ms: int = long("message.timestamp.difference.max.ms", LONG_MAX, "Deprecated in Kafka. If message.timestamp.before.max.ms is not set, this option limits timestamps in the past. If message.timestamp.after.max.ms is not set, this option limits timestamps in the future.", minimum=0, inherits=("log.message.timestamp.difference.max.ms",))
    message_timestamp_type: str = string("message.timestamp.type", "CreateTime", "Whether records keep the producer's timestamp or get the time at which the broker appends them.", choices=TIMESTAMP_TYPES, inherits=("log.message.timestamp.type",))
    min_cleanable_dirty_ratio: float = double("min.cleanable.dirty.ratio", 0.5, "A log is compacted again when more than this share (0 to 1) of its bytes has not been compacted yet.", minimum=0, maximum=1, inherits=("log.cleaner.min.cleanable.ratio",))
    min_compaction_lag_ms: int = long("min.compaction.lag.ms", 0, "The minimum age of a record that is compacted. Younger records are left for a later run of the log cleaner.", minimum=0, inherits=("log.cleaner.min.compaction.lag.ms",))
    min_insync_replicas: int = integer("min.insync.replicas", 1, "The minimum number of in-sync replicas. If a partition has fewer, a write with acks=all is rejected.", minimum=1, inherits=("min.insync.replicas",))
    preallocate: bool = boolean("preallocate", False, "Whether the disk space of a new segment is allocated at once.", inherits=("log.preallocate",), effective=False, instead="the files of a segment grow as they are written")
    retention_bytes: int = long("retention.bytes", -1, "The maximum size, in bytes, of a partition's log. Above this size the oldest segments are deleted; -1 means no limit.", inherits=("log.retention.bytes",))
    retention_ms: int = long("retention.ms", 604_800_000, "The age at which a segment is deleted; -1 means never.", minimum=-1, inherits=("log.retention.ms", "log.retention.minutes", "log.retention.hours"), inherited="retention_ms")
    segment_bytes: int = integer("segment.bytes", 1 << 30, "The size, in bytes, at which a segment is closed and the log begins a new one.", minimum=14, inherits=("log.segment.bytes",))
    segment_index_bytes: int = integer("segment.index.bytes", 10_485_760, "The maximum size, in bytes, of a segment's offset index, and of its time index.", minimum=4, inherits=("log.index.size.max.bytes",))
    segment_jitter_ms: int = long("segment.jitter.ms", 0, "Each segment is closed earlier than at its maximum age, by a random time of up to this value. This keeps many logs from beginning new segments at the same time.", minimum=0, inherits=("log.roll.jitter.ms", "log.roll.jitter.hours"), inherited="roll_jitter_ms")
    segment_ms: int = long("segment.ms", 604_800_000, "The age at which a segment is closed and the log begins a new one.", minimum=1, inherits=("log.roll.ms", "log.roll.hours"), inherited="roll_ms")
    unclean_leader_election_enable: bool = boolean("unclean.leader.election.enable", False, "Whether the controller may elect an out-of-sync replica as leader if no in-sync replica is alive. Such an election may lose committed records.", inherits=("unclean.leader.election.enable",))
    # fmt: on

    overrides: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The options that are set for the topic itself: name -> text."""

    @classmethod
    def parse(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> Self:
        """Return the options in force for a topic with `overrides` (name -> text). Raise
        ConfigError with all faults of `overrides`."""
        values, faults = _parse(broker, overrides)
        if faults:
            raise ConfigError(list(faults.values()))
        return cls(**values, overrides=dict(overrides))

    @property
    def values(self) -> dict[str, Value]:
        """Option name -> value, for every option of a topic."""
        return {name: getattr(self, row.attribute) for name, row in TOPIC_OPTIONS.items()}

    @property
    def texts(self) -> dict[str, str]:
        """Option name -> value as text, for every option of a topic."""
        return {name: row.format(self.values[name]) or "" for name, row in TOPIC_OPTIONS.items()}

    @property
    def timestamp_before_max_ms(self) -> int:
        """How far in the past (ms) a record's timestamp may be: message.timestamp.before.max.ms if
        it is set, else message.timestamp.difference.max.ms."""
        if self.message_timestamp_before_max_ms != LONG_MAX:
            return self.message_timestamp_before_max_ms
        return self.message_timestamp_difference_max_ms

    @property
    def timestamp_after_max_ms(self) -> int:
        """How far in the future (ms) a record's timestamp may be: message.timestamp.after.max.ms if
        it is set, else message.timestamp.difference.max.ms."""
        if self.message_timestamp_after_max_ms != LONG_MAX:
            return self.message_timestamp_after_max_ms
        return self.message_timestamp_difference_max_ms

    @property
    def deletes(self) -> bool:
        """Whether cleanup.policy contains delete: old records are deleted by age and size."""
        return DELETION in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return COMPACTION in self.cleanup_policy


TOPIC_OPTIONS: Final[Mapping[str, Option]] = options_of(TopicConfig)
"""Option name -> declaration, for all options of a topic."""


def topic_config_faults(broker: BrokerConfig, overrides: Mapping[str, str | None]) -> list[str]:
    """Return a sentence for each fault of the options in `overrides`. A value None is a fault,
    too."""
    missing = [
        f"{name}: the value is missing (null)" for name, text in overrides.items() if text is None
    ]
    given = {name: text for name, text in overrides.items() if text is not None}
    return missing + list(_parse(broker, given)[1].values())


def usable_overrides(
    broker: BrokerConfig, overrides: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Return the valid values in `overrides`, and a sentence for each fault. `overrides` maps each
    option that is set for a topic to its text."""
    usable = dict(overrides)
    problems: list[str] = []
    while (faults := _parse(broker, usable)[1]) and faults.keys() & usable.keys():
        # The remaining overrides are checked again, since they must fit the broker's values.
        usable = {name: text for name, text in usable.items() if name not in faults}
        problems += faults.values()
    return usable, problems


def _parse(
    broker: BrokerConfig, overrides: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return attribute -> value for the options that are set or inherited, and option name -> fault
    for the invalid `overrides`."""
    own, faults = parse_values(TOPIC_OPTIONS, overrides)
    for name, text in overrides.items():
        if name in TOPIC_OPTIONS and not fits_in_message(text):
            faults[name] = f"{name}: the value has more than {VALUE_BYTES_MAX} bytes"
    for number, name in enumerate(name for name in overrides if name not in TOPIC_OPTIONS):
        faults[name] = _unknown(name, suggests=number < SUGGESTIONS_MAX)
    inherited = {
        row.attribute: getattr(broker, attribute)
        for row in TOPIC_OPTIONS.values()
        if (attribute := row.inherited_attribute) is not None
    }
    values = inherited | own
    shortest = values.get("min_compaction_lag_ms", 0)
    longest = values.get("max_compaction_lag_ms", LONG_MAX)
    if shortest > longest:
        # The message names the topic's own value: the other one may be the broker's.
        name = min(_COMPACTION_LAGS, key=lambda lag: lag not in overrides)
        faults[name] = (
            f"min.compaction.lag.ms={shortest}: expected at most max.compaction.lag.ms={longest}"
        )
    return values, faults


def _unknown(name: str, *, suggests: bool) -> str:
    if name.startswith(_TIERED):
        return f"{shortened(name)}: this broker has no tiered storage"
    meant = nearest_name(name, TOPIC_OPTIONS) if suggests else None
    suggestion = f"; did you mean {meant}?" if meant else ""
    return f"Unknown topic config name: {shortened(name)}{suggestion}"
