"""Tests of the search for the ZooKeeper server's jars, and of the server's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.errors import StartupError
from pybroker.host import java

JARS = (
    "zookeeper-3.9.5.jar",
    "zookeeper-jute-3.9.5.jar",
    "slf4j-api-2.0.17.jar",
    "log4j-slf4j2-impl-2.25.4.jar",
    "log4j-api-2.25.4.jar",
    "log4j-core-2.25.4.jar",
    "metrics-core-4.2.37.jar",
    "snappy-java-1.1.10.8.jar",
)


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in JARS:
        (tmp_path / name).touch()
    monkeypatch.setenv(java.JARS_VARIABLE, str(tmp_path))
    monkeypatch.setattr(java, "find_java", lambda: "/usr/bin/java")
    return tmp_path


def test_the_jars_are_found_in_the_folder_of_the_environment(jars: Path) -> None:
    assert java.find_jars() == [str(jars / name) for name in JARS]


def test_a_missing_jar_is_an_error(jars: Path) -> None:
    (jars / JARS[4]).unlink()
    with pytest.raises(StartupError, match="no ZooKeeper server found"):
        java.find_jars()


def test_without_a_folder_the_jars_of_pyspark_are_found(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(java.JARS_VARIABLE, "")
    (jars / "package" / "jars").mkdir(parents=True)
    for name in JARS:
        (jars / "package" / "jars" / name).touch()
    monkeypatch.setattr(java, "_package_directory", lambda name: jars / "package")
    assert java.find_jars() == [str(jars / "package" / "jars" / name) for name in JARS]
    monkeypatch.setattr(java, "_package_directory", lambda name: None)
    with pytest.raises(StartupError):
        java.find_jars()


def test_further_flags_come_after_ours(jars: Path) -> None:
    command = java.server_command(Path("zoo.cfg"), Path("log.properties"), ["-Xmx1g"])
    assert command[0] == "/usr/bin/java"
    assert command.index("-Xmx192m") < command.index("-Xmx1g") < command.index("-cp")
    assert command[-1] == "zoo.cfg"
    assert "-Dlog4j2.configurationFile=log.properties" in command
