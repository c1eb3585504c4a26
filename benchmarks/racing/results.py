"""The results of a race: samples in a JSON file, which the race writes after each measure."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.racing.contestants import APACHE, OURS
from benchmarks.racing.librdkafka import client_name
from integration_tests.maven import KAFKA_VERSION


@dataclass(frozen=True)
class Sample:
    """The figures of one contestant in one round of one measure, by metric."""

    measure: str
    round: int
    contestant: str
    figures: Mapping[str, float]


@dataclass
class Results:
    """All samples of a race so far, the contestants, and the facts about the machine and the time
    (`about`)."""

    about: dict[str, str]
    contestants: list[str]
    samples: list[Sample] = field(default_factory=list)
    warm_up: list[Sample] = field(default_factory=list)
    """The figures of the warm-up rounds. They do not count."""

    def save(self, path: Path) -> None:
        """Write the results to the file `path` atomically."""
        content = {
            "about": self.about,
            "contestants": self.contestants,
            "samples": [vars(sample) for sample in self.samples],
            "warm_up": [vars(sample) for sample in self.warm_up],
        }
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def load(cls, path: Path) -> Results:
        content = json.loads(path.read_text(encoding="utf-8"))
        samples = [Sample(**sample) for sample in content["samples"]]
        warm_up = [Sample(**sample) for sample in content.get("warm_up", [])]
        return cls(content["about"], content["contestants"], samples, warm_up)

    @property
    def others(self) -> list[str]:
        """The contestants other than pybroker and Apache Kafka."""
        return [name for name in self.contestants if name not in (OURS, APACHE)]

    def figures(self, key: str, contestant: str) -> dict[int, float]:
        """Return round -> the contestant's figure, for the metric with this key
        ("measure/metric")."""
        measure, _, metric = key.partition("/")
        return {
            sample.round: sample.figures[metric]
            for sample in self.samples
            if sample.measure == measure
            and sample.contestant == contestant
            and metric in sample.figures
        }

    def ratios(self, key: str, other: str) -> list[float]:
        """Return the ratios of pybroker's figure to the contestant `other`'s figure for the metric
        with this key, in each round that has both."""
        ours, theirs = self.figures(key, OURS), self.figures(key, other)
        return [ours[number] / theirs[number] for number in ours if theirs.get(number)]


@dataclass(frozen=True)
class Spread:
    """The median, the smallest and the largest of several values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread | None:
        if not figures:
            return None
        return cls(statistics.median(figures), min(figures), max(figures))

    def rounded(self) -> list[float]:
        """Return the median, the smallest and the largest value with four significant digits."""
        return [float(f"{figure:.4g}") for figure in (self.median, self.low, self.high)]


def about_this_machine() -> dict[str, str]:
    """Return the facts about this machine that a reader of the results needs."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB",
        "system": f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "apache": f"Apache Kafka {KAFKA_VERSION} in ZooKeeper mode",
        "client": client_name(),
    }
