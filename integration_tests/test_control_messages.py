"""Tests that Kafka's own classes read our messages between brokers with the same content, and write
the same bytes; our additional fields pass through.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration_tests import maven
from integration_tests.process import ChildProcess
from pybroker.model import encode_uuid
from pybroker.wire.api import BETWEEN_BROKERS
from pybroker.wire.schema import Message, wire_fields
from unit_tests.wire.vocabulary import CASES, Case

CONTROL = [case for case in CASES if case.api.key in BETWEEN_BROKERS]


@pytest.fixture(scope="module")
def kafka(jars: str) -> Iterator[ChildProcess]:
    source = str(Path(__file__).parent / "java" / "Messages.java")
    process = ChildProcess([maven.java(), "-Xmx128m", "-cp", jars, source], interactive=True)
    yield process
    process.close()


def plain(message: Message, version: int) -> dict[str, Any]:
    """Return the message in Kafka's JSON form: names in camel case, ids in base64url, without
    tagged fields.
    """
    return {
        camel(field.name): value(getattr(message, field.name), version)
        for field in wire_fields(type(message))
        if field.wire.exists_in(version) and field.wire.tag is None
    }


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def value(found: object, version: int) -> object:
    match found:
        case Message():
            return plain(found, version)
        case list():
            return [value(each, version) for each in found]
        case uuid.UUID():
            return encode_uuid(found)
    return found


def test_all_control_messages_are_compared() -> None:
    assert len(CONTROL) == 2 * len(BETWEEN_BROKERS)


@pytest.mark.parametrize("case", CONTROL, ids=[case.name for case in CONTROL])
def test_kafkas_own_classes_read_and_write_the_same(kafka: ChildProcess, case: Case) -> None:
    for message in case.samples(20):
        body = case.encode(message).hex()
        question = f"{case.message_class.__name__} {case.version} {body}"
        _, written, text = kafka.ask(question, "^RESULT |Exception").split(" ", 2)
        assert json.loads(text) == plain(message, case.version)
        assert written == body
