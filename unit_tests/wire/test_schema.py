"""Tests of the rules for all declarations, and of the encoder's errors."""

from __future__ import annotations

import ast
import importlib
import pathlib
import pkgutil

import pytest

from pybroker import wire
from pybroker.wire import messages
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_message, encode_request
from pybroker.wire.messages.groups import JoinGroupRequest
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.wire.messages.topics import DeleteTopicsRequest, DeleteTopicState
from pybroker.wire.schema import (
    LATEST,
    Message,
    WireField,
    array,
    int16,
    int32,
    int64,
    message,
    minimum_size,
    optional,
    string,
    string_array,
    wire_fields,
)
from unit_tests.wire.vocabulary import CASES


def declared() -> list[type[Message]]:
    """Return all messages and nested structures of the modules in `messages`."""
    modules = [
        importlib.import_module(f"{messages.__name__}.{found.name}")
        for found in pkgutil.iter_modules(messages.__path__)
    ]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    ]


FIELDS = [(cls, field) for cls in declared() for field in wire_fields(cls)]


def nesting(message_class: type[Message]) -> int:
    """Return the nesting depth of a structure. The recursion never ends for a structure that
    contains itself."""
    elements = [field.wire.element for field in wire_fields(message_class)]
    return 1 + max((nesting(element) for element in elements if element), default=0)


def test_every_structure_belongs_to_an_api() -> None:
    def below(message_class: type[Message]) -> set[type[Message]]:
        elements = (field.wire.element for field in wire_fields(message_class))
        nested = (below(element) for element in elements if element)
        return {message_class}.union(*nested)

    reachable = set().union(*(below(api.request) | below(api.response) for api in APIS.values()))
    assert reachable == set(declared())


def test_nesting_depth_is_limited() -> None:
    assert max(nesting(message_class) for message_class in declared()) <= 5


@pytest.mark.parametrize(
    ("message_class", "field"), FIELDS, ids=[f"{cls.__name__}.{f.name}" for cls, f in FIELDS]
)
def test_field_declarations_are_consistent(message_class: type[Message], field: WireField) -> None:
    wire_type = field.wire
    assert wire_type.meaning.endswith(".")
    assert 0 <= wire_type.since <= wire_type.until <= LATEST
    if wire_type.nullable_since is None and field.default is None:
        assert field.is_fresh_list or wire_type.tag is not None
    if wire_type.tag is not None:
        owners = {
            api.flexible_since
            for api in APIS.values()
            if message_class in (api.request, api.response)
        }
        assert all(first is not None and wire_type.since >= first for first in owners)
    assert issubclass(message_class, Message)


def test_no_field_is_declared_for_a_version_that_does_not_exist() -> None:
    for case in CASES:
        for field in wire_fields(case.message_class):
            assert field.wire.since <= case.api.max_version
            assert field.wire.until == LATEST or field.wire.until < case.api.max_version


def test_default_message_has_at_least_the_minimum_size() -> None:
    for case in CASES:
        smallest = minimum_size(case.message_class, case.version, case.flexible)
        assert len(case.encode(case.message_class())) >= smallest


@message
class Inner(Message):
    number: int = int32("A number.")
    text: str | None = string("A text.", since=1, nullable_since=2, ignorable=True)


@message
class Outer(Message):
    strict: int = int16("Cannot be dropped.", since=1)
    names: list[str] = string_array("Cannot be dropped.", until=1)
    inner: list[Inner] = array(Inner, "Some more.")
    tagged: Inner | None = optional(Inner, "Travels by tag.", since=2, tag=3)
    late: int = int64("Travels by tag.", since=2, tag=1, default=-1)


def test_a_declaration_is_a_dataclass_with_slots() -> None:
    outer = Outer(strict=1, inner=[Inner(number=2)])
    assert outer == Outer(strict=1, inner=[Inner(number=2)])
    assert repr(Inner(number=1, text=None)) == "Inner(number=1, text=None)"
    with pytest.raises(AttributeError):
        outer.typing_error = 1  # type: ignore[attr-defined]


def test_tagged_fields_are_sorted_and_defaults_are_omitted() -> None:
    full = Outer(tagged=Inner(number=1, text=None), late=2)
    assert encode_message(full, 2, True).hex() == ("00000102010800000000000000020306000000010000")
    assert encode_message(Outer(), 2, True).hex() == "00000100"


REFUSED = {
    "a value that the version lacks": (Outer(strict=1), 0, "Outer.strict is set, but version 0"),
    "a list that the version lacks": (Outer(names=["a"]), 2, "Outer.names is set, but version 2"),
    "a tag in a version without": (Outer(late=1), 1, "Outer.late is set, but version 1"),
    "null too early": (Inner(text=None), 1, "Inner.text must not be null in version 1"),
    "a number too large": (Inner(number=2**31), 0, "Inner v0"),
    "a number of the wrong type": (Inner(number="1"), 0, "Inner v0"),  # type: ignore[arg-type]
    "a text too long": (
        Inner(text="x" * 32768),
        1,
        "Inner.text: the string has more than 32767 bytes",
    ),
    "half a surrogate pair": (Inner(text="\ud800"), 1, "surrogates not allowed"),
    "null in a list": (Outer(names=[None]), 0, "names must not be null"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_encoding_of_invalid_values_is_rejected(row: tuple[Message, int, str]) -> None:
    refused, version, complaint = row
    with pytest.raises(ValueError, match=complaint):
        encode_message(refused, version, version >= 2)


def test_ignorable_field_is_omitted() -> None:
    assert encode_message(Inner(number=1, text="lost"), 0, False).hex() == "00000001"


def test_encoding_of_invalid_real_messages_is_rejected() -> None:
    static = JoinGroupRequest(group_instance_id="me")
    with pytest.raises(
        ValueError, match=r"JoinGroupRequest\.group_instance_id is set, but version 4"
    ):
        encode_request(APIS[ApiKey.JOIN_GROUP], 4, static)
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    with pytest.raises(ValueError, match=r"DeleteTopicsRequest\.topics is set, but version 5"):
        encode_request(APIS[ApiKey.DELETE_TOPICS], 5, by_id)
    nameless = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
    with pytest.raises(ValueError, match="name must not be null in version 9"):
        encode_request(APIS[ApiKey.METADATA], 9, nameless)


def test_wire_modules_do_no_io() -> None:
    forbidden = {"asyncio", "socket", "os", "time", "logging", "threading", "pathlib"}
    for path in sorted(pathlib.Path(wire.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert forbidden.isdisjoint(name.name.split(".")[0] for name in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in forbidden, path
