"""Conversion of a message to plain values, in the format that Kafka's tools print as JSON."""

from __future__ import annotations

import base64
from typing import Any

from pybroker.wire.schema import Message, wire_fields


def plain(message: Message, version: int) -> dict[str, Any]:
    """Return field name -> value, for the message's fields in this version. Names are in camel
    case, bytes are base64 text, nested structures are dictionaries."""
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
