"""The controller's retries of failed work, with one timer for all work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from pybroker.coordinator.controller.channel import Backoff
from pybroker.coordinator.controller.events import Event, Retry
from pybroker.model import TopicPartition


class Retries:
    """The failed work that one controller's term has to repeat. Owns a timer, until `close`.

    `partitions`: the partitions whose state could not be stored. `removals`: True if ZooKeeper
    nodes of a deleted topic remain.
    """

    def __init__(self, enqueue: Callable[[Event], None], backoff: Backoff) -> None:
        self._enqueue = enqueue
        self._backoff = backoff
        self._events: dict[Event, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._attempts = 0
        self.partitions: set[TopicPartition] = set()
        self.removals = False

    def repeat_if(self, failures: Collection[object], event: Event) -> None:
        """Handle `event` again at the next attempt, if `failures` is not empty."""
        if failures:
            self._events[event] = None

    def take(self) -> set[TopicPartition]:
        """Put the waiting events back into the controller's queue. Return the partitions whose
        state could not be stored. Afterwards no work waits for a retry."""
        self._timer = None
        events, self._events = self._events, {}
        for event in events:
            self._enqueue(event)
        keys, self.partitions = self.partitions, set()
        self.removals = False
        return keys

    def schedule(self) -> None:
        """Start the timer if any failed work waits. Call this after each handled event."""
        if not (self.partitions or self._events or self.removals):
            self._attempts = 0
        elif self._timer is None:
            pause_s = self._backoff.pause_s(self._attempts)
            self._attempts += 1
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause_s, self._enqueue, Retry())

    def close(self) -> None:
        """Cancel the timer. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
