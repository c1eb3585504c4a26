"""Tests that the tables of `docs/moving.rst` name what the other clients and pybroker's client
have."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest

import pybroker.client
from pybroker.client import (
    Admin,
    Consumer,
    ConsumerRecord,
    Delivery,
    Producer,
    RebalanceListener,
)
from pybroker.client.errors import ClientError
from pybroker.client.options import AdminOptions, ConsumerOptions, ProducerOptions
from pybroker.records.record_buffer import partition_of_key
from unit_tests.sources import ROOT

PAGE: Final = ROOT / "docs" / "moving.rst"
OURS: Final[Mapping[str, type[Any]]] = {
    "producer": Producer,
    "consumer": Consumer,
    "admin": Admin,
    "delivery": Delivery,
    "listener": RebalanceListener,
    "record": ConsumerRecord,
}
CALL: Final = re.compile(r"(await )?(\w+)\.(\w+)")
CLASS: Final = re.compile(r"^[A-Z]\w+$|(?<![.\w])[A-Z]\w+(?=\()")


class Library(NamedTuple):
    """Another client: its module, the classes behind the names of variables in the tables, the
    modules with its errors, and the defaults of its options, by the kind of client."""

    module: ModuleType
    classes: Mapping[str, type[Any]]
    errors: ModuleType
    options: Mapping[str, Mapping[str, object]]


def _aiokafka() -> Library:
    aiokafka = pytest.importorskip("aiokafka", reason="install aiokafka")
    admin = pytest.importorskip("aiokafka.admin")
    classes = {
        "producer": aiokafka.AIOKafkaProducer,
        "consumer": aiokafka.AIOKafkaConsumer,
        "admin": admin.AIOKafkaAdminClient,
        "listener": aiokafka.ConsumerRebalanceListener,
        "record": aiokafka.ConsumerRecord,
    }
    options = {kind: _parameters(classes[kind]) for kind in ("producer", "consumer", "admin")}
    return Library(aiokafka, classes, pytest.importorskip("aiokafka.errors"), options)


def _kafka_python() -> Library:
    kafka = pytest.importorskip("kafka", reason="install kafka-python")
    future = pytest.importorskip("kafka.producer.future").FutureRecordMetadata
    classes = {
        "producer": kafka.KafkaProducer,
        "consumer": kafka.KafkaConsumer,
        "admin": kafka.KafkaAdminClient,
        "listener": kafka.ConsumerRebalanceListener,
        "future": future,
        "record": pytest.importorskip("kafka.consumer.fetcher").ConsumerRecord,
    }
    options = {kind: classes[kind].DEFAULT_CONFIG for kind in ("producer", "consumer", "admin")}
    return Library(kafka, classes, pytest.importorskip("kafka.errors"), options)


def _confluent_kafka() -> Library:
    confluent = pytest.importorskip("confluent_kafka", reason="install confluent-kafka")
    admin = pytest.importorskip("confluent_kafka.admin")
    classes = {
        "producer": confluent.Producer,
        "consumer": confluent.Consumer,
        "admin": admin.AdminClient,
        "message": confluent.Message,
    }
    return Library(confluent, classes, confluent, {})


LIBRARIES: Final[Mapping[str, Callable[[], Library]]] = {
    "aiokafka": cache(_aiokafka),
    "kafka-python": cache(_kafka_python),
    "confluent-kafka": cache(_confluent_kafka),
}
NOT_FOR_USERS: Final = {
    "DEFAULT_CONFIG", "DEFAULT_SESSION_TIMEOUT_MS_PRE_KIP_735", "DEPRECATED_CONFIGS", "args",
    "chain", "count", "delivery_count", "error_on_callbacks", "failed", "failure", "index",
    "rebind", "retriable", "set_error", "set_headers", "set_key", "set_topic", "set_value",
    "succeeded", "success",
}  # fmt: skip
"""Public names that no application needs to replace."""
NOT_OPTIONS: Final = ("consumer.store_offsets", "logging", "pybroker.client")
everywhere = pytest.mark.parametrize("library", LIBRARIES)


def _parameters(kind: type[Any]) -> dict[str, object]:
    found = inspect.signature(kind.__init__).parameters.values()
    return {
        each.name: each.default
        for each in found
        if each.name != "self" and each.kind is not each.VAR_POSITIONAL
    }


@cache
def rows(kind: str, library: str) -> list[list[str]]:
    """Return the rows of a table without its head; a row is a list of cells."""
    _, found, rest = PAGE.read_text().partition(f".. list-table:: {kind}: {library}\n")
    assert found, f"the page has no table {kind}: {library}"
    table = re.split(r"(?m)^(?=\S)", rest)[0]
    cells = [re.split(r"\n     - ", row) for row in table.split("   * - ")[1:]]
    return [[" ".join(cell.split()) for cell in row] for row in cells][1:]


def literals(cell: str) -> list[str]:
    return re.findall(r"``(.+?)``", cell)


def same_options(library: str) -> dict[str, list[str]]:
    """Return the options that the page calls the same, by the kind of client."""
    section = PAGE.read_text().partition(f".. list-table:: Calls: {library}\n")[2]
    text = section.partition("These options have the same names: ")[2].partition("\n\n")[0]
    text = " ".join(text.split())
    of_all, _, of_consumers = text.partition("of consumers")
    return {"producer": literals(of_all), "consumer": literals(of_consumers)}


def our_options(kind: str) -> dict[str, object]:
    """Return the options and arguments of one of our clients, and their defaults."""
    table = {"producer": ProducerOptions, "consumer": ConsumerOptions, "admin": AdminOptions}[kind]
    values = {field.name: field.default for field in dataclasses.fields(table)}
    return {**_parameters(OURS[kind]), **values}


def names_of(kind: type[Any]) -> set[str]:
    """Return the names of the public attributes of a class."""
    fields = {*dir(kind), *getattr(kind, "__annotations__", ())}
    return {name for name in fields if not name.startswith("_")}


def wrong_calls(text: str, classes: Mapping[str, type[Any]]) -> Iterator[str]:
    """Yield the calls in a literal that the classes do not have, and those whose `await` is
    wrong."""
    for awaited, variable, name in CALL.findall(text):
        kind = classes.get(variable)
        if kind is None:
            continue
        if name not in names_of(kind):
            yield f"{text}: {kind.__name__} has no {name}"
        elif bool(awaited) != inspect.iscoroutinefunction(getattr(kind, name, None)):
            yield f"{text}: await is {'wrong' if awaited else 'missing'}"


@everywhere
def test_the_tables_name_calls_that_exist(library: str) -> None:
    other = LIBRARIES[library]()
    found = [
        problem
        for left, right in rows("Calls", library)
        for cell, classes in ((left, other.classes), (right, OURS))
        for text in literals(cell)
        for problem in wrong_calls(text, classes)
    ]
    assert found == []


@everywhere
def test_every_call_of_the_other_client_is_in_its_table(library: str) -> None:
    other = LIBRARIES[library]()
    known = {
        (variable, name)
        for left, _ in rows("Calls", library)
        for text in literals(left)
        for _, variable, name in CALL.findall(text)
    }
    missing = [
        f"{variable}.{name}"
        for variable, kind in other.classes.items()
        for name in sorted(names_of(kind) - NOT_FOR_USERS)
        if (variable, name) not in known
    ]
    assert missing == []


@everywhere
def test_the_tables_name_classes_that_exist(library: str) -> None:
    other = LIBRARIES[library]()
    known = {*dir(other.module), *(kind.__name__ for kind in other.classes.values())}
    for left, right in rows("Calls", library):
        assert {name for text in literals(left) for name in CLASS.findall(text)} <= known
        ours = {name for text in literals(right) for name in CLASS.findall(text)}
        assert ours <= {*dir(pybroker.client), *dir(pybroker.client.metrics)}, right


@everywhere
def test_every_option_of_the_other_client_is_on_the_page(library: str) -> None:
    other = LIBRARIES[library]()
    same = same_options(library)
    told = {name for names in same.values() for name in names}
    told |= {text for left, _ in rows("Options", library) for text in literals(left)}
    theirs = {name for options in other.options.values() for name in options}
    assert sorted(theirs - told) == []
    if theirs:
        assert sorted(told - theirs) == []


@everywhere
def test_options_with_the_same_name_exist_in_both_clients(library: str) -> None:
    for kind, names in same_options(library).items():
        ours = our_options(kind)
        assert names
        assert [
            name for name in names if name.replace(".", "_") not in {**ours, "max_in_flight": 5}
        ] == []


@everywhere
def test_options_in_the_table_exist(library: str) -> None:
    ours = {name for kind in ("producer", "consumer", "admin") for name in our_options(kind)}
    for _, right in rows("Options", library):
        for text in literals(right):
            if "(" in text:
                assert list(wrong_calls(text, OURS)) == []
            elif re.fullmatch(r"[a-z_.]+", text) and text not in NOT_OPTIONS:
                assert text.replace(".", "_") in ours, text


@pytest.mark.parametrize("library", ["aiokafka", "kafka-python"])
def test_the_page_lists_every_default_that_differs(library: str) -> None:
    other = LIBRARIES[library]()
    differing = {
        name
        for kind, options in other.options.items()
        for name, value in options.items()
        if name in our_options(kind) and not is_same(value, our_options(kind)[name])
    }
    listed = {
        literals(cell)[0]: (theirs, ours)
        for cell, theirs, ours in rows("Defaults that differ", library)
    }
    assert listed.keys() == differing
    for name, shown in listed.items():
        pairs = [
            (options[name], our_options(kind)[name])
            for kind, options in other.options.items()
            if name in options and name in our_options(kind)
        ]
        assert any(all(map(shows, shown, pair)) for pair in pairs), (name, pairs)


def shows(text: str, value: object) -> bool:
    """Return whether the text of a cell is the value of an option."""
    if text == "all":
        return value == -1
    if isinstance(value, tuple):
        return text == ", ".join(str(getattr(each, "name", each)) for each in value)
    return text == str(value) or type(value) is object  # aiokafka does not show its default of acks


def is_same(theirs: object, ours: object) -> bool:
    """Return whether two defaults have the same effect. Addresses, names of clients and functions
    are not compared."""
    if isinstance(ours, str) and theirs is None:
        return ours in ("", "none", "pybroker")
    if isinstance(theirs, str):
        return theirs.lower() == str(ours) or isinstance(ours, tuple) or ours == "pybroker"
    return theirs == ours or ours is None


@everywhere
def test_the_tables_name_errors_that_exist(library: str) -> None:
    other = LIBRARIES[library]()
    for left, right in rows("Errors", library):
        for text in literals(left):
            name, _, member = text.removesuffix("()").partition(".")
            found = getattr(other.errors, name, None) or getattr(builtins, name, None)
            assert found is not None, text
            assert not member or hasattr(found, member), text
        for name in re.findall(r"``([A-Z]\w+)``", right):
            assert issubclass(getattr(pybroker.client, name), ClientError), name


def test_confluent_kafka_knows_its_options() -> None:
    confluent = LIBRARIES["confluent-kafka"]().module
    names = [name for names in same_options("confluent-kafka").values() for name in names]
    for table in ("Options", "Defaults that differ"):
        names += [name for row in rows(table, "confluent-kafka") for name in literals(row[0])]
    assert len(names) > 60
    assert [name for name in names if not is_known(confluent, name)] == []


def is_known(confluent: ModuleType, name: str) -> bool:
    """Return whether a producer or a consumer of confluent-kafka has the option, whatever its
    values are."""
    for kind in (confluent.Producer, confluent.Consumer):
        try:
            kind({"group.id": "group", name: "?"})
        except (TypeError, ValueError):
            return True  # the option is a function
        except confluent.KafkaException as error:
            if "No such configuration property" in str(error):
                continue
        return True
    return False


def test_the_partitioner_for_keys_of_confluent_kafka_chooses_as_it_does() -> None:
    confluent = LIBRARIES["confluent-kafka"]().module
    assert "zlib.crc32(key) % len(topic.partitions)" in PAGE.read_text()
    keys = [b"ann", b"\x00", b"\xff" * 100]
    assert [confluent.consistent(key, 12) for key in keys] == [zlib.crc32(key) % 12 for key in keys]
    assert [confluent.murmur2(key, 12) for key in keys] == [
        partition_of_key(key, 12) for key in keys
    ]
