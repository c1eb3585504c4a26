"""A partition that this member owns: what waits there for its stream, and how far it was read.

Values and decisions only; nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pybroker.classic.assignment import ThreadId
from pybroker.client.errors import ClientError
from pybroker.client.subscription import ConsumerRecord
from pybroker.model import TopicPartition


@dataclass(slots=True, eq=False)
class OwnedPartition:
    """One partition, from the creation of its owner node to its release.

    `stored` <= `consumed` <= `in_hand`, where each is known: the offset that the group's node holds
    (None: there is no node), the first that may have to be read again, and the one behind the last
    record that the stream was given and has not yet come back from.
    """

    topic_partition: TopicPartition
    thread: ThreadId
    era: int
    """Of the session in which it was claimed, as `SessionValidity.era` counts."""
    topic_czxid: int
    """Tells the topic from a later one of the same name."""
    stored: int | None = None
    consumed: int | None = None
    in_hand: int | None = None
    chunks: deque[deque[ConsumerRecord]] = field(default_factory=deque)
    is_open: bool = True
    """Whether records may still be given."""
    released: bool = False
    """Whether its owner node may be gone: nothing is stored for it any more."""
    searching: bool = False
    """Whether it is being found out where to start."""
    problem: ClientError | None = None
    on_settled: Callable[[], None] = lambda: None
    """Called when the stream comes back from records that it had in hand."""

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        if self.is_open:
            self.chunks.append(deque(records))

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to `limit` records for the stream."""
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
        """The stream has done with what it was given."""
        if self.in_hand is not None:
            self._done(self.in_hand)
            self.in_hand = None
            self.on_settled()

    def done_until(self, offset: int) -> None:
        """The user says that everything below is done with."""
        if self.in_hand is not None and offset >= self.in_hand:
            self.settle()
        self._done(offset)

    def shut(self) -> None:
        """Give nothing more; what waits is read again by the next owner."""
        self.is_open = False
        self.chunks.clear()

    def _done(self, offset: int) -> None:
        self.consumed = offset if self.consumed is None else max(self.consumed, offset)
