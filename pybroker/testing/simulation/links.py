"""Who reaches whom, how soon, and what happens to what is under way.

A `Pipe` is one direction of a connection: it delivers in order, as TCP does, however the delays
fall. Nothing is ever dropped from its middle: what meets a cut waits until that is healed, and is
lost only with the connection.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pybroker.testing.simulation.world import World

_RETRANSMISSION_S_MAX: Final = 0.2


@dataclass(slots=True)
class Delay:
    """How long a message takes: at least `least_s`, mostly little more, `tail` times in one up to
    `most_s`."""

    least_s: float = 0.0001
    usual_s: float = 0.001
    most_s: float = 0.02
    tail: float = 0.02

    def draw(self, rng: random.Random) -> float:
        top = self.most_s if rng.random() < self.tail else self.usual_s
        return self.least_s + rng.random() * top


class Links:
    """The state of all links between machines, by name; one direction at a time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.usual = Delay()
        self._slow: dict[tuple[str, str], Delay] = {}
        self._cut: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], list[Pipe]] = {}

    def passes(self, source: str, target: str) -> bool:
        return source == target or (source, target) not in self._cut

    def delay(self, source: str, target: str) -> Delay:
        return self._slow.get((source, target), self.usual)

    def cut(self, source: str, targets: Iterable[str]) -> None:
        """What `source` sends to these arrives no more. Cut both ways for a partition."""
        self._cut.update((source, target) for target in targets)

    def heal(self, source: str, targets: Iterable[str]) -> None:
        """What was held goes on its way after a while, as TCP tries again less and less often."""
        for target in targets:
            if (source, target) in self._cut:
                self._cut.remove((source, target))
                for pipe in self._held.pop((source, target), []):
                    pipe.go_on()

    def slow(self, source: str, target: str, delay: Delay | None) -> None:
        """Another delay for one direction; None: the usual one."""
        if delay is None:
            self._slow.pop((source, target), None)
        else:
            self._slow[source, target] = delay

    def heal_all(self) -> None:
        self._slow.clear()
        for source, target in sorted(self._cut):
            self.heal(source, [target])

    def hold(self, pipe: Pipe) -> None:
        """Let the pipe go on once its direction is healed."""
        self._held.setdefault((pipe.source, pipe.target), []).append(pipe)


class Pipe:
    """One direction between two machines. `deliver` gets each item at the target, in order."""

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
        """It arrives later, after all that was sent before, unless the pipe is closed first."""
        self._items.append(item)
        self._post()

    def _post(self) -> None:
        links = self._links
        delay_s = links.delay(self.source, self.target).draw(self._rng)
        self._last = max(self._last, links.world.now + delay_s)
        links.world.at(self._last, self._arrive)

    def close(self) -> None:
        """What is under way is lost. Idempotent."""
        self.closed = True
        self._items.clear()

    def forget(self) -> None:
        """Nobody is left who would send it again: what meets a cut from now on is lost."""
        self._is_forgotten = True
        if self._is_held:
            self.close()

    def go_on(self) -> None:
        self._is_held = False
        if self.closed:
            return
        self._last = self._links.world.now + self._rng.random() * _RETRANSMISSION_S_MAX
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
