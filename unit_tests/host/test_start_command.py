"""Tests of the arguments of `pybroker start`, and of starts that fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import ConfigError, StartupError
from pybroker.host.several_brokers import BrokerPlan
from pybroker.tools import start


def properties(config: Path | None = None, *overrides: str, **flags: str | int) -> dict[str, str]:
    found: dict[str, str] = start.broker_properties(
        None if config is None else str(config),
        data=str(flags["data"]) if "data" in flags else None,
        port=int(flags["port"]) if "port" in flags else None,
        zookeeper=str(flags["zookeeper"]) if "zookeeper" in flags else None,
        overrides=overrides,
    )
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        "broker.id=7\n"
        "listeners=PLAINTEXT://0.0.0.0:19092\n"
        "advertised.listeners=PLAINTEXT://kafka.example:19092\n"
        "log.dir=/from/the/file\n"
        "zookeeper.connect=zk.example:2181/kafka\n"
        "num.partitions=3\n"
    )
    return path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig]:
    """Return the configurations with which a broker would have been run."""
    configs: list[BrokerConfig] = []
    monkeypatch.setattr(start, "run_broker", configs.append)
    return configs


def invoke(*words: str) -> Result:
    return CliRunner().invoke(start.command, words)


def test_without_a_file_the_broker_listens_on_loopback_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = BrokerConfig.parse(properties())
    assert [(each.host, each.port) for each in config.bound_listeners] == [("127.0.0.1", 9092)]
    assert config.log_directories == (str(tmp_path / start.DEFAULT_DATA),)
    assert config.zookeeper_connect is None
    assert config.offsets_topic_replication_factor == 1
    assert config.transaction_state_log_replication_factor == 1
    assert config.warnings == ()


def test_with_a_file_kafkas_defaults_apply(file: Path) -> None:
    config = BrokerConfig.parse(properties(file))
    assert config.broker_id == 7
    assert config.offsets_topic_replication_factor == 3
    assert config.log_directories == ("/from/the/file",)
    assert config.zookeeper_connect == "zk.example:2181/kafka"


def test_flags_override_the_file(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = BrokerConfig.parse(properties(file, data="here", port=5, zookeeper="other:1"))
    assert config.log_directories == (str(tmp_path / "here"),)
    assert [(each.host, each.port) for each in config.advertised] == [("127.0.0.1", 5)]
    assert config.zookeeper_connect == "other:1"


def test_overrides_override_flags_and_file(file: Path) -> None:
    overrides = ("num.partitions=1", "num.partitions=5", "log.dirs=/last", "zookeeper.connect=z:1")
    config = BrokerConfig.parse(properties(file, *overrides, data="/flag", zookeeper="flag:1"))
    assert config.num_partitions == 5
    assert config.log_directories == ("/last",)
    assert config.zookeeper_connect == "z:1"


def test_a_value_may_hold_equals_signs() -> None:
    assert properties(None, "metric.reporters=a=b")["metric.reporters"] == "a=b"


@pytest.mark.parametrize("word", ["num.partitions", "=5", ""])
def test_an_override_without_name_or_equals_sign_is_a_fault(word: str) -> None:
    with pytest.raises(ConfigError, match="name=value"):
        properties(None, word)


def test_the_command_runs_the_configured_broker(ran: list[BrokerConfig], tmp_path: Path) -> None:
    result = invoke("--data", str(tmp_path), "--port", "0", "--override", "broker.id=3")
    assert (result.exit_code, result.output) == (0, "")
    assert [(config.broker_id, config.log_directories) for config in ran] == [(3, (str(tmp_path),))]


def test_every_fault_is_one_line_and_no_broker_runs(ran: list[BrokerConfig]) -> None:
    result = invoke("--override", "num.partitions=none", "--override", "broker.idd=1")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("pybroker start: ") for line in lines)
    assert any("num.partitions" in line for line in lines)
    assert any("did you mean broker.id?" in line for line in lines)
    assert ran == []


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_that_cannot_be_read_is_one_line(
    ran: list[BrokerConfig], tmp_path: Path, exists: bool
) -> None:
    path = tmp_path / "server.properties"
    if exists:
        path.mkdir()
    result = invoke(str(path))
    assert result.exit_code == 1
    assert result.stderr.startswith("pybroker start: ")
    assert len(result.stderr.splitlines()) == 1
    assert ran == []


def test_a_startup_error_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(config: BrokerConfig) -> None:
        raise StartupError("the port is taken; choose another")

    monkeypatch.setattr(start, "run_broker", refuse)
    result = invoke()
    assert result.exit_code == 1
    assert result.stderr == "pybroker start: the port is taken; choose another\n"


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_an_invalid_port_is_rejected(ran: list[BrokerConfig], port: str) -> None:
    assert invoke("--port", port).exit_code != 0
    assert ran == []


@pytest.fixture
def ran_several(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[BrokerConfig], list[str]]]:
    """The plans of several brokers and the common beginning of their command lines, without
    running them."""
    runs: list[tuple[list[BrokerConfig], list[str]]] = []

    def run(config: BrokerConfig, plans: Sequence[BrokerPlan], words: list[str]) -> None:
        runs.append(([BrokerConfig.parse(plan.properties) for plan in plans], words))

    monkeypatch.setattr(start, "run_brokers", run)
    return runs


def test_several_brokers_have_different_ids_and_replicate(
    ran_several: list[tuple[list[BrokerConfig], list[str]]], tmp_path: Path
) -> None:
    result = invoke("--brokers", "4", "--data", str(tmp_path), "--port", "5000")
    assert (result.exit_code, result.output) == (0, "")
    ((brokers, words),) = ran_several
    assert [each.bound_listeners[0].port for each in brokers] == [5000, 5001, 5002, 5003]
    assert brokers[3].log_directories == (str(tmp_path / "broker-3"),)
    assert "default.replication.factor=3" in words
    assert "min.insync.replicas=2" in words


def test_several_brokers_read_the_same_file_and_what_differs_from_it(
    ran_several: list[tuple[list[BrokerConfig], list[str]]], file: Path
) -> None:
    result = invoke(str(file), "--brokers", "2", "--override", "num.partitions=5")
    assert (result.exit_code, result.output) == (0, "")
    ((brokers, words),) = ran_several
    assert words == [str(file), "--override", "num.partitions=5"]
    assert [each.broker_id for each in brokers] == [7, 8]
    assert [each.advertised[0].port for each in brokers] == [19092, 19093]


@pytest.mark.parametrize("brokers", ["0", "-1", "65", "many"])
def test_an_invalid_number_of_brokers_is_rejected(
    ran_several: list[tuple[list[BrokerConfig], list[str]]], brokers: str
) -> None:
    assert invoke("--brokers", brokers).exit_code != 0
    assert ran_several == []
