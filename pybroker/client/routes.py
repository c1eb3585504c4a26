"""The partitions of a topic as a producer uses them. A key goes to the same partition as with the
Java client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pybroker.client.accumulator import PartitionQueue
from pybroker.client.metadata import TopicInfo
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.ports import Rng
from pybroker.records.record_buffer import partition_of_key


class Route:
    """The partitions of one topic. `queues` has the queues that were used since the last `update`.

    Records without a key go to the queue `sticky` for about `sticky_bytes` bytes, then to another.
    This fills the batches (KIP-480), and gives all partitions equally many bytes (KIP-794).
    """

    __slots__ = (
        "_available", "_open_queue", "_rng", "_sticky_bytes", "_sticky_start", "partition_count",
        "queues", "sticky", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: TopicInfo,
        rng: Rng,
        sticky_bytes: int,
        open_queue: Callable[[TopicPartition], PartitionQueue],
    ) -> None:
        self._rng = rng
        self._sticky_bytes = sticky_bytes
        self._open_queue = open_queue
        self._available: Sequence[int] = ()
        self._sticky_start = 0
        self.sticky: PartitionQueue | None = None
        self.queues: dict[int, PartitionQueue] = {}
        self.update(topic)

    def update(self, topic: TopicInfo) -> None:
        """Replace the metadata of the topic, and clear `queues`. The accumulator still has the
        queues that were in `queues`, and sends their records."""
        self.topic = topic
        self.partition_count = len(topic.partitions)
        self._available = [
            number for number, info in topic.partitions.items() if info.leader != NO_LEADER
        ] or range(self.partition_count)
        self.queues = {}
        if self.sticky is not None and self._number(self.sticky) not in self._available:
            self.sticky = None

    def queue(self, partition: int) -> PartitionQueue:
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = self._open_queue(
                TopicPartition(self.topic.name, partition)
            )
        return queue

    def choose(self, key: bytes | None, size: int) -> PartitionQueue:
        """Return the queue for a record of at most `size` bytes. If the record has a key, only the
        key determines the partition, even if that partition has no leader."""
        if key is not None:
            return self.queue(partition_of_key(key, self.partition_count))
        sticky = self.sticky
        if sticky is None or sticky.bytes_total - self._sticky_start + size > self._sticky_bytes:
            sticky = self.sticky = self.queue(self._next())
            self._sticky_start = sticky.bytes_total
        return sticky

    def _next(self) -> int:
        """Return a random partition number, if possible of a partition that has a leader and is not
        the sticky partition."""
        numbers = self._available
        if self.sticky is None:
            return numbers[self._rng.randrange(len(numbers))]
        if len(numbers) == 1:
            return numbers[0]
        # The last number stands for the current one, so that no list of the others is needed.
        number = numbers[self._rng.randrange(len(numbers) - 1)]
        return numbers[-1] if number == self._number(self.sticky) else number

    @staticmethod
    def _number(queue: PartitionQueue) -> int:
        return queue.topic_partition.partition
