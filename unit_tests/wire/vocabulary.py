"""Shared functions of the wire tests: all messages in all versions, with sample values."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies

from pybroker.errors import ErrorCode
from pybroker.wire.api import APIS, Api
from pybroker.wire.codec import decode_message, encode_message
from pybroker.wire.schema import Kind, Message, WireField, wire_fields

_INTEGER_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_CENTURY_MS = 4 * 10**12


@dataclass(frozen=True)
class Case:
    """A message class in one version."""

    api: Api
    message_class: type[Message]
    version: int

    @property
    def flexible(self) -> bool:
        return self.api.is_flexible(self.version)

    @property
    def name(self) -> str:
        return f"{self.message_class.__name__}-v{self.version}"

    def encode(self, message: Message) -> bytes:
        return encode_message(message, self.version, self.flexible)

    def decode(self, body: bytes | memoryview) -> Message:
        return decode_message(self.message_class, self.version, self.flexible, body)

    def samples(self, count: int = 4) -> list[Message]:
        """Return `count` messages, the same in every run. The first has default values only."""
        source = random.Random(self.name)
        filled = [sample(self.message_class, self.version, source) for _ in range(count - 1)]
        return [self.message_class(), *filled]


CASES = [
    Case(api, message_class, version)
    for api in APIS.values()
    for message_class in (api.request, api.response)
    for version in range(api.min_version, api.max_version + 1)
]


def case_name(case: Case) -> str:
    return case.name


def sample(message_class: type[Message], version: int, source: random.Random) -> Message:
    """Return a message with values that all implementations accept, such as known error codes and
    valid timestamps."""
    values = {
        field.name: _sample_field(field, version, source)
        for field in wire_fields(message_class)
        if field.wire.exists_in(version)
    }
    return message_class(**values)


def _sample_field(field: WireField, version: int, source: random.Random) -> Any:
    wire = field.wire
    if wire.is_nullable_in(version) and source.random() < 0.2:
        return None
    if wire.tag is not None and source.random() < 0.3:
        return [] if field.is_fresh_list else field.default
    if wire.is_array:
        return [_sample_value(field, version, source) for _ in range(source.randrange(4))]
    return _sample_value(field, version, source)


def _sample_value(field: WireField, version: int, source: random.Random) -> Any:
    wire = field.wire
    if wire.element is not None:
        return sample(wire.element, version, source)
    if field.name.endswith("error_code"):
        return int(source.choice(list(ErrorCode)))
    if wire.kind is Kind.INT64 and ("_ms" in field.name or "timestamp" in field.name):
        return source.randrange(_CENTURY_MS)
    if wire.kind is Kind.INT32 and field.name.endswith("_ms"):
        return source.randrange(2**31)
    if wire.kind in _INTEGER_BITS:
        half = 1 << (_INTEGER_BITS[wire.kind] - 1)
        return source.choice([-half, -1, 0, 1, half - 1, source.randrange(-half, half)])
    match wire.kind:
        case Kind.BOOLEAN:
            return source.random() < 0.5
        case Kind.FLOAT64:
            return source.choice([0.0, -1.5, 1e300, source.random()])
        case Kind.UUID:
            return uuid.UUID(int=source.getrandbits(128))
        case Kind.STRING:
            return source.choice(["a", "orders", "überschuß-€-😀", "x" * 130, "y" * 20_000])
        case _:
            return source.randbytes(source.choice([0, 1, 126, 127, 128, 5000, 20_000]))


def messages(message_class: type[Message], version: int) -> strategies.SearchStrategy[Message]:
    """Return a strategy for any message that the version can represent."""
    return strategies.builds(
        message_class,
        **{
            field.name: _field_values(field, version)
            for field in wire_fields(message_class)
            if field.wire.exists_in(version)
        },
    )


def _field_values(field: WireField, version: int) -> strategies.SearchStrategy[Any]:
    values = _plain_values(field, version)
    if field.wire.is_array:
        values = strategies.lists(values, max_size=2)
    if field.wire.is_nullable_in(version):
        values = strategies.none() | values
    return values


def _plain_values(field: WireField, version: int) -> strategies.SearchStrategy[Any]:
    wire = field.wire
    if wire.element is not None:
        return messages(wire.element, version)
    if wire.kind in _INTEGER_BITS:
        half = 1 << (_INTEGER_BITS[wire.kind] - 1)
        return strategies.integers(-half, half - 1)
    match wire.kind:
        case Kind.BOOLEAN:
            return strategies.booleans()
        case Kind.FLOAT64:
            return strategies.floats(allow_nan=False)
        case Kind.UUID:
            return strategies.uuids()
        case Kind.STRING:
            return strategies.text(max_size=20)
        case _:
            return strategies.binary(max_size=200)
