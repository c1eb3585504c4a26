"""The levels of the process's loggers, under Kafka's names, readable and changeable at run time
(KIP-412: the resource type BROKER_LOGGER).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

ROOT: Final = "root"
TRACE: Final = 5
"""The number of Kafka's level TRACE, below DEBUG. Python has no such level, and no code of this
project logs at it."""
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
"""The loggers of libraries whose lines also go to the broker's log."""


def level_name(number: int) -> str:
    """Return the highest Kafka log level that is not above `number`, a level of Python's logging.
    Return TRACE if all are above."""
    return next((name for name, value in LEVELS.items() if number >= value), "TRACE")


def parse_level(text: str) -> int:
    """Return the number of a log level: one of Kafka's, or Python's WARNING or CRITICAL. Upper or
    lower case does not matter. Raise ValueError for any other text."""
    word = text.strip().upper()
    word = {"WARNING": "WARN", "CRITICAL": "FATAL"}.get(word, word)
    if word not in LEVELS:
        raise ValueError(f"{text!r} is not a log level; expected one of {', '.join(LEVELS)}")
    return LEVELS[word]


def loggers() -> list[str]:
    """Return the names of all loggers whose lines go to the broker's log, `root` first and the
    others sorted."""
    known = logging.root.manager.loggerDict
    names = {name for name in known if _is_shown(name)}
    for name in list(names):
        while "." in name:
            name = name.rpartition(".")[0]
            names.add(name)
    return [ROOT, *sorted(names)]


def levels() -> dict[str, str]:
    """Return logger -> name of the level in force. This is the logger's own level if it has one,
    otherwise the level of the nearest parent that has one."""
    return {name: level_name(_logger(name).getEffectiveLevel()) for name in loggers()}


def own_level(logger: str) -> str | None:
    """Return the name of the logger's own level; None if the logger inherits its level. Raise
    ValueError if `loggers()` lacks the logger."""
    number = _known(logger).level
    return None if number == logging.NOTSET else level_name(number)


def set_level(logger: str, level: str | None) -> None:
    """Set the logger's own level; None: inherit the level of the parent. Raise ValueError if the
    logger or the level is unknown, or if `level` is None for the root logger."""
    found = _known(logger)
    if level is None and found is logging.root:
        raise ValueError("the level of the root logger cannot be removed; set another level")
    found.setLevel(logging.NOTSET if level is None else parse_level(level))


def _known(name: str) -> logging.Logger:
    if name not in loggers():
        raise ValueError(f"there is no logger of the name {name!r}")
    return _logger(name)


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _is_shown(name: str) -> bool:
    return name.split(".")[0] in (_OURS, *_OTHERS)
