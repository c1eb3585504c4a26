"""Finds unclear docstrings, test names and commit subjects, for the rules in `test_tidy`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from unit_tests.sources import Source

RIDDLE: Final = re.compile(r"(Who|Whoever|What|Nobody|Somebody)\b")
"""A pattern of docstrings that begin without naming their subject."""
RIDDLE_TEST: Final = re.compile(r"test_(who|what)_")
SUBJECT_LENGTH_MAX: Final = 72
"""The maximum length of a commit subject, in characters."""
SUBJECTS_SINCE: Final = "c2256e1b1f67aeb36b945bdad8d18b657b18a9f2"
"""The last commit to which the rule of subjects does not apply."""


def riddles(source: Source) -> list[str]:
    """Return the docstrings of a file that begin without naming their subject."""
    return [
        f"line {line}: {text.splitlines()[0]}"
        for line, text in source.outline.docstrings
        if RIDDLE.match(text)
    ]


def riddle_tests(source: Source) -> list[str]:
    """Return the tests of a file whose names do not state a behaviour."""
    names = source.outline.functions
    return [f"line {line}: {name}" for name, line, _ in names if RIDDLE_TEST.match(name)]


def long_subjects(subjects: Iterable[str]) -> list[str]:
    """Return the commit subjects that are too long."""
    return [subject for subject in subjects if len(subject) > SUBJECT_LENGTH_MAX]
