"""Runs many seeds of the simulation in several processes, and reports progress."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pybroker.testing.simulation.result import Result
from pybroker.testing.simulation.schedule import Schedule

Simulate = Callable[[Schedule], Result]
"""A function that runs a schedule and returns the result. Another process must be able to import it
by its name."""
TELL_S: Final = 10.0
_RUNS_PER_PROCESS: Final = 400
"""The number of runs after which a new worker process replaces a worker, so that memory leaks stay
small."""


@dataclass(slots=True)
class Tally:
    """The number of runs, their processor time in seconds, and the results of the failed runs."""

    runs: int = 0
    seconds: float = 0.0
    failed: list[Result] = field(default_factory=list)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.seconds += result.seconds
        if not result.is_clean:
            self.failed.append(result)

    def __str__(self) -> str:
        rate = self.runs / self.seconds if self.seconds else 0.0
        return f"{self.runs} seeds, {len(self.failed)} failed, {rate:.2f} seeds/s a core"


def run_many(
    schedules: Iterable[Schedule],
    simulate: Simulate,
    tell: Callable[[str], object],
    *,
    processes: int,
    minutes: float | None = None,
) -> Tally:
    """Run the schedules in `processes` worker processes. Start no run after `minutes`. `tell` gets
    progress lines and the reports of failures."""
    tally = Tally()
    begun = time.monotonic()
    deadline = None if minutes is None else begun + 60 * minutes

    def is_over() -> bool:
        return deadline is not None and time.monotonic() >= deadline

    source = itertools.takewhile(lambda _: not is_over(), schedules)
    with repeatedly(TELL_S, lambda: tell(f"... {tally}, after {time.monotonic() - begun:.0f} s")):
        for result in run_each(source, simulate, processes=processes):
            tally.add(result)
            if not result.is_clean:
                tell(result.report())
    tell(f"{tally}, {time.monotonic() - begun:.0f} s in all")
    return tally


@contextmanager
def repeatedly(seconds: float, call: Callable[[], object]) -> Iterator[None]:
    """Return a context manager with a thread that calls `call` every `seconds`."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run_each(
    schedules: Iterator[Schedule], simulate: Simulate, *, processes: int
) -> Iterator[Result]:
    """Yield the result of each schedule when its run ends. With several processes the order is
    arbitrary."""
    if processes <= 1:
        return map(simulate, schedules)
    return _spread(schedules, simulate, processes)


def _spread(schedules: Iterator[Schedule], simulate: Simulate, processes: int) -> Iterator[Result]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=_RUNS_PER_PROCESS)
    under_way: set[Future[Result]] = set()
    try:
        while True:
            for schedule in itertools.islice(schedules, 2 * processes - len(under_way)):
                under_way.add(pool.submit(simulate, schedule))
            if not under_way:
                return
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
