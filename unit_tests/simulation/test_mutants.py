"""Tests that the simulation finds the planted bugs (mutants), each with a schedule that is clean
without the bug.

The schedule is in `schedules/` under the name of its bug, with the rule that must be violated. The
schedule fixes the faults, but the seed decides when messages arrive. Since arrivals vary with every
change of the brokers' timing, other seeds are tried if the given seed does not find the bug.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.testing.simulation.schedule import Schedule, parse
from unit_tests.simulation.mutants import BY_NAME, simulate_mutant

pytestmark = pytest.mark.mutants

PINNED = {path.stem: path for path in sorted(Path(__file__).with_name("schedules").glob("*.txt"))}
EXPECTED = "# expected: "
SEEDS_MAX = 40


def test_every_planted_bug_has_its_schedule() -> None:
    assert PINNED.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", PINNED)
def test_a_planted_bug_is_found_and_nothing_without_it(name: str) -> None:
    text = PINNED[name].read_text()
    (rule,) = [line[len(EXPECTED) :] for line in text.splitlines() if line.startswith(EXPECTED)]
    schedule = parse(text)
    assert schedule.options.planted == name
    tried = itertools.islice(with_other_seeds(schedule), SEEDS_MAX)
    found = next((each for each in tried if rule in simulate_mutant(each).rules), None)
    assert found is not None, f"none of {SEEDS_MAX} seeds violates {rule}"
    clean = simulate_mutant(found.with_options(planted=""))
    assert clean.is_clean, clean.report()


def with_other_seeds(schedule: Schedule) -> Iterator[Schedule]:
    """Yield the schedule, and then the same faults with other seeds."""
    yield schedule
    for number in itertools.count(1):
        yield dataclasses.replace(schedule, seed=f"other {number}")
