"""The rules for the batches that producers send to one partition."""

from __future__ import annotations

from pybroker.model import TopicPartition
from pybroker.records.validate import BatchRules
from pybroker.storage.log_config import LogConfig


class AppendRules:
    """The rules for the batches that producers send to one partition, cached for each version of
    the Produce API until the topic configuration changes."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._partition = str(topic_partition)
        self._rules: dict[int, BatchRules] = {}
        self._config: LogConfig | None = None

    def of(self, config: LogConfig, api_version: int) -> BatchRules:
        """Return the rules for a batch in a Produce request of version `api_version`."""
        if config is not self._config:
            self._config = config
            self._rules.clear()
        rules = self._rules.get(api_version)
        if rules is None:
            stored = config.stored_codec
            rules = self._rules[api_version] = BatchRules(
                max_message_bytes=config.max_message_bytes,
                segment_bytes=config.segment_bytes,
                compacted=config.compacts,
                timestamp_type=config.timestamp_type,
                timestamp_before_max_ms=config.timestamp_before_max_ms,
                timestamp_after_max_ms=config.timestamp_after_max_ms,
                stored_codec=stored,
                stored_level=None if stored is None else config.level_of(stored),
                api_version=api_version,
                partition=self._partition,
            )
        return rules
