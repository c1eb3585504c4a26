"""The values of inter.broker.protocol.version and message.format.version in Kafka 3.9: a release
(2.8) or a development step (2.8-IV1). Further parts are ignored: 0.10.0.1 means 0.10.0."""

from __future__ import annotations

import re
from typing import Final

_WITHOUT_STEPS: Final = ("0.8.0", "0.8.1", "0.8.2", "0.9.0")
_STEPS: Final = {
    "0.10.0": 2, "0.10.1": 3, "0.10.2": 1, "0.11.0": 3, "1.0": 1, "1.1": 1,
    "2.0": 2, "2.1": 3, "2.2": 2, "2.3": 2, "2.4": 2, "2.5": 1, "2.6": 1, "2.7": 3, "2.8": 2,
    "3.0": 2, "3.1": 1, "3.2": 1, "3.3": 4, "3.4": 1, "3.5": 3, "3.6": 3, "3.7": 5, "3.8": 1,
    "3.9": 1,
}  # fmt: skip
"""Release -> the number of its development steps. The first step is IV0."""
_UNFINISHED: Final = {"4.0": 2}
"""Of these releases Kafka 3.9 accepts only the development steps, not the release itself."""

VERSION_NAMES: Final = frozenset(
    {
        *_WITHOUT_STEPS,
        *_STEPS,
        *(
            f"{release}-IV{step}"
            for release, steps in (_STEPS | _UNFINISHED).items()
            for step in range(steps)
        ),
    }
)
"""The names of all releases and of all development steps."""

VERSION: Final = (
    "(" + "|".join(re.escape(name) for name in sorted(VERSION_NAMES)) + r")(\..*[^.].*)?"
)
"""A regular expression that matches exactly the valid names of versions."""
VERSION_SHAPE: Final = "a version of Kafka such as 3.0, 2.8.1 or 3.0-IV1"
