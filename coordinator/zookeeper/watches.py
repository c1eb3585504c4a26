"""The watches that a session has set and that have not fired yet."""

from __future__ import annotations

from pybroker.ports import Watch, WatchEvent, WatchKind


class WatchTable:
    """One-shot watches by path. A callback set several times for the same path and kind fires once.
    Callbacks fire in the order in which they were set."""

    def __init__(self) -> None:
        self._data: dict[str, dict[Watch, None]] = {}
        self._child: dict[str, dict[Watch, None]] = {}
        self._missing: set[str] = set()

    def add_data(self, path: str, watch: Watch, *, exists: bool = True) -> None:
        """Add a watch that fires when the node is created, changed or deleted. `exists`: whether
        the node exists. The method `existing` returns the paths of existing nodes, and `missing`
        all other paths."""
        self._data.setdefault(path, {})[watch] = None
        if exists:
            self._missing.discard(path)
        else:
            self._missing.add(path)

    def add_child(self, path: str, watch: Watch) -> None:
        """Add a watch that fires when a child is created or deleted, or the node is deleted."""
        self._child.setdefault(path, {})[watch] = None

    def take(self, event: WatchEvent) -> list[Watch]:
        """Remove and return the watches that this event fires."""
        fired: dict[Watch, None] = {}
        if event.kind is not WatchKind.CHILD:
            fired.update(self._data.pop(event.path, {}))
            self._missing.discard(event.path)
        if event.kind in (WatchKind.CHILD, WatchKind.DELETED):
            fired.update(self._child.pop(event.path, {}))
        return list(fired)

    def existing(self) -> list[str]:
        """Return the paths of data watches on existing nodes."""
        return [path for path in self._data if path not in self._missing]

    def missing(self) -> list[str]:
        """Return the paths of data watches on missing nodes."""
        return [path for path in self._data if path in self._missing]

    def parents(self) -> list[str]:
        """Return the paths with a child watch."""
        return list(self._child)

    def clear(self) -> None:
        self._data.clear()
        self._child.clear()
        self._missing.clear()
