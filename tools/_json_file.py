"""Reads the fields of a user's JSON file. A missing field or a wrong type raises Failure with the
message of Kafka's tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pybroker.tools._cli import Failure

INT32: Final = range(-(2**31), 2**31)
INT64: Final = range(-(2**63), 2**63)


def read_file(path: str) -> str:
    """Return the text of a file. Raises Failure if the file cannot be read or is not UTF-8."""
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not UTF-8 text") from error


def json_field(fields: Mapping[str, object], name: str) -> object:
    """Return the value of a required key. Raises Failure if the key is missing."""
    if name not in fields:
        raise Failure(f"No such field exists: `{name}`")
    return fields[name]


def json_integer(value: object, kind: str, bounds: range) -> int:
    """Return the value if it is an integer within `bounds`; raise Failure otherwise. `kind` is the
    Java type that the error message names."""
    if isinstance(value, int) and not isinstance(value, bool) and value in bounds:
        return value
    raise _unexpected(f"`{kind}` value", value)


def json_object(value: object) -> dict[str, object]:
    """Return the JSON value if it is an object; raise Failure otherwise."""
    if isinstance(value, dict):
        return value
    raise _unexpected("JSON object", value)


def json_array(value: object) -> list[object]:
    """Return the JSON value if it is an array; raise Failure otherwise."""
    if isinstance(value, list):
        return value
    raise _unexpected("JSON array", value)


def json_text(value: object) -> str:
    """Return the JSON value if it is a string; raise Failure otherwise."""
    if isinstance(value, str):
        return value
    raise _unexpected("`String` value", value)


def _unexpected(kind: str, value: object) -> Failure:
    return Failure(f"Expected {kind}, received {json.dumps(value)}")
