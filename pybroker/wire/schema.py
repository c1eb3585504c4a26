"""How a message is declared: one dataclass for all versions, its fields saying when they exist.

    @message
    class HeartbeatResponse(Message):
        throttle_time_ms: int = int32("How long the client should pause.", since=1, ignorable=True)
        error_code: int = int16("The error, or 0.")

A field's specifier names the wire type, the meaning in one sentence, and

- `since`, `until`: the versions that carry the field (default: all);
- `nullable_since`: from which version on it may be null (default: never);
- `tag`: the field travels in the tagged section of flexible versions, and only if it differs from
  its default;
- `default`: the value that a decoder sets if the version has no such field;
- `ignorable`: whether an encoder may drop a value that the version cannot carry. Without it, such a
  value is a ValueError, because the receiver would not get all that the sender means.

This module has the vocabulary only; `decoder` and `encoder` compile it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Final,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    dataclass_transform,
)

from pybroker.wire.primitives import Buffer

LATEST: Final = 0x7FFF
NO_UUID: Final = uuid.UUID(int=0)
_METADATA_KEY: Final = "wire"


class Kind(enum.Enum):
    """A wire type: the `struct` letter of those with a fixed size, else only a name."""

    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    FLOAT64 = "d"
    BOOLEAN = "?"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    STRUCT = "struct"

    @property
    def is_fixed(self) -> bool:
        """Whether every value of the type has the same size."""
        return self not in (Kind.STRING, Kind.BYTES, Kind.RECORDS, Kind.STRUCT)


class Message:
    """Base of all declared structures, top level or nested. It defines equality and text once, so
    that they are not generated for each of some 200 classes, which halves the time to import
    them."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]  # values change

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).__slots__)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__slots__)
        return f"{type(self).__name__}({values})"


MessageT = TypeVar("MessageT", bound=Message)
T = TypeVar("T")


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def memoized(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`functools.cache` with the function's own signature: the compiled result depends only on the
    declaration, so it is compiled once."""
    cached: Any = functools.cache(function)
    return cast("Callable[Parameters, Result]", cached)


@dataclass(frozen=True, slots=True)
class Wire:
    """The properties of a field from its specifier; see the module's docstring."""

    kind: Kind
    meaning: str
    is_array: bool = False
    element: type[Message] | None = None
    since: int = 0
    until: int = LATEST
    nullable_since: int | None = None
    tag: int | None = None
    ignorable: bool = False

    def exists_in(self, version: int) -> bool:
        """Whether that version carries the field."""
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        """Whether the field may be null in that version."""
        return self.nullable_since is not None and version >= self.nullable_since


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a message as the compilers see it."""

    name: str
    wire: Wire
    default: Any
    is_fresh_list: bool


class Bounds(TypedDict, total=False):
    """The keywords that every specifier takes."""

    since: int
    until: int
    nullable_since: int
    tag: int
    ignorable: bool


@dataclass_transform(kw_only_default=True)
def message(cls: type[T]) -> type[T]:
    """Makes a dataclass with slots and keyword arguments out of a declaration."""
    return dataclass(slots=True, kw_only=True, eq=False, repr=False, match_args=False)(cls)


def _specifier(wire: Wire, default: object) -> Any:
    if default is list:
        return dataclasses.field(default_factory=list, metadata={_METADATA_KEY: wire})
    return dataclasses.field(default=default, metadata={_METADATA_KEY: wire})


def int8(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """A signed integer of 8 bits."""
    value: int = _specifier(Wire(Kind.INT8, meaning, **bounds), default)
    return value


def int16(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """A signed integer of 16 bits."""
    value: int = _specifier(Wire(Kind.INT16, meaning, **bounds), default)
    return value


def int32(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """A signed integer of 32 bits."""
    value: int = _specifier(Wire(Kind.INT32, meaning, **bounds), default)
    return value


def int64(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """A signed integer of 64 bits."""
    value: int = _specifier(Wire(Kind.INT64, meaning, **bounds), default)
    return value


def float64(meaning: str, *, default: float = 0.0, **bounds: Unpack[Bounds]) -> float:
    """An IEEE 754 number of 64 bits."""
    value: float = _specifier(Wire(Kind.FLOAT64, meaning, **bounds), default)
    return value


def boolean(meaning: str, *, default: bool = False, **bounds: Unpack[Bounds]) -> bool:
    """One byte, 0 or 1; a decoder takes any other value as true."""
    value: bool = _specifier(Wire(Kind.BOOLEAN, meaning, **bounds), default)
    return value


def identifier(
    meaning: str, *, default: uuid.UUID = NO_UUID, **bounds: Unpack[Bounds]
) -> uuid.UUID:
    """A UUID; the zero UUID means none."""
    value: uuid.UUID = _specifier(Wire(Kind.UUID, meaning, **bounds), default)
    return value


def string(meaning: str, *, default: str | None = "", **bounds: Unpack[Bounds]) -> str:
    """UTF-8 text of at most STRING_LENGTH_MAX bytes."""
    value: str = _specifier(Wire(Kind.STRING, meaning, **bounds), default)
    return value


def octets(meaning: str, *, default: bytes | None = b"", **bounds: Unpack[Bounds]) -> bytes:
    """Opaque bytes; decoding copies them."""
    value: bytes = _specifier(Wire(Kind.BYTES, meaning, **bounds), default)
    return value


def records(
    meaning: str, *, default: Buffer | None = None, **bounds: Unpack[Bounds]
) -> Buffer | None:
    """Record batches; decoding returns a slice of the input, not a copy. Never tagged."""
    value: Buffer | None = _specifier(Wire(Kind.RECORDS, meaning, **bounds), default)
    return value


def optional(element: type[MessageT], meaning: str, **bounds: Unpack[Bounds]) -> MessageT | None:
    """A nested structure in the tagged section; None if it is not sent."""
    wire = Wire(Kind.STRUCT, meaning, element=element, **bounds)
    value: MessageT | None = _specifier(wire, None)
    return value


def array(
    element: type[MessageT],
    meaning: str,
    *,
    default: type[list[Any]] | None = list,
    **bounds: Unpack[Bounds],
) -> list[MessageT]:
    """Any number of nested structures. `default=None` makes null the default."""
    wire = Wire(Kind.STRUCT, meaning, is_array=True, element=element, **bounds)
    value: list[MessageT] = _specifier(wire, default)
    return value


def _plain_array(kind: Kind, meaning: str, default: object, bounds: Bounds) -> Any:
    return _specifier(Wire(kind, meaning, is_array=True, **bounds), default)


def int32_array(
    meaning: str, *, default: type[list[Any]] | None = list, **bounds: Unpack[Bounds]
) -> list[int]:
    """Any number of signed integers of 32 bits; `default=None` makes null the default."""
    value: list[int] = _plain_array(Kind.INT32, meaning, default, bounds)
    return value


def int64_array(
    meaning: str, *, default: type[list[Any]] | None = list, **bounds: Unpack[Bounds]
) -> list[int]:
    """Any number of signed integers of 64 bits; `default=None` makes null the default."""
    value: list[int] = _plain_array(Kind.INT64, meaning, default, bounds)
    return value


def string_array(
    meaning: str, *, default: type[list[Any]] | None = list, **bounds: Unpack[Bounds]
) -> list[str]:
    """Any number of strings; `default=None` makes null the default."""
    value: list[str] = _plain_array(Kind.STRING, meaning, default, bounds)
    return value


@memoized
def wire_fields(message_class: type[Message]) -> tuple[WireField, ...]:
    """Return the fields of a declaration in their order on the wire."""
    found = []
    for field in dataclasses.fields(message_class):  # type: ignore[arg-type]
        is_list = field.default_factory is list
        default = None if is_list else field.default
        found.append(WireField(field.name, field.metadata[_METADATA_KEY], default, is_list))
    return tuple(found)


@memoized
def minimum_size(message_class: type[Message], version: int, flexible: bool) -> int:
    """Return the minimum size of a structure in a version, in bytes. An array's count is checked
    against it, so that a small frame cannot announce millions of elements."""
    size = 1 if flexible else 0
    for field in wire_fields(message_class):
        if field.wire.exists_in(version) and field.wire.tag is None:
            size += minimum_field_size(field.wire, version, flexible)
    return size


def minimum_field_size(wire: Wire, version: int, flexible: bool) -> int:
    """Return the minimum size of one field, in bytes; for an array, that of its count."""
    if wire.is_array:
        return 1 if flexible else 4
    return minimum_element_size(wire, version, flexible)


def minimum_element_size(wire: Wire, version: int, flexible: bool) -> int:
    """Return the minimum size of one value of the field's type, or of one element of an array."""
    if wire.element is not None:
        return minimum_size(wire.element, version, flexible)
    if wire.kind.is_fixed:
        return struct.calcsize(">" + wire.kind.value)
    if flexible:
        return 1
    return 2 if wire.kind is Kind.STRING else 4
