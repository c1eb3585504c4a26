"""Lets a fetch session watch a partition: the session reads the partition again only after a
change."""

from __future__ import annotations

from typing import Protocol


class PartitionWatcher(Protocol):
    """Waits for the next change of a partition."""

    def partition_changed(self) -> None:
        """Called once, at the next change of the watched partition."""


class Watched:
    """Notifies each watcher once, of the next change. Used from the event loop only."""

    def __init__(self) -> None:
        self._watchers: dict[PartitionWatcher, None] = {}

    def watch(self, watcher: PartitionWatcher) -> None:
        """Call `watcher.partition_changed` once, at the next change of the replica's role, leader
        epoch, in-sync replicas, high watermark, log start or log end."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    def changed(self) -> None:
        """Notify all watchers of a change and end their watches. Each method that changes a watched
        value calls this at its end. For a method that runs in a thread, its caller calls this on
        the event loop."""
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for watcher in watchers:
                watcher.partition_changed()
