"""Tests that the page about Spark names every option and column."""

from __future__ import annotations

import re
from typing import Final

import pytest

from pybroker.spark.options import COLUMNS, NOTICED, OPTIONS, REFUSED
from unit_tests.sources import ROOT

PAGE: Final = (ROOT / "docs" / "spark.rst").read_text()
TERMS: Final = {term for line in re.findall(r"(?m)^(``\w.*``)$", PAGE) for term in
                re.findall(r"``([\w.*]+)``", line)}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_its_entry(name: str) -> None:
    assert name in TERMS


def test_every_entry_is_an_option() -> None:
    assert TERMS - {"kafka.*", "kafka.isolation.level"} == set(OPTIONS)


@pytest.mark.parametrize(
    "name", [name for name in (*NOTICED, *REFUSED) if not name.startswith("kafka.")]
)
def test_options_without_effect_are_named(name: str) -> None:
    assert f"``{name}``" in PAGE or name in ("topic", "path")


def test_the_columns_are_named() -> None:
    assert all(f"``{name}``" in PAGE for name in COLUMNS)
