"""What we tell users about configuration is what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import make_configuration
from pybroker.broker_config import BROKER_OPTIONS, BrokerConfig
from pybroker.properties import parse_properties, read_properties
from unit_tests.sources import ROOT

CONFIG = ROOT / "config"
FILES = sorted(CONFIG.glob("*.properties"))
OF_A_SINGLE_BROKER = {
    "broker.id",
    "listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "log.dirs",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
}


def settings_of(path: Path) -> list[tuple[str, str]]:
    """(setting, comment above it) of each setting of a file, those that are commented out too."""
    found = []
    comment = ""
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            comment += line
        elif line:
            found.append((line.lstrip("#").partition("=")[0], comment))
            comment = ""
        else:
            comment = ""
    return found


def test_the_page_of_options_is_made_from_the_tables() -> None:
    assert make_configuration.PAGE.read_text() == make_configuration.render(), "run: make docs"


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_each_setting_stands_once_and_has_its_comment(path: Path) -> None:
    names = [name for name, _ in settings_of(path)]
    assert names
    assert len(names) == len(set(names))
    assert [name for name, comment in settings_of(path) if not comment] == []


def test_the_shipped_broker_file_loads_without_a_warning() -> None:
    assert BrokerConfig.parse(read_properties(str(CONFIG / "server.properties"))).warnings == ()


def test_the_shipped_broker_file_names_real_options_with_good_values() -> None:
    text = (CONFIG / "server.properties").read_text()
    everything = "\n".join(
        line.removeprefix("#") for line in text.splitlines() if not line.startswith("# ")
    )
    properties = parse_properties(everything)
    assert properties.keys() <= BROKER_OPTIONS.keys()
    BrokerConfig.parse(properties)


def test_the_shipped_broker_file_says_kafkas_defaults_except_for_one_broker() -> None:
    given = BrokerConfig.parse(read_properties(str(CONFIG / "server.properties")))
    defaults = BrokerConfig().values
    differing = {name for name in given.given if given.values[name] != defaults[name]}
    assert differing == OF_A_SINGLE_BROKER


def test_the_shipped_zookeeper_file_fits_the_sessions_of_brokers() -> None:
    properties = read_properties(str(CONFIG / "zookeeper.properties"))
    shortest, longest = (int(properties[f"{side}SessionTimeout"]) for side in ("min", "max"))
    assert shortest <= BrokerConfig().zookeeper_session_timeout_ms <= longest
