"""Shows the progress of a run: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

POLL_S: Final = 0.3
LINE_S: Final = 10.0
"""The shortest time between two plain lines of the same stage."""


class Progress(Protocol):
    """Receives the progress of a run."""

    def stage(self, text: str) -> None:
        """Report that a stage begins."""

    def tasks(self, done: int, total: int) -> None:
        """Report that `done` of the `total` Spark tasks known so far have ended."""

    def close(self) -> None:
        """Report that the run has ended."""


class Silent:
    """Ignores all progress."""

    def stage(self, text: str) -> None: ...

    def tasks(self, done: int, total: int) -> None: ...

    def close(self) -> None: ...


class Lines:
    """Prints a line when a stage begins, and further lines while the stage runs."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._stage = ""
        self._last = time.monotonic()

    def stage(self, text: str) -> None:
        self._stage = text
        self._last = time.monotonic()
        self._print(text)

    def tasks(self, done: int, total: int) -> None:
        if time.monotonic() - self._last >= LINE_S:
            self._last = time.monotonic()
            self._print(f"{self._stage}: {done}/{total} tasks")

    def close(self) -> None:
        self._out.flush()

    def _print(self, text: str) -> None:
        print(text, file=self._out, flush=True)


class Terminal:
    """Shows a progress bar."""

    def __init__(self, out: TextIO) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
            console=Console(file=out),
            transient=True,
        )
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def stage(self, text: str) -> None:
        self._bar.reset(self._task, description=text, total=None)

    def tasks(self, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._bar.stop()


def for_stream(out: TextIO) -> Progress:
    """Return a progress bar if the stream is a terminal, plain lines otherwise."""
    return Terminal(out) if out.isatty() else Lines(out)


@contextmanager
def watched(spark: SparkSession, group: str, progress: Progress) -> Iterator[None]:
    """During the block, report the tasks of a Spark job group to `progress`."""
    stop = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(spark, group, progress, stop), name="etl progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(spark: SparkSession, group: str, progress: Progress, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    while not stop.wait(POLL_S):
        done = total = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                found = tracker.getStageInfo(stage)
                if found is not None:
                    done += found.numCompletedTasks
                    total += found.numTasks
        if total:
            progress.tasks(done, total)
