"""Measures how often random seeds detect each planted bug.

A measurement takes thousands of runs of some seconds each. Every result is stored as a line of a
file, so that an interrupted measurement continues. A line contains the checksum of its seed's
schedule: if the schedule has changed, the seed runs again. Changes of the broker are not detected:
start a new file after a change of the broker.
"""

from __future__ import annotations

import itertools
import statistics
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pybroker.testing.simulation.many import TELL_S, Simulate, Tally, repeatedly, run_each
from pybroker.testing.simulation.result import Result
from pybroker.testing.simulation.schedule import Schedule
from pybroker.testing.simulation.swarm import generate

_NOTHING: Final = "-"
_RULES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class SeedRun:
    """The run of one seed with one planted bug. `seconds` is processor time; `rules` are the
    violated rules.
    """

    planted: str
    seed: str
    checksum: str
    """The checksum of the schedule."""
    seconds: float
    rules: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.planted, self.seed, self.checksum

    def __str__(self) -> str:
        rules = ",".join(self.rules) or _NOTHING
        return f"{self.planted} {self.seed} {self.checksum} {self.seconds:.3f} {rules}"

    @classmethod
    def parse(cls, line: str) -> SeedRun:
        """Return the run that a line of the file describes. Raises ValueError for another line."""
        planted, seed, checksum, seconds, rules = line.split()
        broken = () if rules == _NOTHING else tuple(rules.split(","))
        return cls(planted, seed, checksum, float(seconds), broken)

    @classmethod
    def of(cls, result: Result) -> SeedRun:
        schedule, rules = result.schedule, tuple(sorted(result.rules))
        planted = schedule.options.planted
        return cls(planted, schedule.seed, _checksum(schedule), result.seconds, rules)


def measure(
    simulate: Simulate,
    names: Sequence[str],
    seeds: Iterable[int],
    file: Path,
    tell: Callable[[str], object],
    *,
    processes: int,
) -> None:
    """Run all bugs with one seed, then with the next seed, and append the results to `file`.
    Results that the file has are not run again. Report the table at the end. Raises OSError.
    """
    wanted = [str(seed) for seed in seeds]
    known = {each.key for each in read(file)}
    every = itertools.starmap(_planted, itertools.product(wanted, names))
    schedules = (schedule for schedule in every if _key(schedule) not in known)
    _cut_off(file)
    tally = Tally()
    with (
        file.open("a", encoding="utf-8") as lines,
        repeatedly(TELL_S, lambda: tell(f"... {tally.runs} runs more")),
    ):
        for result in run_each(schedules, simulate, processes=processes):
            lines.write(f"{SeedRun.of(result)}\n")
            lines.flush()
            tally.add(result)
    valid = {_key(_planted(seed, name)) for seed, name in itertools.product(wanted, names)}
    tell(table(names, [each for each in read(file) if each.key in valid]))


def read(file: Path) -> list[SeedRun]:
    """Return the stored results; none if the file does not exist. An incomplete last line is
    ignored.
    """
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole, _, _ = text.rpartition("\n")
    return [SeedRun.parse(line) for line in whole.splitlines()]


def _cut_off(file: Path) -> None:
    """Remove an incomplete last line from the file."""
    if file.exists():
        whole, end, _ = file.read_bytes().rpartition(b"\n")
        file.write_bytes(whole + end)


def table(names: Sequence[str], tries: Iterable[SeedRun]) -> str:
    """Return a line per bug: the numbers of seeds and of detections, their ratio, the time to
    detect it, and how often each rule was violated.
    """
    by_name: dict[str, list[SeedRun]] = {name: [] for name in names}
    for each in tries:
        by_name[each.planted].append(each)
    lines = [f"{'planted bug':34}{'seeds':>6}{'found':>6}{'share':>8}{'median s':>9}  rules"]
    return "\n".join([*lines, *(_row(name, found) for name, found in by_name.items())])


def _row(name: str, tries: Sequence[SeedRun]) -> str:
    found = sum(bool(each.rules) for each in tries)
    share = f"{100 * found / len(tries):.2f}%" if tries else _NOTHING
    times = [*_seconds_to_find(tries)]
    median = f"{statistics.median(times):.1f}" if times else _NOTHING
    counts = Counter(rule for each in tries for rule in each.rules).most_common()
    words = [f"{rule} {count}" for rule, count in counts[:_RULES_SHOWN]]
    if len(counts) > _RULES_SHOWN:
        words.append(f"and {len(counts) - _RULES_SHOWN} more")
    return f"{name:34}{len(tries):6}{found:6}{share:>8}{median:>9}  {', '.join(words) or _NOTHING}"


def _seconds_to_find(tries: Sequence[SeedRun]) -> Iterator[float]:
    """Yield the processor time from each detection to the next, and from the start to the first."""
    spent = 0.0
    for each in sorted(tries, key=lambda each: (len(each.seed), each.seed)):
        spent += each.seconds
        if each.rules:
            yield spent
            spent = 0.0


def _planted(seed: str, name: str) -> Schedule:
    return generate(seed).with_options(planted=name)


def _checksum(schedule: Schedule) -> str:
    return f"{zlib.crc32(str(schedule).encode()):08x}"


def _key(schedule: Schedule) -> tuple[str, str, str]:
    return schedule.options.planted, schedule.seed, _checksum(schedule)
