"""Where what we do differs from Apache's 3.9.1, and why: the one list of it.

Tests that compare tools with Apache's name the rows that they allow, and `docs/compatibility.rst`
shows the same rows; `integration_tests/test_compatibility.py` holds the two together. A difference
without a row is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Difference:
    """`what` and `reason` are sentences of the document. `apache` and `ours` make the lines that
    are to be compared from those that were printed."""

    what: str
    reason: str
    apache: Callable[[Lines], Lines] = lambda lines: lines
    ours: Callable[[Lines], Lines] = lambda lines: lines


def without(pattern: str) -> Callable[[Lines], Lines]:
    """Leaves out the lines that contain a match."""
    return lambda lines: [line for line in lines if not re.search(pattern, line)]


def replaced(pattern: str, text: str) -> Callable[[Lines], Lines]:
    """Writes `text` (with \\1 for groups) for each match."""
    return lambda lines: [re.sub(pattern, text, line) for line in lines]


DIFFERENCES: Final[Mapping[str, Difference]] = {}
"""By a short name in words."""
