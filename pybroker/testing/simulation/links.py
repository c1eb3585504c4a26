"""The simulated links between machines: reachability, delays, and data in transit.

A `Pipe` is one direction of a connection, and delivers in order. During a cut, data waits.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pybroker.testing.simulation.environment import Environment

_RETRANSMISSION_S_MAX: Final = 0.2


@dataclass(slots=True)
class Delay:
    """The delay of a message, in seconds: `least_s` plus a random time. The random time is at most
    `usual_s`. For a fraction `tail` of the messages, the limit is `most_s` instead."""

    least_s: float = 0.0001
    usual_s: float = 0.001
    most_s: float = 0.02
    tail: float = 0.02

    def draw(self, rng: random.Random) -> float:
        top = self.most_s if rng.random() < self.tail else self.usual_s
        return self.least_s + rng.random() * top


class Links:
    """The simulated network links between machines, by machine names. Each direction can be cut or
    slow on its own."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.usual = Delay()
        self._slow: dict[tuple[str, str], Delay] = {}
        self._cut: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], list[Pipe]] = {}

    def passes(self, source: str, target: str) -> bool:
        return source == target or (source, target) not in self._cut

    def delay(self, source: str, target: str) -> Delay:
        return self._slow.get((source, target), self.usual)

    def cut(self, source: str, targets: Iterable[str]) -> None:
        """Stop the delivery from `source` to each of `targets`. The delivery from `targets` to
        `source` continues."""
        self._cut.update((source, target) for target in targets)

    def heal(self, source: str, targets: Iterable[str]) -> None:
        """End the cut from `source` to each of `targets`. Waiting data arrives after a random time,
        because TCP waits between retransmissions."""
        for target in targets:
            if (source, target) in self._cut:
                self._cut.remove((source, target))
                for pipe in self._held.pop((source, target), []):
                    pipe.go_on()

    def slow(self, source: str, target: str, delay: Delay | None) -> None:
        """Set the delay from `source` to `target`. None restores the usual delay."""
        if delay is None:
            self._slow.pop((source, target), None)
        else:
            self._slow[source, target] = delay

    def heal_all(self) -> None:
        self._slow.clear()
        for source, target in sorted(self._cut):
            self.heal(source, [target])

    def hold(self, pipe: Pipe) -> None:
        """Register a pipe that waits because its direction is cut. `heal` lets it deliver again."""
        self._held.setdefault((pipe.source, pipe.target), []).append(pipe)


class Pipe:
    """One direction of a simulated connection. `deliver` is called for each item that arrives, in
    the order of sending."""

    __slots__ = (
        "_is_forgotten",
        "_is_held",
        "_items",
        "_last",
        "_links",
        "_rng",
        "closed",
        "deliver",
        "source",
        "target",
    )

    def __init__(
        self,
        links: Links,
        source: str,
        target: str,
        rng: random.Random,
        deliver: Callable[[Any], object],
    ) -> None:
        self.source = source
        self.target = target
        self.deliver = deliver
        self.closed = False
        self._links = links
        self._rng = rng
        self._items: deque[Any] = deque()
        self._last = 0.0
        self._is_held = False
        self._is_forgotten = False

    def send(self, item: object) -> None:
        """Send an item. The item arrives after all earlier items. If the pipe is closed before the
        item arrives, the item is lost."""
        self._items.append(item)
        self._post()

    def _post(self) -> None:
        links = self._links
        delay_s = links.delay(self.source, self.target).draw(self._rng)
        self._last = max(self._last, links.environment.now + delay_s)
        links.environment.at(self._last, self._arrive)

    def close(self) -> None:
        """Drop all items that have not arrived. Idempotent."""
        self.closed = True
        self._items.clear()

    def forget(self) -> None:
        """Retransmit nothing from now on, because the sender has ended. If an item does not arrive
        because the link is cut, this item and all later ones are lost."""
        self._is_forgotten = True
        if self._is_held:
            self.close()

    def go_on(self) -> None:
        self._is_held = False
        if self.closed:
            return
        self._last = self._links.environment.now + self._rng.random() * _RETRANSMISSION_S_MAX
        for _ in range(len(self._items)):
            self._post()

    def _arrive(self) -> None:
        if self.closed or self._is_held or not self._items:
            return
        if not self._links.passes(self.source, self.target):
            if self._is_forgotten:
                self.close()
                return
            self._is_held = True
            self._links.hold(self)
            return
        self.deliver(self._items.popleft())
