"""Tests that wheel and sdist, each installed into a clean environment, work outside of the source
tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from integration_tests import spark_cluster, spark_topics
from integration_tests.broker import Broker
from unit_tests.patience import WORK_S

pytest.importorskip("build", reason="the package `build` is missing: pip install build")
pytest.importorskip("Cython", reason="the package `Cython` is missing: pip install Cython")
pytest.importorskip("setuptools", reason="the package `setuptools` is missing")

BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}  # the time stamps lie in the past
ROOT: Final = Path(__file__).resolve().parent.parent
LINKED: Final = ("coordinator", "tools", "spark")
IMPORT_ALL: Final = """
import importlib, pkgutil, sys
import pybroker
names = [module.name for module in pkgutil.walk_packages(pybroker.__path__, "pybroker.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(pybroker.__file__)
print(*names, sep="\\n")
"""

READ_BY_SPARK: Final = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
rows = spark.read.format("pybroker").options(**options).load().collect()
print("read", sorted(int(bytes(row.value)) for row in rows))
spark.stop()
"""


def run(*command: str, cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run the command and return its output. A failure shows the output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    environment |= variables or {}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project as in a fresh clone: no environment, no caches, nothing
    compiled.
    """
    target = tmp_path_factory.mktemp("sources") / "project"
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "data",
        "pybroker-data", "*.egg-info", "*.so", "_speedups.c",
    )  # fmt: skip
    shutil.copytree(ROOT, target, symlinks=True, ignore=unwanted)
    return target


@pytest.fixture(scope="module")
def dist(sources: Path) -> Path:
    """Return the folder with one sdist and one wheel, built like by `pip` and `build`."""
    folder = sources / "dist"
    run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), ".", cwd=sources
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


def clean_environment(folder: Path) -> Path:
    """Return a new virtual environment with the libraries of the current environment, but without
    the project.
    """
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def install(archive: Path, binaries: Path) -> None:
    run(
        sys.executable, "-m", "pip", f"--python={binaries / 'python'}", "install", "--quiet",
        "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", str(archive),
        cwd=archive.parent,
    )  # fmt: skip


def packed_names(archive: Path) -> set[str]:
    """Return the files in an archive, relative to its top folder."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    with tarfile.open(archive) as opened_tar:
        names = (member.name for member in opened_tar.getmembers() if member.isfile())
        return {name.partition("/")[2] for name in names}


def python_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_archives_have_every_module_also_behind_symlinks(
    kind: str, sources: Path, request: pytest.FixtureRequest
) -> None:
    names = packed_names(request.getfixturevalue(kind))
    expected = {f"pybroker/{name}" for name in python_files(sources / "pybroker")}
    for folder in LINKED:
        expected |= {f"pybroker/{folder}/{name}" for name in python_files(sources / folder)}
    assert expected <= names
    assert "pyspark_pybroker/__init__.py" in names
    assert "pybroker/py.typed" in names
    assert {"pybroker/records/_speedups.pyx", "pybroker/records/_columns.pxi"} <= names


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_nothing_is_installed_under_a_bare_name(kind: str, request: pytest.FixtureRequest) -> None:
    tops = {name.partition("/")[0] for name in packed_names(request.getfixturevalue(kind))}
    assert not tops & {*LINKED, "unit_tests", "integration_tests", "benchmarks", "docker"}


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_an_archive_installs_and_works_away_from_the_sources(
    kind: str, sources: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    binaries = clean_environment(tmp_path / "environment")
    install(request.getfixturevalue(kind), binaries)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    imported = run(str(binaries / "python"), "-c", IMPORT_ALL, cwd=elsewhere).splitlines()
    assert imported[0].startswith(str(tmp_path))
    assert {f"pybroker.{folder}" for folder in LINKED} <= set(imported[1:])
    if shutil.which("gcc"):
        assert "pybroker.records._speedups" in imported
    assert "start" in run(str(binaries / "pybroker"), "--help", cwd=elsewhere)


def test_the_wheel_has_fixtures_for_users_tests(wheel: Path, tmp_path: Path) -> None:
    binaries = clean_environment(tmp_path / "environment")
    install(wheel, binaries)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = run(str(binaries / "python"), "-m", "pytest", "--fixtures", "-q", cwd=elsewhere)
    for name in ("pybroker_cluster [session scope]", "pybroker_cluster_factory --"):
        assert name in shown


def test_spark_finds_the_source_of_an_installed_wheel(
    wheel: Path, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Spark finds `format("pybroker")` without an import, a jar or an option."""
    reason = spark_cluster.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    binaries = clean_environment(tmp_path / "environment")
    install(wheel, binaries)
    spark_topics.create(broker.bootstrap, topic, 1)
    spark_topics.produce(broker.bootstrap, topic, spark_topics.numbered(range(5), partitions=1))
    python = str(binaries / "python")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    variables = {"PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    told = run(
        python, "-c", READ_BY_SPARK, broker.bootstrap, topic, cwd=elsewhere, variables=variables
    )
    assert "read [0, 1, 2, 3, 4]" in told.splitlines()
