"""Tests of the controller's behaviour, as scripts with their traces: `scripts/*.txt`.

`stage.py` has the commands, `unit_tests/scripts.py` the form of a script. When a change of the
controller changes a trace on purpose, write the traces again and review the difference as part of
the change:

PYBROKER_REWRITE=1 .venv/bin/python -m pytest unit_tests/coordinator/controller/test_scripts.py
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from unit_tests import scripts
from unit_tests.coordinator.controller.stage import Stage
from unit_tests.idle_loop import JumpingLoop
from unit_tests.scripts import REWRITE, Step, parse

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


def played(steps: list[Step]) -> list[Step]:
    """Return the script's commands with their present traces."""

    async def play() -> list[Step]:
        stage = Stage()
        await stage.prepare()
        try:
            return await scripts.played(steps, stage.play)
        finally:
            await stage.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(play())


def check(script: Path, *, rewrite: bool) -> None:
    """Fail if a trace differs from the expected trace, or with `rewrite` rewrite the expected
    trace."""
    scripts.compare(script, played(parse(script.read_text())), rewrite=rewrite)


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_the_trace_is_the_expected_one(script: Path) -> None:
    check(script, rewrite=REWRITE)


def test_another_trace_than_the_expected_one_fails_and_can_be_rewritten(tmp_path: Path) -> None:
    text = (Path(__file__).parent / "scripts" / "broker_down_and_up.txt").read_text()
    line = next(line for line in text.splitlines() if line.startswith("stored"))
    for other in (f"{line} more", f"{line}\n{line}", "# nothing"):
        script = tmp_path / "script.txt"
        script.write_text(text.replace(line, other, 1))
        with pytest.raises(AssertionError):
            check(script, rewrite=False)
        check(script, rewrite=True)
        check(script, rewrite=False)
        assert script.read_text() == text


def test_an_unknown_command_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("stat 1\n")
    with pytest.raises(ValueError, match="'stat' is none of"):
        check(script, rewrite=True)
