"""A message as plain values, in the shape that Kafka's tools print as JSON."""

from __future__ import annotations

import base64
from typing import Any

from pybroker.wire.schema import Message, wire_fields


def plain(message: Message, version: int) -> dict[str, Any]:
    """Return the fields of the version, in their order: names in camel case, bytes as base64 text,
    arrays as lists."""
    return {
        _camel(field.name): _plain_value(getattr(message, field.name), version)
        for field in wire_fields(type(message))
        if field.wire.exists_in(version)
    }


def _plain_value(value: Any, version: int) -> Any:
    match value:
        case Message():
            return plain(value, version)
        case list():
            return [_plain_value(element, version) for element in value]
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
