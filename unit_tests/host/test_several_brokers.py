"""Tests that several brokers of one command do not collide: ids, ports, directories."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import ConfigError, StartupError
from pybroker.host.several_brokers import (
    BrokerPlan,
    check_directories,
    check_ports,
    check_zookeeper,
    idle_directories,
    plan_brokers,
    without_taken_http,
)
from pybroker.testing.sockets import free_row

HOST = "a-host"
OWN_ADDRESS = "127.92.44.7"
"""A loopback address on which no other process listens, also if the port is taken on 127.0.0.1."""


def planned(brokers: int = 3, **options: str) -> list[BrokerConfig]:
    """Return the options of the brokers. `options` has `_` in place of the dots of option names."""
    base = {"log.dirs": "/data", "listeners": "PLAINTEXT://127.0.0.1:9092"}
    base |= {name.replace("_", "."): value for name, value in options.items()}
    plans = plan_brokers(base, brokers, HOST)
    return [BrokerConfig.parse({**base, **plan.properties}) for plan in plans]


def configured(directory: Path, **options: str) -> BrokerConfig:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return BrokerConfig.parse({"log.dirs": str(directory), **given})


def used(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "meta.properties").write_text("version=0\n")
    return directory


def test_each_broker_has_its_own_id_port_and_directory() -> None:
    brokers = planned(3)
    assert [each.broker_id for each in brokers] == [0, 1, 2]
    assert [each.bound_listeners[0].port for each in brokers] == [9092, 9093, 9094]
    assert [each.advertised[0].port for each in brokers] == [9092, 9093, 9094]
    assert [each.log_directories for each in brokers] == [(f"/data/broker-{n}",) for n in range(3)]
    assert [each.pybroker_http_listener for each in brokers] == [
        f"127.0.0.1:{port}" for port in (8090, 8091, 8092)
    ]


def test_replicas_spread_over_hosts_unless_racks_are_given() -> None:
    assert {each.broker_rack for each in planned()} == {HOST}
    assert {each.broker_rack for each in planned(broker_rack="mine")} == {"mine"}


def test_broker_ids_count_up_from_the_configured_one() -> None:
    assert [each.broker_id for each in planned(broker_id="10")] == [10, 11, 12]


def test_broker_ids_are_generated_with_an_external_zookeeper() -> None:
    assert [each.broker_id for each in planned(zookeeper_connect="zk:2181")] == [-1, -1, -1]


def test_every_broker_has_its_own_listeners_and_directories() -> None:
    brokers = planned(
        2,
        listeners="INSIDE://127.0.0.1:19092,OUTSIDE://[::1]:9092",
        advertised_listeners="INSIDE://127.0.0.1:19092,OUTSIDE://kafka.example:30000",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        inter_broker_listener_name="INSIDE",
        log_dirs="/a,/b",
        pybroker_log_dir="/logs",
        pybroker_http_listener="[::1]:8000",
    )
    assert [str(each) for each in brokers[1].bound_listeners] == [
        "INSIDE://127.0.0.1:19093",
        "OUTSIDE://[::1]:9093",
    ]
    assert [each.port for each in brokers[1].advertised] == [19093, 30001]
    assert brokers[1].log_directories == ("/a/broker-1", "/b/broker-1")
    assert brokers[1].pybroker_log_dir == "/logs/broker-1"
    assert brokers[1].http_address == ("::1", 8001)


def test_port_0_and_disabled_http_are_unchanged() -> None:
    brokers = planned(listeners="PLAINTEXT://127.0.0.1:0", pybroker_http_listener="")
    assert {each.bound_listeners[0].port for each in brokers} == {0}
    assert {each.http_address for each in brokers} == {None}


def test_a_default_http_port_in_use_does_not_prevent_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server((OWN_ADDRESS, 0)) as taken:
        listener = f"{OWN_ADDRESS}:{taken.getsockname()[1]}"
        plan = BrokerPlan(1, {"pybroker.http.listener": listener})
        spared = without_taken_http(BrokerConfig.parse({}), plan)
        assert spared.properties == {"pybroker.http.listener": ""}
        assert listener in caplog.text
        asked_for = BrokerConfig.parse({"pybroker.http.listener": "127.0.0.1:8090"})
        assert without_taken_http(asked_for, plan) == plan
    assert without_taken_http(BrokerConfig.parse({}), plan) == plan


def test_colliding_ports_are_a_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        planned(3, pybroker_http_listener="127.0.0.1:9093")
    assert caught.value.faults == [
        "port 9093 would be used by brokers 0 and 1; choose ports that are at least 3 apart",
        "port 9094 would be used by brokers 1 and 2; choose ports that are at least 3 apart",
    ]


def test_a_port_beyond_the_last_one_is_a_fault() -> None:
    with pytest.raises(ConfigError, match=r"broker 1: .*65536"):
        planned(2, listeners="PLAINTEXT://127.0.0.1:65535")


def test_a_fault_of_one_broker_is_reported_once() -> None:
    with pytest.raises(ConfigError) as caught:
        planned(num_partitions="none")
    assert len(caught.value.faults) == 1


def test_the_data_of_a_single_broker_is_not_mixed_with_those_of_several(tmp_path: Path) -> None:
    used(tmp_path)
    check_directories(configured(tmp_path), 1)
    with pytest.raises(StartupError, match="the data of a single broker; start that broker"):
        check_directories(configured(tmp_path), 3)


def test_a_port_in_use_is_reported_before_any_broker_starts() -> None:
    first = free_row(2, OWN_ADDRESS)
    config = BrokerConfig.parse({"listeners": f"PLAINTEXT://{OWN_ADDRESS}:{first}"})
    taken = f"{OWN_ADDRESS}:{first + 1}"
    named = pytest.raises(StartupError, match=f"broker 1: .*{re.escape(taken)}: .*--port")
    with socket.create_server((OWN_ADDRESS, first + 1)), named:
        check_ports(config, 2)
    check_ports(config, 2)


def test_a_single_broker_rejects_the_data_of_several(tmp_path: Path) -> None:
    used(tmp_path / "broker-0")
    check_directories(configured(tmp_path), 3)
    with pytest.raises(StartupError, match="contains the data of several brokers"):
        check_directories(configured(tmp_path), 1)


def test_a_topic_named_broker_is_not_the_data_of_several_brokers(tmp_path: Path) -> None:
    (used(tmp_path) / "broker-0").mkdir()
    check_directories(configured(tmp_path), 1)


def test_data_without_its_zookeeper_directory_fails_the_start(tmp_path: Path) -> None:
    check_zookeeper(configured(tmp_path), 2)
    used(tmp_path / "broker-1")
    with pytest.raises(StartupError, match=f"ZooKeeper, {tmp_path}/zookeeper, is missing"):
        check_zookeeper(configured(tmp_path), 2)
    check_zookeeper(configured(tmp_path, zookeeper_connect="zk:2181"), 2)
    (tmp_path / "zookeeper").mkdir()
    check_zookeeper(configured(tmp_path), 2)


def test_directories_of_brokers_beyond_the_number_are_found(tmp_path: Path) -> None:
    for name in ("broker-0", "broker-2", "broker-x"):
        used(tmp_path / name)
    assert idle_directories(configured(tmp_path), 2) == [tmp_path / "broker-2"]
