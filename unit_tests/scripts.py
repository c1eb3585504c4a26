"""Tests as scripts: text files with commands, each followed by `----` and its expected trace. Lines
before a command that begin with # are comments. With PYBROKER_REWRITE=1 the test rewrites the
traces, to be reviewed as part of the change.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

REWRITE: Final = os.environ.get("PYBROKER_REWRITE") == "1"
BETWEEN: Final = "----"
Play = Callable[[str], Awaitable[list[str]]]
"""A function that carries out a command and returns its trace."""


@dataclass
class Step:
    """A command and its trace. `before` has the comments and blank lines before the command;
    `trace` is empty if the script has no trace yet.
    """

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
    """Return the text of a script."""
    blocks = ["\n".join([*step.before, step.command, BETWEEN, *step.trace]) for step in steps]
    return "\n\n".join(blocks) + "\n"


async def played(steps: list[Step], play: Play) -> list[Step]:
    """Return the same commands with their current traces."""
    return [Step(step.before, step.command, await play(step.command)) for step in steps]


def compare(script: Path, found: list[Step], *, rewrite: bool) -> None:
    """Fail if a trace differs from the script's trace. With `rewrite`, write the current traces
    into the script instead.
    """
    if rewrite:
        script.write_text(written(found))
    else:
        assert written(found).splitlines() == script.read_text().splitlines()
