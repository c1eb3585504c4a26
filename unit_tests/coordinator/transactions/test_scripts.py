"""Tests of the behaviour of a transaction coordinator, as scripts with their traces:
`scripts/*.txt`.

`stage.py` has the commands, `unit_tests/scripts.py` the form of a script. When a change alters a
trace on purpose:

    PYBROKER_REWRITE=1 .venv/bin/python -m pytest \
        unit_tests/coordinator/transactions/test_scripts.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from unit_tests import scripts
from unit_tests.coordinator.transactions.stage import Stage
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


def test_the_scripts_cover_requests_fail_over_and_time() -> None:
    names = {script.stem for script in SCRIPTS}
    assert {"commit", "fail_over", "fencing", "pending", "time_outs", "expiry", "refusals"} <= names
