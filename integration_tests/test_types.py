"""Tests of the client's types with pyright, the type checker of many editors. `make lint` checks
them with mypy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from integration_tests import npm
from integration_tests.conftest import or_skip
from unit_tests.patience import WORK_S

pytestmark = pytest.mark.ours

ROOT: Final = Path(__file__).parents[1]
CHECKED: Final = ROOT / "unit_tests" / "client" / "test_keywords.py"
"""The file with wrong arguments, each behind a `type: ignore`, and with right ones."""
OPTIONS: Final = {"extraPaths": [str(ROOT)], "reportUnnecessaryTypeIgnoreComment": "error"}


def pyright(folder: Path) -> list[str]:
    """Return the errors that pyright finds in the files of a folder."""
    packages = or_skip(lambda: npm.node_modules(npm.PYRIGHT))
    (folder / "pyrightconfig.json").write_text(json.dumps(OPTIONS))
    program = [npm.node(), str(packages / "pyright" / "index.js"), "--outputjson"]
    done = subprocess.run(
        [*program, "--project", str(folder), "--pythonpath", sys.executable],
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=False,
    )
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    return [row["message"] for row in report["generalDiagnostics"] if row["severity"] == "error"]


def test_wrong_arguments_of_the_clients_are_errors_of_pyright_and_right_ones_are_not(
    tmp_path: Path,
) -> None:
    shutil.copy(CHECKED, tmp_path)
    assert pyright(tmp_path) == []


def test_pyright_names_a_wrong_argument(tmp_path: Path) -> None:
    lines = ["from pybroker.client import Producer", "Producer(linger_mss=3)"]
    (tmp_path / "program.py").write_text("\n".join([*lines, 'Producer(linger_ms="x")\n']))
    first, second = pyright(tmp_path)
    assert first == 'No parameter named "linger_mss"'
    assert 'cannot be assigned to parameter "linger_ms" of type "int"' in second
