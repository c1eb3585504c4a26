"""Tests of functions in the folders of job files: each job gets its own module, even if another job
has a module with the same name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pybroker.errors import ConfigError
from pybroker.spark.etl.job_model import Transform
from pybroker.spark.etl.transform import load


def result_of(folder: Path, name: str = "rows_of_jobs:transform") -> object:
    function = load(Transform(function=name, folder=folder), "job.yaml")
    assert function is not None
    return function()


def write(folder: Path, result: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rows_of_jobs.py").write_text(
        "from words_of_jobs import WORD\n\n\ndef transform():\n    return WORD\n"
    )
    (folder / "words_of_jobs.py").write_text(f"WORD = {result!r}\n")
    return folder


def test_each_job_loads_its_own_module_despite_equal_names(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "of the first"), write(tmp_path / "b", "of the second")
    assert result_of(first) == "of the first"
    assert result_of(second) == "of the second"
    assert result_of(first) == "of the first"
    assert str(second) not in sys.path


def test_a_module_that_was_edited_is_read_again(tmp_path: Path) -> None:
    assert result_of(write(tmp_path / "a", "old")) == "old"
    assert result_of(write(tmp_path / "a", "new, and longer")) == "new, and longer"


def test_a_module_that_exits_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "exiting_job.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(ConfigError, match="exiting_job cannot be imported: SystemExit: 0"):
        result_of(tmp_path, "exiting_job:transform")


def test_module_name_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("def transform():\n    return 1\n")
    with pytest.raises(ConfigError, match=r"another module with the name .* is already loaded"):
        result_of(tmp_path, "json:transform")
