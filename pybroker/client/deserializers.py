"""The deserializers of a consumer, which turn the bytes of a key or value (None for null) into an
object. A deserializer runs at the first access to the key or value, so invalid bytes do not stop
the consumer."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Protocol, Self, TypeVar

from pybroker.client.errors import DeserializationFailed, FieldName
from pybroker.client.serializers import Convert, converter
from pybroker.model import TopicPartition
from pybroker.records.consumed import ConsumerRecord, reduce_record
from pybroker.records.record import Headers
from pybroker.records.type_variables import Key_co, Value_co

T_co = TypeVar("T_co", covariant=True)
_UNKNOWN: Final = object()


class Deserializer(Protocol[T_co]):
    """An object that deserializes the keys or the values of a consumer."""

    def deserialize(self, topic: str, data: Any, /) -> T_co:
        """Return the object for the bytes `data`, which may be None."""


class DeserializerWithHeaders(Protocol[T_co]):
    """A deserializer that also gets the headers of the record, as (name, content) pairs."""

    def deserialize(self, topic: str, headers: Headers, data: Any, /) -> T_co: ...


DeserializerLike = Callable[[Any], T_co] | Deserializer[T_co] | DeserializerWithHeaders[T_co]


@dataclass(frozen=True, slots=True)
class Deserializers:
    """The deserializers of a consumer."""

    key: Convert | None
    value: Convert | None

    @classmethod
    def of(cls, key: object, value: object, faults: list[str]) -> Self | None:
        """Return the application's deserializers; None if both arguments are None. Add a message to
        `faults` for an argument that is no deserializer."""
        found = cls(
            converter("key_deserializer", key, "deserialize", faults),
            converter("value_deserializer", value, "deserialize", faults),
        )
        return None if found.key is None and found.value is None else found

    def wrap(self, record: ConsumerRecord) -> ConsumerRecord[Any, Any]:
        """Return the record with deserialized `key` and `value`."""
        return DeserializedRecord(record, self)


def _of_record(name: str) -> Any:
    return property(attrgetter(f"_record.{name}"))


class DeserializedRecord(ConsumerRecord[Key_co, Value_co]):
    """A record whose key and value are deserialized when they are first read."""

    __slots__ = ("_deserializers", "_key", "_record", "_value")
    __setattr__ = object.__setattr__  # the fields are properties, so they stay read-only

    topic = _of_record("topic")
    partition = _of_record("partition")
    offset = _of_record("offset")
    timestamp = _of_record("timestamp")
    timestamp_type = _of_record("timestamp_type")
    headers = _of_record("headers")
    leader_epoch = _of_record("leader_epoch")

    def __init__(self, record: ConsumerRecord, deserializers: Deserializers) -> None:
        self._record = record
        self._deserializers = deserializers
        self._key: Any = _UNKNOWN
        self._value: Any = _UNKNOWN

    @property
    def key(self) -> Key_co:
        if self._key is _UNKNOWN:
            self._key = self._deserialize("key", self._deserializers.key)
        found: Key_co = self._key
        return found

    @property
    def value(self) -> Value_co:
        if self._value is _UNKNOWN:
            self._value = self._deserialize("value", self._deserializers.value)
        found: Value_co = self._value
        return found

    def _deserialize(self, field: FieldName, convert: Convert | None) -> Any:
        raw = self._record
        data = raw.key if field == "key" else raw.value
        if convert is None:
            return data
        try:
            return convert(raw.topic, raw.headers, data)
        except Exception as error:
            place = TopicPartition(raw.topic, raw.partition)
            raise DeserializationFailed(place, raw.offset, field, data, error) from error

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self._fields() == tuple(getattr(other, name) for name in self.__match_args__)

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        pairs = [f"{name}={self._shown(name)!r}" for name in self.__match_args__]
        return f"ConsumerRecord({', '.join(pairs)})"

    def _shown(self, name: str) -> object:
        try:
            return getattr(self, name)
        except DeserializationFailed as error:
            return error.data


copyreg.pickle(DeserializedRecord, reduce_record)
