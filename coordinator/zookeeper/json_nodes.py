"""The JSON content of nodes, checked on every access. `schemas.py` defines the keys of each
node."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Final

from pybroker.errors import MalformedNode

_INT32_MIN: Final = -(2**31)
_INT32_MAX: Final = 2**31 - 1
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_SHOWN_CHARACTERS_MAX: Final = 80
_DECIMAL = re.compile(r"\s*-?[0-9]{1,19}\s*", re.ASCII)


def dump(content: Mapping[str, object]) -> bytes:
    """Encode as compact UTF-8 JSON."""
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def load(path: str, data: bytes) -> object:
    """Decode any JSON value. Raises MalformedNode."""
    try:
        content: object = json.loads(data)
        if b"\\u" in data or not data.isascii():
            # json accepts half a surrogate pair. Such text cannot be sent, logged or written again.
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise malformed(path, "JSON", data) from error
    return content


def load_object(path: str, data: bytes) -> Fields:
    """Decode a JSON object. Raises MalformedNode."""
    content = load(path, data)
    if not isinstance(content, dict):
        raise malformed(path, "a JSON object", data)
    return Fields(path, "", content)


def malformed(path: str, expected: str, found: object) -> MalformedNode:
    """Return an error with the path, `expected` and `found`. If `found` is long, it is cut."""
    shown = repr(found)
    if len(shown) > _SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:_SHOWN_CHARACTERS_MAX]}..."
    return MalformedNode(f"the node {path} is malformed: expected {expected}, found {shown}")


def decimal(text: str) -> int | None:
    """Return the decimal number of at most 64 bits in `text`, which may have white space around it;
    None if `text` is anything else."""
    number = int(text) if _DECIMAL.fullmatch(text) else None
    return number if number is not None and _INT64_MIN <= number <= _INT64_MAX else None


class Fields:
    """A JSON object of a node. Every method raises MalformedNode if the value under `key` has
    another type, or is missing and has no default."""

    def __init__(self, path: str, where: str, content: Mapping[str, object]) -> None:
        self._path = path
        self._where = where
        self._content = content

    def names(self) -> list[str]:
        return list(self._content)

    def without(self, keys: Collection[str]) -> dict[str, object]:
        """Return all fields of the object except those named in `keys`."""
        return {key: value for key, value in self._content.items() if key not in keys}

    def integer(self, key: str) -> int:
        return self._as_integer(key, self._content.get(key))

    def integers(self, key: str, *, required: bool = True) -> tuple[int, ...]:
        return tuple(self._as_integer(key, value) for value in self._list(key, required=required))

    def text(self, key: str, *, default: str | None = None) -> str:
        value = self._content.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def texts(self, key: str, *, required: bool = True) -> dict[str, str]:
        inner = self.nested(key, required=required)
        return {name: inner.text(name) for name in inner.names()}

    def text_list(self, key: str) -> list[str]:
        values = self._list(key, required=True)
        if not all(isinstance(value, str) for value in values):
            raise self._wrong(key, "a list of strings", values)
        return [str(value) for value in values]

    def number(self, name: str) -> int:
        """Parse the key `name` itself as a number, for nodes whose keys are numbers. The number
        must be decimal and fit into 32 bits."""
        number = decimal(name) if name.isascii() and name.isdigit() else None
        if number is None or number > _INT32_MAX:
            raise malformed(self._path, f"numbers as keys of {self._where}", name)
        return number

    def number_in_text(self, key: str, *, default: int | None = None) -> int:
        """Return the integer that the string under `key` contains. It must fit into 64 bits."""
        value = self._content.get(key)
        if value is None and default is not None:
            return default
        number = decimal(value) if isinstance(value, str) else None
        if number is None:
            raise self._wrong(key, "a decimal number in a string", value)
        return number

    def nested(self, key: str, *, required: bool = True) -> Fields:
        value = self._content.get(key)
        if value is None and not required:
            value = {}
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Fields(self._path, self._name_of(key), value)

    def objects(self, key: str) -> list[Fields]:
        values = self._list(key, required=True)
        for value in values:
            if not isinstance(value, dict):
                raise self._wrong(key, "a list of objects", value)
        name = self._name_of(key)
        return [Fields(self._path, name, value) for value in values if isinstance(value, dict)]

    def _list(self, key: str, *, required: bool) -> list[object]:
        value = self._content.get(key)
        if value is None and not required:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def _as_integer(self, key: str, value: object) -> int:
        if type(value) is int and _INT32_MIN <= value <= _INT32_MAX:  # a bool is an int in Python
            return value
        raise self._wrong(key, "an integer of 32 bits", value)

    def _wrong(self, key: str, expected: str, found: object) -> MalformedNode:
        where = f"{expected} at {self._name_of(key)}"
        return malformed(self._path, where, "nothing" if found is None else found)

    def _name_of(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key
