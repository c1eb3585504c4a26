"""Tests of the table of stages: it names each integration test, and only tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from integration_tests import stages

ROOT: Final = Path(__file__).parent.parent
FILES: Final = {path.stem: path for path in stages.FOLDER.glob("test_*.py")}


def names_in(file: str) -> list[str]:
    nodes = ast.walk(ast.parse(FILES[file].read_text(encoding="utf-8")))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [n.name for n in nodes if isinstance(n, functions) and n.name.startswith("test_")]


def test_each_file_belongs_to_one_stage() -> None:
    placed = [file for files in stages.STAGES.values() for file in files]
    assert len(placed) == len(set(placed))
    for path in stages.FOLDER.rglob("test_*.py"):
        assert stages.stage_of(path) in stages.STAGES
    assert all(
        (stages.FOLDER / f"{entry}.py").exists() or (stages.FOLDER / entry).is_dir()
        for entry in placed
    )


def test_a_file_without_a_stage_is_named() -> None:
    with pytest.raises(LookupError, match=r"test_new\.py belongs to no stage"):
        stages.stage_of(stages.FOLDER / "test_new.py")


def test_rows_of_the_tests_for_later_name_tests_that_exist() -> None:
    tests = [(FILES[file], test) for file in stages.LONG for test in names_in(file)]
    tests += [
        (FILES[file], f"{test}[{case}]")
        for row, cases in stages.FEW.items()
        for file, test in [row.split("::")]
        if test in names_in(file)
        for case in cases
    ]
    assert not stages.stale_rows(tests)


def test_a_stale_row_is_named() -> None:
    path = stages.FOLDER / "test_real_input.py"
    assert stages.stale_rows([(path, "test_real_records_survive_kill_9[kcat]")]) == [
        "FEW: test_real_input::test_real_records_survive_kill_9[confluent-kafka]"
    ]


def test_cases_and_tests_for_later_are_long() -> None:
    clients = stages.FOLDER / "test_real_input.py"
    assert not stages.is_long(clients, "test_real_records_survive_kill_9[confluent-kafka]")
    assert stages.is_long(clients, "test_real_records_survive_kill_9[kcat]")
    assert stages.is_long(stages.FOLDER / "test_docker.py", "test_of_any_name")
    assert not stages.is_long(stages.FOLDER / "test_http.py", "test_of_any_name[any-case]")


def test_makefile_and_page_name_the_same_stages() -> None:
    every = {"check", "simulation", *stages.STAGES}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^STAGES := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    assert set(listed.replace("\\", "").split()) == every
    page = (ROOT / "docs" / "testing.rst").read_text(encoding="utf-8")
    table = page.partition("\nStage  ")[2].split("\n====")[1]
    assert set(re.findall(r"^([a-z-]+) ", table, re.MULTILINE)) == every
