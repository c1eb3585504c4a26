"""The high watermarks of a broker's partitions, for its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pybroker.model import TopicPartition
from pybroker.replication.partition import Partition


class HighWatermarks(Mapping[TopicPartition, int]):
    """Partition -> current high watermark. Each access reads the current value."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._partitions = partitions

    def __getitem__(self, key: TopicPartition) -> int:
        return self._partitions[key].high_watermark

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
