"""Reduces a failing simulation schedule to a small one that fails in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.testing.simulation.kinds import BY_NAME
from pybroker.testing.simulation.schedule import FaultEvent, Options, Schedule, fits

Fails = Callable[[Schedule], bool]
_DIGITS: Final = 3
_SHORTEST_S: Final = 0.05
_SMALLER: Final[tuple[tuple[str, float], ...]] = (
    ("readers", 0),
    ("producers", 1),
    ("partitions", 1),
    ("records_per_s", 5.0),
    ("records_per_s", 1.0),
)
"""Names and values of options that make a run smaller. They are tried when no event can be removed
any more."""


@dataclass(slots=True)
class Shrunk:
    """The smallest failing schedule found, and the number of schedules that were run."""

    schedule: Schedule
    runs: int


class _Spent(Exception):
    """The search has run the maximum number of schedules."""


class _Search:
    """A search for a smaller fault schedule whose run still fails. `best` is the smallest such
    schedule so far."""

    def __init__(self, schedule: Schedule, fails: Fails, runs_max: int) -> None:
        self.best = schedule
        self.runs = 0
        self._fails = fails
        self._runs_max = runs_max
        self._tried = {str(schedule)}

    def is_better(self, schedule: Schedule) -> bool:
        """Run the schedule, and return whether it fails. If it fails, store it as `best`. Return
        False without a run if the schedule was tried before, or if its options exclude one of its
        faults."""
        text = str(schedule)
        if text in self._tried or not _is_fair(schedule):
            return False
        if self.runs >= self._runs_max:
            raise _Spent
        self._tried.add(text)
        self.runs += 1
        if self._fails(schedule):
            self.best = schedule
            return True
        return False


def _is_fair(schedule: Schedule) -> bool:
    return all(fits(BY_NAME[event.kind], schedule.options) for event in schedule.events)


def shrink(schedule: Schedule, fails: Fails, *, runs_max: int = 400) -> Shrunk:
    """Return a smaller schedule that still fails, after at most `runs_max` runs. `fails` runs a
    schedule, and returns whether it fails in the same way. `schedule` itself must fail."""
    search = _Search(schedule, fails, runs_max)
    steps = (_fewer_events, _plainer_options, _plainer_events, _smaller_load)
    try:
        before = None
        while before != search.best:
            before = search.best
            for step in steps:
                step(search)
    except _Spent:
        pass
    return Shrunk(search.best, search.runs)


def _fewer_events(search: _Search) -> None:
    """Remove groups of events, first large groups, then smaller ones, while the schedule still
    fails (delta debugging)."""
    parts = 2
    while search.best.events:
        events = search.best.events
        size = max(len(events) // parts, 1)
        for start in range(0, len(events), size):
            rest = events[:start] + events[start + size :]
            if search.is_better(search.best.with_events(rest)):
                parts = max(parts - 1, 2)
                break
        else:
            if size == 1:
                return
            parts = min(2 * parts, len(events))


def _plainer_options(search: _Search) -> None:
    usual = Options()
    for each in dataclasses.fields(Options):
        if each.name == "planted":
            continue
        value, now = getattr(usual, each.name), getattr(search.best.options, each.name)
        is_smaller = each.name in dict(_SMALLER) and now < value
        if now != value and not is_smaller:
            search.is_better(search.best.with_options(**{each.name: value}))


def _plainer_events(search: _Search) -> None:
    for index in range(len(search.best.events)):
        for plainer in _simpler_events(search.best.events[index]):
            _replace(search, index, plainer)
        while (shorter := _shorter(search.best.events[index])) is not None:
            if not _replace(search, index, shorter):
                break


def _simpler_events(event: FaultEvent) -> Iterator[FaultEvent]:
    """Yield simpler variants of an event: without its parameters, and with rounded times."""
    if event.parameters:
        yield dataclasses.replace(event, parameters=())
    for digits in (0, 1):
        at = round(event.at, digits)
        until = event.until if event.until == event.at else round(event.until, digits)
        if 0 <= at <= (at if event.until == event.at else until) and at != event.at:
            yield dataclasses.replace(event, at=at, until=max(at, until))


def _shorter(event: FaultEvent) -> FaultEvent | None:
    half_s = (event.until - event.at) / 2
    if half_s < max(_SHORTEST_S, BY_NAME[event.kind].lasts_s[0]):
        return None
    return dataclasses.replace(event, until=round(event.at + half_s, _DIGITS))


def _replace(search: _Search, index: int, event: FaultEvent) -> bool:
    """Replace an event of the best schedule. If the changed schedule still fails, it becomes the
    best one: return True. Return False otherwise, or if the events would be out of order."""
    changed: Sequence[FaultEvent] = [
        event if number == index else each for number, each in enumerate(search.best.events)
    ]
    if [each.at for each in changed] != sorted(each.at for each in changed):
        return False
    return search.is_better(search.best.with_events(changed))


def _smaller_load(search: _Search) -> None:
    for name, value in _SMALLER:
        if getattr(search.best.options, name) > value:
            search.is_better(search.best.with_options(**{name: value}))
