"""Tests of setup.cfg: each imported distribution is declared, and each declaration has its
reason.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import re
import sys
from collections.abc import Iterable

import pytest

from unit_tests import sources
from unit_tests.sources import ROOT, Source

OURS = {
    "pybroker",
    "pyspark_pybroker",
    "unit_tests",
    "integration_tests",
    "docs",
    "benchmarks",
    "conftest",
}
TEXT = (ROOT / "setup.cfg").read_text()
BUILD_TOOLS = {"setuptools", "cython"}
LOADED_BY_PYTEST_ONLY = {"pybroker.testing.plugin"}
OF_AN_EXTRA = {
    "pybroker.client.arrow": "arrow",
    "pybroker.records._numpy_columns": "arrow",
    "pybroker.spark": "spark",
    "pyspark_pybroker": "spark",
}
"""Module or package -> the extra whose distributions it may import too."""


def declared() -> dict[str, list[str]]:
    """Return the extra (empty for the requirements of every installation) -> its requirement
    lines.
    """
    parser = configparser.ConfigParser()
    parser.read_string(TEXT)
    groups = {"": parser["options"]["install_requires"], **parser["options.extras_require"]}
    return {name: [line for line in text.split("\n") if line] for name, text in groups.items()}


def distributions(groups: Iterable[str]) -> set[str]:
    lines = [line for group in groups for line in declared()[group]]
    return {re.split(r"[<>=!~; \[]", line)[0].lower() for line in lines}


def foreign_imports(items: Iterable[Source]) -> dict[str, str]:
    """Return distribution name -> a module that imports it."""
    by_package = importlib.metadata.packages_distributions()
    found = {}
    for source in items:
        for item in source.outline.imports:
            top = item.module.split(".")[0]
            if top not in OURS and top not in sys.stdlib_module_names:
                found[by_package.get(top, [top])[0].lower()] = source.label
    return found


def extra_of(source: Source) -> str:
    """Return the extra that a module needs; empty if the module must work in every installation."""
    name = source.module
    while name and name not in OF_AN_EXTRA:
        name = name.rpartition(".")[0]
    return OF_AN_EXTRA.get(name, "")


@pytest.mark.parametrize("extra", ["", *sorted(set(OF_AN_EXTRA.values()))])
def test_the_package_imports_only_its_declared_dependencies(extra: str) -> None:
    used = foreign_imports(
        each
        for each in sources.package_sources()
        if each.module not in LOADED_BY_PYTEST_ONLY and extra_of(each) == extra
    )
    missing = used.keys() - distributions({"", extra})
    assert not missing, {name: used[name] for name in missing}


def test_the_spark_extra_includes_the_arrow_extra() -> None:
    assert distributions(["arrow"]) <= distributions(["spark"])


def test_the_tests_import_only_dependencies_of_their_extra() -> None:
    used = foreign_imports(sources.other_sources())
    extras = ["", "embedded", "spark", "test", "docker", "docs"]
    missing = used.keys() - distributions(extras) - BUILD_TOOLS
    assert not missing, {name: used[name] for name in missing}


def test_nothing_is_declared_that_the_package_does_not_import() -> None:
    unused = distributions([""]) - foreign_imports(sources.package_sources()).keys()
    assert not unused, "a dependency comes with the code that needs it"


@pytest.mark.parametrize("group", declared())
def test_each_dependency_has_its_reason_above_it(group: str) -> None:
    lines = TEXT.splitlines()
    for requirement in declared()[group]:
        above = [
            lines[number - 1] for number, line in enumerate(lines) if line == f"    {requirement}"
        ]
        assert above
        assert all(line.startswith("# ") for line in above), requirement
