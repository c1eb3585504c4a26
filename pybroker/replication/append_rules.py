"""The rules for the batches that producers send to one partition."""

from __future__ import annotations

from pybroker.model import TopicPartition
from pybroker.records.validate import BatchRules
from pybroker.storage.log_config import LogConfig


class AppendRules:
    """Makes the rules from the topic's configuration. It keeps them per version of Produce until
    the configuration changes, as every request needs them."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self._partition = str(topic_partition)
        self._rules: dict[int, BatchRules] = {}
        self._config: LogConfig | None = None

    def of(self, config: LogConfig, api_version: int) -> BatchRules:
        """Return the rules for a batch in a Produce request of that version."""
        if config is not self._config:
            self._config = config
            self._rules.clear()
        rules = self._rules.get(api_version)
        if rules is None:
            rules = self._rules[api_version] = BatchRules(
                max_message_bytes=config.max_message_bytes,
                segment_bytes=config.segment_bytes,
                compacted=config.compacts,
                timestamp_type=config.timestamp_type,
                timestamp_before_max_ms=config.timestamp_before_max_ms,
                timestamp_after_max_ms=config.timestamp_after_max_ms,
                stored_codec=config.stored_codec,
                api_version=api_version,
                partition=self._partition,
            )
        return rules
