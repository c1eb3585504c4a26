"""The configuration of one partition's log: the options of its topic as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.config.topic_config import TopicConfig
from pybroker.records.batch import TimestampType
from pybroker.records.compression import Codec

NEVER: Final = 2**63 - 1
"""Kafka's value for "no limit" in options that are a time or a count."""
UNLIMITED: Final = -1
"""Kafka's value for "no limit" in the retention options."""
_TIMESTAMP_TYPES: Final[Mapping[str, TimestampType]] = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}
"""Value of the option `message.timestamp.type` -> its enum."""
_STORED_CODECS: Final[Mapping[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""Value of the option `compression.type` -> its codec; None keeps the producer's codec."""


@dataclass(frozen=True, slots=True)
class LogConfig(TopicConfig):
    """The configuration of one partition's log. `LogConfig()` has Kafka's defaults."""

    @property
    def timestamp_type(self) -> TimestampType:
        return _TIMESTAMP_TYPES[self.message_timestamp_type]

    @property
    def stored_codec(self) -> Codec | None:
        """The codec with which the broker stores batches; None keeps the producer's codec."""
        return _STORED_CODECS[self.compression_type]

    def level_of(self, codec: int) -> int | None:
        """Return the level with which the broker compresses batches of this codec; None for codecs
        without levels."""
        if codec == Codec.GZIP:
            return self.compression_gzip_level
        if codec == Codec.LZ4:
            return self.compression_lz4_level
        return self.compression_zstd_level if codec == Codec.ZSTD else None
