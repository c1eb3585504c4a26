"""The high watermarks of a broker, as its checkpoints see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pybroker.model import TopicPartition
from pybroker.replication.partition import Partition


class HighWatermarks(Mapping[TopicPartition, int]):
    """Those of some partitions, each as it is when it is asked for: what is written down may not be
    older than what a follower had to give up since."""

    def __init__(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._partitions = partitions

    def __getitem__(self, key: TopicPartition) -> int:
        return self._partitions[key].high_watermark

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)
