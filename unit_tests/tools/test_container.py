"""Tests of the image's entry point: it runs a broker or a command, checks the broker's health,
stops the broker, and writes scripts with Kafka's names."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.__main__ import main
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StartupError
from pybroker.tool_list import TOOLS, tool_name
from pybroker.tools import container
from pybroker.tools.container_environment import WantedTopic
from pybroker.tools.container_topics import request_for


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[BrokerConfig]:
    """Return the list of configurations passed to `run_broker`, which a fake replaces. The
    environment is empty."""
    configs: list[BrokerConfig] = []
    for name in [name for name in os.environ if name.startswith("KAFKA_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(container, "run_broker", configs.append)
    monkeypatch.setattr(container, "MOUNTED_FOLDER", str(tmp_path))
    return configs


# The broker


def test_broker_options_come_from_variables(
    ran: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "3")
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xmx1G")
    assert main(["container"]) == 0
    (config,) = ran
    assert config.num_partitions == 3
    assert [line for line in config.warnings if "KAFKA_HEAP_OPTS" in line]


def test_arguments_may_be_variables(
    ran: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BROKER_ID", "1")
    assert main(["container", "KAFKA_BROKER_ID=2", "KAFKA_BROKER_RACK=a=b"]) == 0
    assert [(config.broker_id, config.broker_rack) for config in ran] == [(2, "a=b")]


def test_mounted_files_are_read(ran: list[BrokerConfig], tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("num.partitions=9\n")
    (tmp_path / "logging.ini").write_text("[loggers]\n")
    assert main(["container"]) == 0
    (config,) = ran
    assert config.num_partitions == 9
    assert config.pybroker_log_config == str(tmp_path / "logging.ini")


def test_each_fault_gives_one_line_with_its_variable(
    ran: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "none")
    monkeypatch.setenv("KAFKA_ADVERTISED_LISTENERS", "PLAINTEXT:/kafka:9092")
    monkeypatch.setenv("KAFKA_PROCESS_ROLES", "broker")
    assert main(["container"]) == 1
    lines = capsys.readouterr().err.splitlines()
    for name in ("KAFKA_NUM_PARTITIONS", "KAFKA_ADVERTISED_LISTENERS", "KAFKA_PROCESS_ROLES"):
        assert [line for line in lines if line.startswith(f"pybroker: {name}")], name
    assert all(line.startswith("pybroker: KAFKA_") for line in lines)
    assert ran == []


def test_failed_start_gives_one_error_line(
    ran: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(config: BrokerConfig) -> None:
        raise StartupError("the port is taken; choose another")

    monkeypatch.setattr(container, "run_broker", refuse)
    assert main(["container"]) == 1
    assert capsys.readouterr().err == "pybroker: the port is taken; choose another\n"
    assert ran == []


def test_image_without_zookeeper_requires_zookeeper_connect(
    ran: list[BrokerConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYBROKER_ZOOKEEPER_JARS", str(tmp_path))
    assert main(["container"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pybroker: KAFKA_ZOOKEEPER_CONNECT")
    assert main(["container", "KAFKA_ZOOKEEPER_CONNECT=zoo:2181"]) == 0
    (tmp_path / "zookeeper-3.9.5.jar").touch()
    assert main(["container"]) == 0
    assert [config.zookeeper_connect for config in ran] == ["zoo:2181", None]


def test_topics_are_requested_with_the_given_settings() -> None:
    request = request_for([WantedTopic("a"), WantedTopic("b", 3, 2, "compact")])
    shapes = [
        (
            each.name,
            each.num_partitions,
            each.replication_factor,
            [(option.name, option.value) for option in each.configs],
        )
        for each in request.topics
    ]
    assert shapes == [("a", -1, -1, []), ("b", 3, 2, [("cleanup.policy", "compact")])]


# Commands


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["sh", "-c", "echo --list"], ["sh", "-c", "echo --list"]),
        (["topics", "--list"], ["-m", "pybroker", "topics", "--list"]),
        (["kafka-topics.sh", "--list"], ["-m", "pybroker", "kafka-topics.sh", "--list"]),
    ],
)
def test_other_arguments_run_a_command(
    ran: list[BrokerConfig],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    becomes: list[str],
) -> None:
    ends = {signal.SIGTERM, signal.SIGINT}
    executed: list[list[str]] = []

    def execute(program: str, arguments: list[str]) -> None:
        executed.append(arguments)
        assert not ends & signal.pthread_sigmask(signal.SIG_BLOCK, ())
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvp", execute)
    with pytest.raises(SystemExit):
        main(["container", *words])
    assert [arguments[-len(becomes) :] for arguments in executed] == [becomes]
    assert ran == []


def test_unknown_command_gives_one_error_line(
    ran: list[BrokerConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["container", "no-such-command"])
    assert ended.value.code == 127
    assert capsys.readouterr().err.startswith(
        "pybroker: the command no-such-command cannot be run: "
    )
    assert ran == []


@pytest.mark.parametrize("tool", TOOLS)
def test_scripts_have_kafkas_command_names(tool: str) -> None:
    names = container.command_names(tool)
    assert all(f"{name}.sh" in names for name in names if not name.endswith(".sh"))
    if tool not in ("start", "container"):
        assert {tool_name(name) for name in names} == {tool}
        assert all(name.startswith(("kafka-", "zookeeper-")) for name in names)


def test_each_script_runs_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "pybroker").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "pybroker").chmod(0o755)
    folder = tmp_path / "commands"
    assert main(["container", "--commands", str(folder)]) == 0
    expected = {name: tool for tool in TOOLS for name in container.command_names(tool)}
    stops = {"kafka-server-stop", "kafka-server-stop.sh"}
    assert {path.name for path in folder.iterdir()} == {*expected, *stops}
    for name, said in (
        ("kafka-topics.sh", "topics --list a b"),
        ("kafka-server-start", "start --list a b"),
        ("zookeeper-shell", "zookeeper-shell --list a b"),
        ("kafka-server-stop", "container --stop"),
    ):
        done = subprocess.run(
            [folder / name, "--list", "a b"], capture_output=True, text=True, check=True
        )
        assert done.stdout == said + "\n"


# Health and the end


def test_broker_without_response_is_unhealthy(
    ran: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        monkeypatch.setenv("KAFKA_LISTENERS", f"PLAINTEXT://0.0.0.0:{port}")
        assert main(["container", "--health"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("unhealthy: ") and str(port) in line


@pytest.mark.parametrize(
    ("listeners", "inter_broker", "expected"),
    [
        ("PLAINTEXT://0.0.0.0:9092", "PLAINTEXT", ("127.0.0.1", 9092)),
        ("PLAINTEXT://:9092", "PLAINTEXT", ("127.0.0.1", 9092)),
        ("PLAINTEXT://[::]:9092", "PLAINTEXT", ("::1", 9092)),
        ("PLAINTEXT://10.0.0.1:9092", "PLAINTEXT", ("10.0.0.1", 9092)),
        ("A://0.0.0.0:1,B://0.0.0.0:2", "B", ("127.0.0.1", 2)),
    ],
)
def test_health_check_uses_the_inter_broker_listener(
    listeners: str, inter_broker: str, expected: tuple[str, int]
) -> None:
    config = BrokerConfig.parse(
        {
            "listeners": listeners,
            "advertised.listeners": listeners.replace("0.0.0.0", "kafka").replace("[::]", "kafka"),
            "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "inter.broker.listener.name": inter_broker,
        }
    )
    found = container.own_listener(config)
    assert (found.host, found.port) == expected


@pytest.mark.parametrize(
    ("line", "broker"),
    [
        ("/opt/pybroker/bin/python3 /opt/pybroker/bin/pybroker container", True),
        ("python -m pybroker start config/server.properties", True),
        ("python /usr/bin/pybroker kafka-start --data x", True),
        ("python /usr/bin/pybroker container KAFKA_BROKER_ID=1", True),
        ("tini -- pybroker container", True),
        ("python /usr/bin/pybroker container --health", False),
        ("python /usr/bin/pybroker container --stop", False),
        ("python /usr/bin/pybroker topics --list", False),
        ("python /usr/bin/pybroker", False),
        ("", False),
    ],
)
def test_broker_processes_are_recognised(line: str, broker: bool) -> None:
    assert container.is_broker(line.split(" ")) is broker
    assert container.is_broker([*line.split(" "), ""]) is broker


def test_stop_without_a_broker_is_reported(
    ran: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(container, "is_broker", lambda arguments: False)
    assert main(["container", "--stop"]) == 1
    assert capsys.readouterr().err == "No kafka server to stop\n"
