"""The simulation finds bugs: those that are planted, each by a schedule that is clean without it.

A schedule stands in `schedules/` under the name of its bug, with the rule that has to be broken.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.testing.simulation.planted import BY_NAME
from pybroker.testing.simulation.run import simulate
from pybroker.testing.simulation.schedule import parse

PINNED = {path.stem: path for path in sorted(Path(__file__).with_name("schedules").glob("*.txt"))}
EXPECTED = "# expected: "


def test_every_pinned_schedule_is_of_a_planted_bug() -> None:
    assert PINNED.keys() <= BY_NAME.keys()
    assert len(PINNED) >= 4


@pytest.mark.parametrize("name", PINNED)
def test_a_planted_bug_is_found_and_nothing_without_it(name: str) -> None:
    text = PINNED[name].read_text()
    (rule,) = [line[len(EXPECTED) :] for line in text.splitlines() if line.startswith(EXPECTED)]
    schedule = parse(text)
    assert schedule.options.planted == name
    assert rule in simulate(schedule).rules
    clean = simulate(schedule.with_options(planted=""))
    assert clean.is_clean, clean.report()
