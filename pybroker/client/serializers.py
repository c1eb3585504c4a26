"""The serializers of a producer: functions of the application that turn a key or value into bytes.
They are also called with None, for a null key or value."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeVar

from pybroker.client.errors import FieldName, SerializationFailed
from pybroker.config.properties import is_property
from pybroker.ports import Buffer
from pybroker.records.record import Headers

log = logging.getLogger(__name__)

T_contra = TypeVar("T_contra", contravariant=True)
Convert = Callable[[str, Headers, Any], Any]
"""A serializer or a deserializer in its most general form: topic, headers and object."""

RECORDS_IN_TURN: Final = 1_000
"""The number of keys or values of `send_many` that are serialized before other tasks run."""


class Serializer(Protocol[T_contra]):
    """An object that serializes the keys or the values of a producer."""

    def serialize(self, topic: str, value: T_contra, /) -> Buffer | None:
        """Return the bytes of a key or value, or None for a null key or value. `value` is None if
        the application sends a null key or value."""


class SerializerWithHeaders(Protocol[T_contra]):
    """A serializer that also gets the headers of the record, as (name, content) pairs."""

    def serialize(self, topic: str, headers: Headers, value: T_contra, /) -> Buffer | None: ...


SerializerLike = (
    Callable[[T_contra], Buffer | None] | Serializer[T_contra] | SerializerWithHeaders[T_contra]
)


def converter(name: str, given: object, method: str, faults: list[str]) -> Convert | None:
    """Return the application's serializer or deserializer `given` as a function (topic, headers,
    item). `given` is a function of one argument, or an object with the method `method`. Return None
    if `given` is None or a text from a properties file. For any other value, return None and add a
    message about `name` to `faults`."""
    if given is None:
        return None
    if is_property(name, given):
        log.warning("option without effect name=%s", name)
        return None
    bound: Any = None if isinstance(given, type) else getattr(given, method, None)
    if callable(bound):
        if _accepts(bound, 2):
            return lambda topic, headers, item: bound(topic, item)
        if _accepts(bound, 3):
            general: Convert = bound
            return general
        faults.append(f"option {name}: the method {method} must take a topic and a value")
    elif not callable(given):
        faults.append(
            f"option {name} must be a function or an object with a method {method}, not {given!r}"
        )
    elif inspect.iscoroutinefunction(given):
        faults.append(f"option {name} must be a plain function, not an async one")
    else:
        return lambda topic, headers, item: given(item)
    return None


def _accepts(function: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a function of a compiled module without a signature
        return count == 2
    return True


@dataclass(frozen=True, slots=True)
class Serializers:
    """The serializers of a producer."""

    key: Convert | None
    value: Convert | None

    @classmethod
    def of(cls, key: object, value: object, faults: list[str]) -> Self | None:
        """Return the application's serializers; None if both arguments are None. Add a message to
        `faults` for an argument that is no serializer."""
        found = cls(
            converter("key_serializer", key, "serialize", faults),
            converter("value_serializer", value, "serialize", faults),
        )
        return None if found.key is None and found.value is None else found

    def record(
        self, topic: str, headers: Headers, key: Any, value: Any, partition: int | None
    ) -> tuple[Any, Any]:
        """Return the serialized key and value of a record. Raises SerializationFailed."""
        try:
            field: FieldName = "key"
            if self.key is not None:
                key = _checked(self.key(topic, headers, key))
            field = "value"
            if self.value is not None:
                value = _checked(self.value(topic, headers, value))
        except Exception as error:
            raise SerializationFailed(topic, partition, field, error) from error
        return key, value

    async def columns(
        self,
        topic: str,
        keys: Iterable[Any] | None,
        values: Iterable[Any],
        partition: int | None,
        give_way: Callable[[], Awaitable[None]],
    ) -> tuple[Iterable[Any] | None, Iterable[Any]]:
        """Return the serialized keys and values of `send_many`. Call `give_way` from time to time,
        so that other tasks run. Raises SerializationFailed."""
        rows = list(values)
        if self.key is not None:
            given = [None] * len(rows) if keys is None else keys
            keys = await self._column(self.key, "key", topic, given, partition, give_way)
        if self.value is not None:
            rows = await self._column(self.value, "value", topic, rows, partition, give_way)
        return keys, rows

    @staticmethod
    async def _column(
        convert: Convert,
        field: FieldName,
        topic: str,
        column: Iterable[Any],
        partition: int | None,
        give_way: Callable[[], Awaitable[None]],
    ) -> list[Any]:
        found: list[Any] = []
        for index, item in enumerate(column):
            if index % RECORDS_IN_TURN == RECORDS_IN_TURN - 1:
                await give_way()
            try:
                found.append(_checked(convert(topic, (), item)))
            except Exception as error:
                raise SerializationFailed(topic, partition, field, error, index) from error
        return found


def _checked(data: object) -> object:
    if data is None or isinstance(data, (bytes, bytearray, memoryview)):
        return data
    raise TypeError(f"the serializer returned {type(data).__name__}, expected bytes")
