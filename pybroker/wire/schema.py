"""The declaration of messages. One dataclass declares all versions of a message.

    @message
    class HeartbeatResponse(Message):
        throttle_time_ms: int = int32("How long the client should pause.", since=1, ignorable=True)
        error_code: int = int16("The error, or 0.")

The declaration of a field calls a function for the wire type, such as `int32`, with the meaning of
the field and these optional arguments:

- `since`, `until`: the first and the last version with the field;
- `nullable_since`: the first version in which the field may be null;
- `tag`: the tag number. The encoder omits a tagged field with its default value;
- `default`: the value that the decoder sets if the version lacks the field;
- `ignorable`: the encoder omits a set value if the version lacks the field. Otherwise the encoder
  raises ValueError.
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
    """A type of values in the protocol. If the type has a fixed size, the enum value is its
    `struct` format. Otherwise the enum value is only a name."""

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
        """Whether all values of the type have the same size."""
        return self not in (Kind.STRING, Kind.BYTES, Kind.RECORDS, Kind.STRUCT)


class Message:
    """The base class of all messages and nested structures."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]  # values change

    # Methods generated for each of about 200 classes would double the time to import them.
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
    """Decorate a function, so that it computes its result for each combination of arguments only
    once. Unlike `functools.cache`, this decorator keeps the type of `function`."""
    cached: Any = functools.cache(function)
    return cast("Callable[Parameters, Result]", cached)


@dataclass(frozen=True, slots=True)
class Wire:
    """The wire type of a declared field, and the optional arguments of its declaration. `element`
    is the class of a nested structure."""

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
        """Return whether this version of the message has the field."""
        return self.since <= version <= self.until

    def is_nullable_in(self, version: int) -> bool:
        """Return whether the field may be null in this version of the message."""
        return self.nullable_since is not None and version >= self.nullable_since


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a message: its name, its declaration and its default. `is_fresh_list`: the default
    is an empty list, and every message gets its own list."""

    name: str
    wire: Wire
    default: Any
    is_fresh_list: bool


class Bounds(TypedDict, total=False):
    """The optional arguments of `int8`, `string` and all other functions that declare a field."""

    since: int
    until: int
    nullable_since: int
    tag: int
    ignorable: bool


@dataclass_transform(kw_only_default=True)
def message(cls: type[T]) -> type[T]:
    """Turn a class that declares fields into a dataclass with slots and keyword-only arguments."""
    return dataclass(slots=True, kw_only=True, eq=False, repr=False, match_args=False)(cls)


def _specifier(wire: Wire, default: object) -> Any:
    if default is list:
        return dataclasses.field(default_factory=list, metadata={_METADATA_KEY: wire})
    return dataclasses.field(default=default, metadata={_METADATA_KEY: wire})


def int8(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """Declare a field for a signed integer of 8 bits."""
    value: int = _specifier(Wire(Kind.INT8, meaning, **bounds), default)
    return value


def int16(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """Declare a field for a signed integer of 16 bits."""
    value: int = _specifier(Wire(Kind.INT16, meaning, **bounds), default)
    return value


def int32(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """Declare a field for a signed integer of 32 bits."""
    value: int = _specifier(Wire(Kind.INT32, meaning, **bounds), default)
    return value


def int64(meaning: str, *, default: int = 0, **bounds: Unpack[Bounds]) -> int:
    """Declare a field for a signed integer of 64 bits."""
    value: int = _specifier(Wire(Kind.INT64, meaning, **bounds), default)
    return value


def float64(meaning: str, *, default: float = 0.0, **bounds: Unpack[Bounds]) -> float:
    """Declare a field for an IEEE 754 number of 64 bits."""
    value: float = _specifier(Wire(Kind.FLOAT64, meaning, **bounds), default)
    return value


def boolean(meaning: str, *, default: bool = False, **bounds: Unpack[Bounds]) -> bool:
    """Declare a field for a boolean of one byte, 0 or 1. Decoders treat any other value as true."""
    value: bool = _specifier(Wire(Kind.BOOLEAN, meaning, **bounds), default)
    return value


def identifier(
    meaning: str, *, default: uuid.UUID = NO_UUID, **bounds: Unpack[Bounds]
) -> uuid.UUID:
    """Declare a field for a UUID. The zero UUID means no UUID."""
    value: uuid.UUID = _specifier(Wire(Kind.UUID, meaning, **bounds), default)
    return value


def string(meaning: str, *, default: str | None = "", **bounds: Unpack[Bounds]) -> str:
    """Declare a field for UTF-8 text of at most STRING_LENGTH_MAX bytes."""
    value: str = _specifier(Wire(Kind.STRING, meaning, **bounds), default)
    return value


def octets(meaning: str, *, default: bytes | None = b"", **bounds: Unpack[Bounds]) -> bytes:
    """Declare a field for opaque bytes. The decoder copies them."""
    value: bytes = _specifier(Wire(Kind.BYTES, meaning, **bounds), default)
    return value


def records(
    meaning: str, *, default: Buffer | None = None, **bounds: Unpack[Bounds]
) -> Buffer | None:
    """Declare a field for record batches. The decoder returns a slice of the input, not a copy. The
    field must not be tagged."""
    value: Buffer | None = _specifier(Wire(Kind.RECORDS, meaning, **bounds), default)
    return value


def optional(element: type[MessageT], meaning: str, **bounds: Unpack[Bounds]) -> MessageT | None:
    """Declare a tagged field for a nested structure. The field is None if the message omits it."""
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
    """Declare a field for an array of nested structures. The default is empty, or null with
    `default=None`."""
    wire = Wire(Kind.STRUCT, meaning, is_array=True, element=element, **bounds)
    value: list[MessageT] = _specifier(wire, default)
    return value


def _plain_array(kind: Kind, meaning: str, default: object, bounds: Bounds) -> Any:
    return _specifier(Wire(kind, meaning, is_array=True, **bounds), default)


def int32_array(
    meaning: str, *, default: type[list[Any]] | None = list, **bounds: Unpack[Bounds]
) -> list[int]:
    """Declare a field for an array of signed integers of 32 bits. The default is empty, or null
    with `default=None`."""
    value: list[int] = _plain_array(Kind.INT32, meaning, default, bounds)
    return value


def int64_array(
    meaning: str, *, default: type[list[Any]] | None = list, **bounds: Unpack[Bounds]
) -> list[int]:
    """Declare a field for an array of signed integers of 64 bits. The default is empty, or null
    with `default=None`."""
    value: list[int] = _plain_array(Kind.INT64, meaning, default, bounds)
    return value


def string_array(
    meaning: str, *, default: type[list[Any]] | None = list, **bounds: Unpack[Bounds]
) -> list[str]:
    """Declare a field for an array of strings. The default is empty, or null with
    `default=None`."""
    value: list[str] = _plain_array(Kind.STRING, meaning, default, bounds)
    return value


@memoized
def wire_fields(message_class: type[Message]) -> tuple[WireField, ...]:
    """Return the fields of a message class in their order in the protocol."""
    found = []
    for field in dataclasses.fields(message_class):  # type: ignore[arg-type]
        is_list = field.default_factory is list
        default = None if is_list else field.default
        found.append(WireField(field.name, field.metadata[_METADATA_KEY], default, is_list))
    return tuple(found)


@memoized
def minimum_size(message_class: type[Message], version: int, flexible: bool) -> int:
    """Return the smallest number of bytes of a structure in this version."""
    size = 1 if flexible else 0
    for field in wire_fields(message_class):
        if field.wire.exists_in(version) and field.wire.tag is None:
            size += minimum_field_size(field.wire, version, flexible)
    return size


def minimum_field_size(wire: Wire, version: int, flexible: bool) -> int:
    """Return the smallest number of bytes of a field's value. The smallest array is empty: it has
    only the element count."""
    if wire.is_array:
        return 1 if flexible else 4
    return minimum_element_size(wire, version, flexible)


def minimum_element_size(wire: Wire, version: int, flexible: bool) -> int:
    """Return the smallest number of bytes of one element of an array field. If the field is not an
    array, return the smallest number of bytes of its value."""
    if wire.element is not None:
        return minimum_size(wire.element, version, flexible)
    if wire.kind.is_fixed:
        return struct.calcsize(">" + wire.kind.value)
    if flexible:
        return 1
    return 2 if wire.kind is Kind.STRING else 4
