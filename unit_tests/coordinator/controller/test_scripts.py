"""What a controller does, as scripts with their traces: `scripts/*.txt`.

A script has commands, each followed by `----` and what became of it (see `stage.py`; lines that
begin with # before a command are comments). When a change of the controller changes a trace on
purpose, write the traces anew and review the difference as part of the change:

    PYBROKER_REWRITE=1 .venv/bin/python -m pytest unit_tests/coordinator/controller/test_scripts.py
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from unit_tests.coordinator.controller.jumping_loop import JumpingLoop
from unit_tests.coordinator.controller.stage import Stage

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
REWRITE = os.environ.get("PYBROKER_REWRITE") == "1"
BETWEEN = "----"


@dataclass
class Step:
    """`before`: comments and blank lines; `trace` is None where the script has none yet."""

    before: list[str]
    command: str
    trace: list[str] = field(default_factory=list)


def parse(text: str) -> list[Step]:
    steps: list[Step] = []
    before: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside and line:
            steps[-1].trace.append(line)
        elif inside or not line or line.startswith("#"):
            inside = False
            if line.startswith("#"):
                before.append(line)
        elif line == BETWEEN:
            inside = True
        else:
            steps.append(Step(before, line))
            before = []
    return steps


def written(steps: list[Step]) -> str:
    """The text of a script."""
    blocks = ["\n".join([*step.before, step.command, BETWEEN, *step.trace]) for step in steps]
    return "\n\n".join(blocks) + "\n"


def played(steps: list[Step]) -> list[Step]:
    """The same commands with what becomes of them now."""

    async def play() -> list[Step]:
        stage = Stage()
        await stage.prepare()
        try:
            return [
                Step(step.before, step.command, await stage.play(step.command)) for step in steps
            ]
        finally:
            await stage.close()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(play())


def check(script: Path, *, rewrite: bool) -> None:
    """Fails if a trace is not the expected one; or makes it the expected one."""
    text = script.read_text()
    found = written(played(parse(text)))
    if rewrite:
        script.write_text(found)
    else:
        assert found.splitlines() == text.splitlines()


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


def test_a_command_that_is_none_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text("stat 1\n")
    with pytest.raises(ValueError, match="'stat' is none of"):
        check(script, rewrite=True)
