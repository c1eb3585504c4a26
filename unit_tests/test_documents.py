"""Tests that the documentation pages and sample files agree with the code."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from docs import (
    make_authority,
    make_client_metrics,
    make_config_files,
    make_configuration,
    make_states,
)
from pybroker import client
from pybroker.client import Admin, ClientError
from pybroker.client.metrics import FAMILIES
from pybroker.client.options import (
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    parse_options,
)
from pybroker.config.broker_config import BROKER_OPTIONS, BrokerConfig
from pybroker.config.properties import parse_properties, read_properties
from pybroker.config.topic_config import TOPIC_OPTIONS
from pybroker.coordinator.controller import partitions, replicas
from pybroker.coordinator.groups import states
from pybroker.coordinator.transactions import states as transaction_states
from pybroker.replication.authority import NEEDED, Authority
from pybroker.storage import replica_health
from unit_tests.sources import ROOT, TEST_FOLDERS

CONFIG = ROOT / "config"
FILES = sorted(CONFIG.glob("*.properties"))
SERVER = CONFIG / "server.properties"
CLIENTS: dict[str, type[ClientOptions]] = {
    "producer.properties": ProducerOptions,
    "consumer.properties": ConsumerOptions,
}
OF_A_SINGLE_BROKER = {
    "broker.id",
    "listeners",
    "log.dirs",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "zookeeper.connection.timeout.ms",
    "group.initial.rebalance.delay.ms",
}


def settings_of(path: Path) -> list[tuple[str, str, str]]:
    """Return (setting, value, comment above it) of each setting of a file, including commented-out
    settings.
    """
    found = []
    comment = ""
    for line in path.read_text().splitlines():
        if line.startswith("# "):
            comment += line
        elif line.strip("#"):
            name, _, value = line.lstrip("#").partition("=")
            found.append((name, value, comment))
            comment = ""
        elif not line:
            comment = ""
    return found


def everything(path: Path) -> dict[str, str]:
    """Return all settings of a file, including commented-out settings."""
    return {name: value for name, value, _ in settings_of(path)}


def test_the_page_of_options_is_made_from_the_tables() -> None:
    assert make_configuration.PAGE.read_text() == make_configuration.render(), "run: make docs"


def test_an_asterisk_that_is_a_value_is_not_markup() -> None:
    text = make_configuration.render()
    assert r"PARTITION:BROKER or \*; default" in text
    assert not re.search(r"(?<=\s)\*(?=[^\w\s*])", text)


@pytest.mark.parametrize("name", ["authorizer.class.name", "zookeeper.set.acl"])
def test_option_that_stops_the_start_is_not_called_without_effect(name: str) -> None:
    entry = make_configuration.render().split(f"``{name}``\n", 1)[1].split("\n\n", 1)[0]
    assert entry.endswith("**refused here**.")
    assert "without effect" not in entry
    commented = make_config_files.render_server().split(f"#{name}=", 1)[0].split("\n\n")[-1]
    assert "start fails" in " ".join(commented.split("\n# "))
    assert "without effect" not in commented


def _size(moves: Mapping[Any, Collection[Any]]) -> int:
    return sum(map(len, moves.values()))


@pytest.mark.parametrize("name", make_states.TABLES)
def test_the_diagrams_of_states_are_made_from_their_tables(name: str) -> None:
    assert make_states.render(name) in make_states.page_of(name).read_text(), "run: make docs"
    moves = [line for line in make_states.render(name).splitlines() if line.startswith("    ")]
    count = {
        make_states.CONTROLLER: _size(partitions.LEGAL_MOVES) + _size(replicas.LEGAL_MOVES),
        make_states.HEALTH: _size(replica_health.LEGAL_MOVES),
        make_states.GROUPS: _size(states.LEGAL_MOVES),
        make_states.TRANSACTIONS: _size(transaction_states.LEGAL_MOVES),
    }
    assert len(moves) == count[name]


def test_the_table_of_authorities_is_made_from_its_rows() -> None:
    rendered = make_authority.render()
    assert rendered in make_authority.PAGE.read_text(), "run: make docs"
    words = [f"``{each.name}``" for each in Authority] + [*NEEDED]
    assert [word for word in words if word not in rendered] == []


def test_the_tables_of_client_metrics_are_made_from_their_classes() -> None:
    rendered = make_client_metrics.render()
    assert rendered in make_client_metrics.PAGE.read_text(), "run: make docs"
    assert [of.name for of in FAMILIES if f"``{of.name}``" not in rendered] == []


@pytest.mark.parametrize("name", make_states.ANSWERS)
def test_states_are_shown_with_all_their_answers(name: str) -> None:
    text = make_states.render(name)
    for answers in make_states.ANSWERS[name].values():
        assert all(f"- {asked.value}: {answer}." in text for asked, answer in answers.items())


@pytest.mark.parametrize("name", make_config_files.render_all())
def test_the_sample_files_are_made_from_the_tables(name: str) -> None:
    assert (CONFIG / name).read_text() == make_config_files.render_all()[name], "run: make docs"


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_each_setting_occurs_once_and_has_its_comment(path: Path) -> None:
    settings = settings_of(path)
    names = [name for name, _, _ in settings]
    assert names
    assert len(names) == len(set(names))
    assert [name for name, _, comment in settings if not comment] == []


def test_the_shipped_broker_file_names_every_option_with_its_default() -> None:
    assert everything(SERVER).keys() == BROKER_OPTIONS.keys()
    for name, _, comment in settings_of(SERVER):
        default = BROKER_OPTIONS[name].format(BROKER_OPTIONS[name].default)
        told = re.sub(r"# | *#", " ", comment)
        assert ("No default" if default is None else f"Default {default or 'empty'}.") in told, name


def test_the_shipped_broker_file_names_every_option_of_topics() -> None:
    text = SERVER.read_text()
    missing = [name for name in TOPIC_OPTIONS if not re.search(rf"[ ]{re.escape(name)}[.,:]", text)]
    assert not missing


def test_the_shipped_broker_file_loads_without_a_warning() -> None:
    assert BrokerConfig.parse(read_properties(str(SERVER))).warnings == ()


def test_commented_out_values_of_the_shipped_broker_file_are_valid() -> None:
    for name, value in everything(SERVER).items():
        if value:
            BROKER_OPTIONS[name].parse(value)


def test_the_shipped_broker_file_has_kafkas_defaults_except_for_single_brokers() -> None:
    given = BrokerConfig.parse(read_properties(str(SERVER)))
    defaults = BrokerConfig().values
    differing = {name for name in given.given if given.values[name] != defaults[name]}
    assert differing == OF_A_SINGLE_BROKER


def test_the_sections_of_the_broker_file_list_every_option_once() -> None:
    names = [row.name for _, rows in make_config_files.sections() for row in rows]
    assert sorted(names) == sorted(BROKER_OPTIONS)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_shipped_client_files_hold_every_option_with_its_default(name: str) -> None:
    kind = CLIENTS[name]
    assert parse_options(kind, everything(CONFIG / name)) == kind()
    assert parse_options(kind, parse_properties((CONFIG / name).read_text())) == kind()
    assert len(everything(CONFIG / name)) == len(kind.__dataclass_fields__)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_first_part_of_a_client_file_is_valid_for_every_client(name: str) -> None:
    first = (CONFIG / name).read_text().partition("# ---- The ")[0]
    uncommented = re.sub(r"(?m)^#(?! |$)", "", first)
    assert parse_options(AdminOptions, parse_properties(uncommented)) == AdminOptions()


def test_the_shipped_zookeeper_file_fits_the_sessions_of_brokers() -> None:
    properties = read_properties(str(CONFIG / "zookeeper.properties"))
    shortest, longest = (int(properties[f"{side}SessionTimeout"]) for side in ("min", "max"))
    assert shortest <= BrokerConfig().zookeeper_session_timeout_ms <= longest


PAGES_WITH_TABLES = [
    path for path in sorted((ROOT / "docs").glob("*.rst")) if "list-table::" in path.read_text()
]


@pytest.mark.parametrize("path", PAGES_WITH_TABLES, ids=lambda path: path.stem)
def test_all_rows_of_a_table_have_the_same_number_of_cells(path: Path) -> None:
    """A table with rows of different lengths is not rendered."""
    for table in re.split(r"(?m)^\.\. list-table::.*$", path.read_text())[1:]:
        rows: list[tuple[str, int]] = []
        for line in re.split(r"(?m)^(?=\S)", table)[0].splitlines():
            if line.startswith("   * -"):
                rows.append((line, 1))
            elif line.startswith("     -"):
                text, cells = rows[-1]
                rows[-1] = text, cells + 1
        assert [text for text, cells in rows if cells != rows[0][1]] == []


def test_the_track_record_names_tests_that_exist() -> None:
    table = (ROOT / "docs" / "reliability.rst").read_text().partition("Track record\n")[2]
    rows = re.findall(r"(?m)^     - ``(\w+tests/[\w/]+\.py)``:\n       ``(test_\w+)``$", table)
    assert len(rows) == table.count("   * - ") - table.count("   * - bug\n")
    missing = [
        f"{path}::{name}" for path, name in rows if f"def {name}(" not in (ROOT / path).read_text()
    ]
    assert not missing


def names_of_tests() -> set[str]:
    """Return the files and the functions of all tests."""
    names = set()
    for path in (path for folder in TEST_FOLDERS for path in (ROOT / folder).rglob("test_*.py")):
        names |= {path.name, *re.findall(r"def (test_\w+)\(", path.read_text())}
    return names


def test_the_pages_name_tests_that_exist() -> None:
    pages = [*(ROOT / "docs").glob("*.rst"), ROOT / "pybroker" / "ARCHITECTURE.rst"]
    named = {
        (name, page.name)
        for page in pages
        for name in re.findall(r"``(?:\w+/)*(test_\w+(?:\.py)?)``", page.read_text())
    }
    assert len(named) > 100
    known = names_of_tests()
    assert sorted((name, page) for name, page in named if name not in known) == []


def test_every_error_of_the_client_is_on_the_client_page() -> None:
    page = (ROOT / "docs" / "client.rst").read_text(encoding="utf-8")
    section = page.partition("\nErrors\n------\n")[2].partition("\nSpeed\n-----\n")[0]
    found = {name for name in client.__all__ if is_error(getattr(client, name))}
    assert len(found) > 30
    assert {name for name in found if f"``{name}``" not in section} == set()


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, ClientError)


@pytest.mark.parametrize("name", ["client", "moving"])
def test_every_program_of_the_pages_about_the_client_is_run_by_a_test(name: str) -> None:
    tests = "".join(path.read_text() for path in (ROOT / "integration_tests").glob("test_*.py"))
    marks = [
        re.sub(r"\\{\w+\\}", r"\\w+", re.escape(mark))
        for _, mark in re.findall(rf'program\("docs/{name}\.rst", f?(["\'])(.+?)\1\)', tests)
    ]
    page = (ROOT / "docs" / f"{name}.rst").read_text(encoding="utf-8")
    blocks = re.split(r"(?m)^(?=\S)", page)
    programs = [block for block in blocks if re.search(r"(?m)^    (from|import) ", block)]
    assert len(programs) > 6
    assert [each for each in programs if not any(re.search(mark, each) for mark in marks)] == []


def test_every_operation_of_admin_is_on_the_client_page() -> None:
    page = (ROOT / "docs" / "client.rst").read_text(encoding="utf-8")
    operations = {name for name in vars(Admin) if not name.startswith("_")} - {"start", "close"}
    assert {name for name in operations if f"``{name}``" not in page} == set()
