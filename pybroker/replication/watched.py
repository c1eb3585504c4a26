"""Notifies fetch sessions of the next change of a partition."""

from __future__ import annotations

from typing import Protocol


class PartitionWatcher(Protocol):
    """Waits for the next change of a partition."""

    def partition_changed(self) -> None:
        """Called once: at the first change of the partition after the call of `Watched.watch`."""


class Watched:
    """Notifies each watcher of the next change of a partition, once. Use this class from the event
    loop only."""

    def __init__(self) -> None:
        self._watchers: dict[PartitionWatcher, None] = {}

    def watch(self, watcher: PartitionWatcher) -> None:
        """Call `watcher.partition_changed` once, at the next change of the replica's role, leader
        epoch, ISR, high watermark, log start offset or log end offset."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    def changed(self) -> None:
        """Notify all watchers of a change, and end their watches. Call it on the event loop."""
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for watcher in watchers:
                watcher.partition_changed()
