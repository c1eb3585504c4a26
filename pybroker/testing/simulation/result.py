"""The result of a simulation run, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.testing.history.model import UNKNOWN, Violation
from pybroker.testing.simulation.schedule import Schedule

BROKER_ERROR: Final = "no-broker-error"
DAMAGED: Final = "damaged-at-the-end"
LIVENESS: Final = "liveness"
RUN_FAILED: Final = "run-failed"
"""The name of the violated rule if the simulation itself failed with an exception."""
_SHOWN_PER_RULE: Final = 3


@dataclass(frozen=True, slots=True)
class Result:
    """The violations and counts of a run. `digest` is the checksum of all events, `seconds` the
    processor time. `trace` is empty unless the caller asked for it."""

    schedule: Schedule
    digest: str
    violations: tuple[Violation, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    trace: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.violations

    @property
    def rules(self) -> frozenset[str]:
        """Return the names of the rules that the run violated."""
        return frozenset(violation.rule for violation in self.violations)

    def report(self) -> str:
        """Return the violations and the command that runs the seed again, or one line for a run
        without violations."""
        schedule = self.schedule
        counts = Counter(violation.rule for violation in self.violations)
        found = ", ".join(f"{rule} {count}" for rule, count in counts.items()) or "clean"
        lines = [f"seed {schedule.seed}: {found} (trace {self.digest}, {self.seconds:.1f} s)"]
        if not self.violations:
            return lines[0]
        shown: Counter[str] = Counter()
        for violation in self.violations:
            shown[violation.rule] += 1
            if shown[violation.rule] <= _SHOWN_PER_RULE:
                lines.append(f"  {violation}")
        return "\n".join([*lines, f"  again: {replay_line(schedule)}"])


def replay_line(schedule: Schedule) -> str:
    """Return the command that runs the simulation again with the seed of the schedule."""
    if planted := schedule.options.planted:
        return f"python -m unit_tests.simulation run --seed {schedule.seed} --planted {planted}"
    return f"python -m pybroker.testing.simulation --seed {schedule.seed}"


def wrong(rule: str, text: str) -> Violation:
    """Return a violation that concerns the whole run, not one partition."""
    return Violation(rule, None, UNKNOWN, text)
