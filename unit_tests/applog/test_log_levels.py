"""Tests of changes of loggers' levels under Kafka's names while the process runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pybroker.applog import log_levels

NAME = "pybroker.test_log_levels"


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger(f"{NAME}.below")
    yield made
    for name in (NAME, f"{NAME}.below"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_level_takes_effect_at_once_and_for_loggers_below(logger: logging.Logger) -> None:
    log_levels.set_level(NAME, "DEBUG")
    assert logger.isEnabledFor(logging.DEBUG)
    assert log_levels.levels()[f"{NAME}.below"] == "DEBUG"
    assert (log_levels.own_level(NAME), log_levels.own_level(f"{NAME}.below")) == ("DEBUG", None)
    log_levels.set_level(NAME, None)
    assert log_levels.levels()[NAME] == log_levels.levels()[log_levels.ROOT]


@pytest.mark.parametrize("word", log_levels.LEVELS)
def test_kafkas_words_are_read_and_written(word: str) -> None:
    log_levels.set_level(NAME, word.lower())
    assert log_levels.levels()[NAME] == word


@pytest.mark.parametrize(
    ("name", "level", "wrong"),
    [
        (NAME, "LOUD", "not a log level"),
        ("pybroker.no_such", "INFO", "no logger"),
        ("requests", "INFO", "no logger"),
        (log_levels.ROOT, None, "root"),
    ],
)
def test_an_unknown_logger_or_level_is_refused(name: str, level: str | None, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        log_levels.set_level(name, level)


def test_the_root_comes_first() -> None:
    assert log_levels.loggers()[0] == log_levels.ROOT
    assert "pybroker" in log_levels.loggers()
