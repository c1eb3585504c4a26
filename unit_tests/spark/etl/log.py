"""A topic and a job without a broker and without Spark. The log is a sequence of numbers; an output
file contains the numbers of its range."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pybroker.clock import ManualClock
from pybroker.spark.etl.exactly_once import Places, Runner, Written
from pybroker.spark.etl.files import Files
from pybroker.spark.etl.layout import AttemptName
from pybroker.spark.etl.manifest import Commit, Json, Owner, Plan
from pybroker.spark.etl.store import Store


def rows_in(path: Path) -> list[int]:
    assert (path.parent / f".{path.name}.crc").read_text() == "sum"
    return [int(line) for line in path.read_text().split()]


@dataclass
class Log:
    """A partition of a topic. `end` is its log end offset."""

    end: int = 0

    def propose(self, last: Commit | None) -> Json | None:
        start = last.snapshot["end"] if last else 0
        return {"start": start, "end": self.end} if self.end > start else None


@dataclass
class Job:
    """One process that runs the job `numbers`. Every tenth number is a dead letter."""

    output: Path
    files: Files | None = None
    attempts: list[AttemptName] = field(default_factory=list)
    before_end: Any = None

    @property
    def store(self) -> Store:
        return Store(self.output, self.files)

    @property
    def runner(self) -> Runner:
        return Runner(
            store=self.store,
            owner=Owner("numbers", "append"),
            places=Places(self.output),
            clock=ManualClock(),
            count_rows=lambda path: len(rows_in(path)),
        )

    def write(self, plan: Plan, name: AttemptName) -> Written:
        self.attempts.append(name)
        numbers = range(plan.snapshot["start"], plan.snapshot["end"])
        bad = [number for number in numbers if number % 10 == 9]
        places = self.runner.places
        for folder, held in (
            (places.data(name), [number for number in numbers if number % 10 != 9]),
            (places.letters(name), bad),
        ):
            for half, part in enumerate((held[: len(held) // 2], held[len(held) // 2 :])):
                path = folder / f"half={half}" / "part-0.parquet"
                path.parent.mkdir(parents=True)
                path.write_text("\n".join(map(str, part)))
                (path.parent / f".{path.name}.crc").write_text("sum")
        if self.before_end:
            self.before_end()
        return Written({}, len(numbers), len(numbers) - len(bad), {"a nine": len(bad)}, len(bad))

    def run(self, log: Log) -> bool:
        """Execute one run. Return whether there were new records."""
        plan = self.runner.next_plan(log.propose)
        if plan is not None:
            self.runner.run(plan, self.write)
        return plan is not None


def visible(output: Path) -> list[int]:
    """Return all rows that a reader of the output sees, in the order of commits and offsets."""
    found = []
    for commit in Store(output).commits():
        letters = commit.dead_letters
        files = [output / file.path for file in commit.files]
        files += [output / letters.folder / file.path for file in letters.files] if letters else []
        found.append(sorted(itertools.chain.from_iterable(rows_in(path) for path in files)))
    return list(itertools.chain.from_iterable(found))


def documents(output: Path) -> list[Any]:
    """Return the parsed content of every document that is stored under its final name."""
    return [json.loads(path.read_bytes()) for path in (output / "_pybroker").rglob("[!.]*.json")]
