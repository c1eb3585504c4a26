"""Tests of the fixtures of pybroker's pytest plugin, in runs of users' tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.process import processes_using
from unit_tests.patience import PATIENCE_S

pytestmark = pytest.mark.ours


def run(folder: Path, tests: str, **environment: str) -> tuple[int, str]:
    """Run pytest on one module of tests. Return exit code and output."""
    (folder / "test_users.py").write_text(tests)
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "pybroker.testing.plugin",
            "-p", "no:cacheprovider", f"--rootdir={folder}", f"--basetemp={folder / 'tmp'}",
            "test_users.py",
        ],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert processes_using(folder) == []
    return done.returncode, done.stdout + done.stderr


def test_the_shared_cluster_is_whole_again_after_each_test(tmp_path: Path) -> None:
    code, output = run(
        tmp_path,
        """
import pytest

@pytest.fixture(scope="session")
def pybroker_cluster_options():
    return {"brokers": 3, "proxied": True}

pids = []

def test_breaks_it(pybroker_cluster):
    pids.extend(pybroker_cluster.pid(broker) for broker in (1, 2, 3))
    pybroker_cluster.kill(1)
    pybroker_cluster.pause(2)
    pybroker_cluster.cut(3)
    pybroker_cluster.pause_zookeeper()

def test_finds_it_whole(pybroker_cluster):
    assert pybroker_cluster.running == [1, 2, 3]
    assert [pybroker_cluster.pid(broker) for broker in (2, 3)] == pids[1:]
    pybroker_cluster.wait_until_ready(seconds=20)
    pybroker_cluster.controller(seconds=20)

def test_stops_it(pybroker_cluster):
    pybroker_cluster.stop()

def test_finds_it_running(pybroker_cluster):
    pybroker_cluster.wait_until_ready(seconds=20)
""",
    )
    assert code == 0, output
    assert "4 passed" in output


def test_a_failed_test_shows_the_last_lines_of_its_brokers(tmp_path: Path) -> None:
    code, output = run(
        tmp_path,
        """
def test_fails(pybroker_cluster_factory):
    one = pybroker_cluster_factory(1)
    other = pybroker_cluster_factory(2, config={"num.partitions": 7})
    assert one.bootstrap != other.bootstrap
    assert not other.ids
""",
    )
    assert code == 1, output
    assert output.count("] started (pybroker.server)") == 3
    assert "pybroker-cluster-1/broker-2.log" in output


def test_a_machine_without_java_fails_the_test(tmp_path: Path) -> None:
    code, output = run(
        tmp_path,
        """
from pybroker.host import java

def test_needs_a_cluster(monkeypatch, pybroker_cluster_factory):
    monkeypatch.setattr(java, "_package_directory", lambda name: None)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    pybroker_cluster_factory()
""",
    )
    assert code == 1, output
    assert "ClusterError: no Java found: install a Java runtime" in output


def test_a_run_that_needs_no_broker_loads_none() -> None:
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, pybroker.testing.plugin\n"
            "print(*sorted(name for name in sys.modules if name.startswith('pybroker')))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split() == ["pybroker", "pybroker.testing", "pybroker.testing.plugin"]
