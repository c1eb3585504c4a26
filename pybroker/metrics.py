"""Plain counters. Hot paths count here instead of logging; whoever publishes them reads
`snapshot`."""

from __future__ import annotations


class Counter:
    """A number that only grows. `value` may be read and raised from the event loop only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, amount: int = 1) -> None:
        self.value += amount


class Metrics:
    """Counters by name and labels. Asking for one twice gives the same counter."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], Counter] = {}

    def counter(self, name: str, **labels: str) -> Counter:
        key = (name, tuple(sorted(labels.items())))
        found = self._counters.get(key)
        if found is None:
            found = self._counters[key] = Counter()
        return found

    def snapshot(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], int]:
        """(name, sorted labels) -> value."""
        return {key: counter.value for key, counter in self._counters.items()}
