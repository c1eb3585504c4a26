"""Tests of `zookeeper-server-start`: the Java process that replaces it, and its errors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from pybroker.__main__ import main
from pybroker.errors import StartupError
from pybroker.tools import zookeeper_server_start as tool


def test_the_process_is_replaced_by_the_java_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "zookeeper.properties"
    config.write_text("clientPort=2181\n")
    executed: list[list[str]] = []

    def words(config: Path, logging: Path, flags: Sequence[str]) -> list[str]:
        assert "console" in logging.read_text()
        return ["/usr/bin/java", *flags, str(config)]

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tool, "server_command", words)
    monkeypatch.setattr(os, "execv", lambda program, arguments: executed.append(arguments))
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xms64m -Xmx1g")
    assert main(["zookeeper-server-start.sh", str(config)]) == 0
    assert executed == [["/usr/bin/java", "-Xms64m", "-Xmx1g", str(config)]]


def test_missing_properties_file_gives_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zookeeper-server-start", "/no/such/file"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "/no/such/file" in line


def test_missing_server_jar_gives_one_error_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def words(config: Path, logging: Path, flags: Sequence[str]) -> list[str]:
        raise StartupError("no Java found")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tool, "server_command", words)
    config = tmp_path / "zookeeper.properties"
    config.touch()
    assert main(["zookeeper-server-start", str(config)]) == 1
    assert capsys.readouterr().err == "no Java found\n"
