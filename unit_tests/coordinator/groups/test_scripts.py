"""Tests of the behaviour of a group, as scripts with their traces: `scripts/*.txt`.

`stage.py` has the commands, `unit_tests/scripts.py` the form of a script. The scripts that are
named after a state have one step for every request, marked by a comment that begins with the
cell's name. When a change alters a trace on purpose:

    PYBROKER_REWRITE=1 .venv/bin/python -m pytest unit_tests/coordinator/groups/test_scripts.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pybroker.coordinator.groups.states import ANSWERS, GroupRequest, GroupState
from unit_tests import scripts
from unit_tests.coordinator.groups.stage import Stage
from unit_tests.idle_loop import IdleLoop
from unit_tests.scripts import REWRITE, Step, parse

FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = sorted(FOLDER.glob("*.txt"))


def played(steps: list[Step]) -> list[Step]:
    async def play() -> list[Step]:
        stage = Stage()
        await stage.prepare()
        try:
            return await scripts.played(steps, stage.play)
        finally:
            await stage.close()

    with asyncio.Runner(loop_factory=IdleLoop) as runner:
        return runner.run(play())


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_the_trace_is_the_expected_one(script: Path) -> None:
    scripts.compare(script, played(parse(script.read_text())), rewrite=REWRITE)


@pytest.mark.parametrize("state", GroupState, ids=lambda state: state.value)
def test_every_request_is_made_in_every_state(state: GroupState) -> None:
    steps = parse((FOLDER / f"state_{state.value}.txt").read_text())
    marks = [line.removeprefix("# ") for step in steps for line in step.before]
    made = {asked for asked in GroupRequest for mark in marks if mark == f"{asked.value}."}
    assert made == set(GroupRequest)
    assert set(ANSWERS[state]) == set(GroupRequest)


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(ValueError, match="'jion' is none of"):
        played(parse("jion a\n"))
