"""The frame of the comparison: a row has several ways to do the same work, and goals for the ratios
of their rates."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import uvloop

T = TypeVar("T")

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@dataclass(frozen=True)
class Setting:
    """The values that every measurement needs. `records` is the number of records that it sends or
    reads."""

    servers: str
    records: int
    partitions: int


@dataclass(frozen=True)
class Way:
    """One way to do the work of a row. `measure` does it once, and returns the rate in records per
    second."""

    name: str
    measure: Callable[[Setting], Awaitable[float]]


@dataclass(frozen=True)
class Goal:
    """The way `ours` is to have at least `factor` times the rate of the way `theirs`."""

    ours: str
    theirs: str
    factor: float


@dataclass(frozen=True)
class Row:
    """A comparison of several ways. `prepare`, if given, runs once before the first measurement of
    the row. A measurement has `times` as many records as the option `--records` says."""

    name: str
    ways: Sequence[Way]
    goals: Sequence[Goal]
    prepare: Callable[[Setting], Awaitable[None]] | None = None
    times: int = 1


def run_row(row: Row, setting: Setting, options: argparse.Namespace) -> None:
    """Measure all ways of the row in every round, and print the result."""
    setting = replace(setting, records=setting.records * row.times)
    rates: dict[str, list[float]] = {way.name: [] for way in row.ways}
    with asyncio.Runner(loop_factory=LOOPS[options.loop]) as runner:
        if row.prepare is not None:
            runner.run(_alone(row.prepare(setting)))
    for number in range(options.rounds):
        ways = row.ways if number % 2 else tuple(reversed(row.ways))
        for way in ways:
            with asyncio.Runner(loop_factory=LOOPS[options.loop]) as runner:
                rates[way.name].append(runner.run(_alone(way.measure(setting))))
    print(row.name)
    for name, values in rates.items():
        print(f"  {name:44}{spread([value / 1e3 for value in values], 0)} k records/s")
    for goal in row.goals:
        pairs = zip(rates[goal.ours], rates[goal.theirs], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        mark = "" if statistics.median(ratios) >= goal.factor else "  below the goal"
        print(
            f"  {goal.ours + ' / ' + goal.theirs:44}{spread(ratios, 2)} x,"
            f" goal {goal.factor:g}{mark}"
        )
    print(flush=True)


async def _alone(work: Awaitable[T]) -> T:
    return await work


def spread(values: Sequence[float], digits: int) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:8.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
