"""What a controller tries again later, and when: one timer for all of it.

A failure is no reason to forget what was asked for; it waits here until the next attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from pybroker.coordinator.controller.channel import Backoff
from pybroker.coordinator.controller.events import Event, Retry
from pybroker.model import TopicPartition


class Retries:
    """Of one term. Owns a timer, until `close`.

    `partitions` are those whose state could not be stored; `removals`: whether nodes of a deleted
    topic could not be removed.
    """

    def __init__(self, enqueue: Callable[[Event], None], backoff: Backoff) -> None:
        self._enqueue = enqueue
        self._backoff = backoff
        self._events: dict[Event, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._attempts = 0
        self.partitions: set[TopicPartition] = set()
        self.removals = False

    def repeat_if(self, reasons: Collection[object], event: Event) -> None:
        """Handle `event` once more if there is a reason."""
        if reasons:
            self._events[event] = None

    def take(self) -> set[TopicPartition]:
        """It is time: the events are queued again; gives the partitions to try again."""
        self._timer = None
        events, self._events = self._events, {}
        for event in events:
            self._enqueue(event)
        keys, self.partitions = self.partitions, set()
        self.removals = False
        return keys

    def schedule(self) -> None:
        """To be called at the end of each round."""
        if not (self.partitions or self._events or self.removals):
            self._attempts = 0
        elif self._timer is None:
            pause_s = self._backoff.pause_s(self._attempts)
            self._attempts += 1
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(pause_s, self._enqueue, Retry())

    def close(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
