"""The state of a partition that this member owns: the queued records, and the consumed offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pybroker.classic.assignment import ThreadId
from pybroker.client.errors import ClientError
from pybroker.model import TopicPartition
from pybroker.records.consumed import ConsumerRecord


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One owned partition, from the creation of its owner node to its release.

    `stored` is the committed offset. `consumed` is the first offset that a new owner has to read.
    `in_hand` is the offset after the records that the stream returned last.
    """

    topic_partition: TopicPartition
    thread: ThreadId
    sessions_ended: int
    """How many ZooKeeper sessions of this member had ended when it created the owner node
    (`SessionValidity.sessions_ended`)."""
    topic_czxid: int
    """The czxid of the topic's node: a recreated topic of the same name has another czxid."""
    stored: int | None = None
    consumed: int | None = None
    in_hand: int | None = None
    chunks: deque[deque[ConsumerRecord]] = field(default_factory=deque)
    is_open: bool = True
    """Whether the stream may still get records of this partition."""
    released: bool = False
    """Whether the partition's owner node may be deleted, because this member will store no more
    offsets of the partition."""
    searching: bool = False
    """Whether the partition's start position is being looked up."""
    problem: ClientError | None = None
    on_settled: Callable[[], None] = lambda: None
    """Called when the records that the stream returned last count as consumed."""

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        if self.is_open:
            self.chunks.append(deque(records))

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Remove and return up to `limit` queued records."""
        taken: list[ConsumerRecord] = []
        while self.is_open and self.chunks and len(taken) < limit:
            chunk = self.chunks[0]
            while chunk and len(taken) < limit:
                taken.append(chunk.popleft())
            if not chunk:
                self.chunks.popleft()
        if taken:
            self.in_hand = taken[-1].offset + 1
        return taken

    def settle(self) -> None:
        """Treat as consumed the records that `take` has returned most recently."""
        if self.in_hand is not None:
            self._done(self.in_hand)
            self.in_hand = None
            self.on_settled()

    def done_until(self, offset: int) -> None:
        """Count all records below `offset` as consumed."""
        if self.in_hand is not None and offset >= self.in_hand:
            self.settle()
        self._done(offset)

    def shut(self) -> None:
        """Drop the queued records, and make `take` return no records from now on. The next owner
        reads the dropped records again."""
        self.is_open = False
        self.chunks.clear()

    def _done(self, offset: int) -> None:
        self.consumed = offset if self.consumed is None else max(self.consumed, offset)
