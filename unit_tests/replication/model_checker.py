"""Breadth-first search through all worlds of a model: it finds a shortest way to a violation."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from unit_tests.replication.model import Model
from unit_tests.replication.model_worlds import Violation, World


class Found(NamedTuple):
    """The result of a search. `trace` is the shortest sequence of events that leads to a violation,
    one event a line. It is empty if no reachable world has a violation."""

    worlds: int
    trace: list[str]


def search(model: Model, worlds_max: int = 5_000_000) -> Found:
    """Check every reachable world, and return the result. Raises RuntimeError if there are more
    than the limit."""
    first = model.begin()
    came_from: dict[World, tuple[World, str] | None] = {first: None}
    waiting = deque([first])
    while waiting:
        world = waiting.popleft()
        try:
            model.check(world)
            for label, following in model.steps(world):
                if following not in came_from:
                    came_from[following] = (world, label)
                    waiting.append(following)
        except Violation as violation:
            return Found(len(came_from), [*_path(came_from, world), f"=> {violation}"])
        if len(came_from) > worlds_max:
            raise RuntimeError(f"more than {worlds_max} worlds")
    return Found(len(came_from), [])


def _path(came_from: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    steps = []
    step = came_from[world]
    while step is not None:
        world, label = step
        steps.append(label)
        step = came_from[world]
    return steps[::-1]
