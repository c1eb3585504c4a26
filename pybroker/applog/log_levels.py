"""The levels of the process's loggers, under Kafka's names for them, readable and changeable while
the broker runs (KIP-412: the resource BROKER_LOGGER).

No request and no file is known here; `output.py` decides where lines go.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

ROOT: Final = "root"
TRACE: Final = 5
"""Below DEBUG. No code logs at this level; Kafka has the name."""
LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": TRACE,
}
"""Kafka's name of a level -> Python's number."""
_OURS: Final = "pybroker"
_OTHERS: Final = ("aiohttp", "asyncio", "kazoo")
"""Libraries whose lines go to the broker's log, too."""


def level_name(number: int) -> str:
    """Kafka's name of a level: the nearest one at or below `number`, else TRACE."""
    return next((name for name, value in LEVELS.items() if number >= value), "TRACE")


def parse_level(text: str) -> int:
    """The number of a level, in any case; Python's own WARNING and CRITICAL are accepted, too.
    Raises ValueError with the allowed names."""
    word = text.strip().upper()
    word = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(word, word)
    if word not in LEVELS:
        raise ValueError(f"{text!r} is no level; expected one of {', '.join(LEVELS)}")
    return LEVELS[word]


def loggers() -> list[str]:
    """The names of all known loggers, `root` first, then sorted."""
    known = logging.root.manager.loggerDict
    names = {name for name in known if _is_shown(name)}
    for name in list(names):
        while "." in name:
            name = name.rpartition(".")[0]
            names.add(name)
    return [ROOT, *sorted(names)]


def levels() -> dict[str, str]:
    """Logger -> the level in force for it, its own or its nearest parent's."""
    return {name: level_name(_logger(name).getEffectiveLevel()) for name in loggers()}


def own_level(logger: str) -> str | None:
    """The level that was set for this logger itself, None if it follows its parent. Raises
    ValueError for a name that `loggers` does not give."""
    number = _known(logger).level
    return None if number == logging.NOTSET else level_name(number)


def set_level(logger: str, level: str | None) -> None:
    """Set the level of this logger and of the loggers below it that have no level of their own.
    None lets it follow its parent again. Takes effect at once.

    Raises ValueError for an unknown logger or level, and for None on the root logger.
    """
    found = _known(logger)
    if level is None and found is logging.root:
        raise ValueError("the root logger cannot be without a level")
    found.setLevel(logging.NOTSET if level is None else parse_level(level))


def _known(name: str) -> logging.Logger:
    if name not in loggers():
        raise ValueError(f"there is no logger {name!r}")
    return _logger(name)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _is_shown(name: str) -> bool:
    return name.split(".")[0] in (_OURS, *_OTHERS)
