"""Watches of a partition: a fetch session looks at a partition again only after a change of it."""

from __future__ import annotations

from typing import Protocol


class PartitionWatcher(Protocol):
    """Waits for the next change of a partition."""

    def partition_changed(self) -> None:
        """The partition has changed. The watch is over."""


class Watched:
    """Tells each watcher once of the next change. Used from the event loop only."""

    def __init__(self) -> None:
        self._watchers: dict[PartitionWatcher, None] = {}

    def watch(self, watcher: PartitionWatcher) -> None:
        """Call `watcher.partition_changed` at the next change of the role, the leader epoch, the
        in-sync replicas, the high watermark, the log start or the log end."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    def changed(self) -> None:
        """End all watches. Each method that changes a watched value calls this afterwards. After a
        method that waits for the disk, its caller does so, on the event loop."""
        if self._watchers:
            watchers, self._watchers = self._watchers, {}
            for watcher in watchers:
                watcher.partition_changed()
