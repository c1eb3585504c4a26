"""Codecs of other projects in one form: bytes to plain values, and those values to bytes.

- kafka-python's present codec covers what brokers of Kafka 4 still accept;
- kafka-python's former codec covers the oldest versions;
- kio covers the same as the first, by independent means.

Plain values are dictionaries, lists, numbers, strings, bytes and UUIDs under our field names.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import uuid
from collections.abc import Callable
from typing import Any

from pybroker.wire.messages.cluster import ApiVersionsResponse
from pybroker.wire.messages.fetch import FetchRequest
from pybroker.wire.schema import Message, wire_fields
from unit_tests.wire.vocabulary import Case

Plain = dict[str, Any]

# An oracle decodes bytes. It returns plain values and a function that encodes the message again.
Oracle = Callable[[bytes], tuple[Plain, Callable[[], bytes]]]

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)

# Our field name -> the field name of the oracles, for fields that newer Kafka versions renamed.
_RENAMED = {
    "AddPartitionsToTxnRequest.transactional_id": "v3_and_below_transactional_id",
    "AddPartitionsToTxnRequest.producer_id": "v3_and_below_producer_id",
    "AddPartitionsToTxnRequest.producer_epoch": "v3_and_below_producer_epoch",
    "AddPartitionsToTxnRequest.topics": "v3_and_below_topics",
    "AddPartitionsToTxnResponse.results": "results_by_topic_v3_and_below",
    "AddPartitionsToTxnResponse.transactions": "results_by_transaction",
    "AddPartitionsToTxnResult.topics": "topic_results",
    "AddPartitionsToTxnTopicResult.results": "results_by_partition",
    "AddPartitionsToTxnPartitionResult.error_code": "partition_error_code",
    "OffsetCommitRequest.generation_id": "generation_id_or_member_epoch",
}
# kafka-python uses one field name for the authorized operations in all messages.
_OPERATIONS = {
    "authorized_operations": (
        "authorized_operations",
        "cluster_authorized_operations",
        "topic_authorized_operations",
    )
}
# This structure of kafka-python lacks the array of partitions, which brokers send.
_WRONG_STRUCTURES = frozenset({"DescribeLogDirsRequest_v0"})
_PYBROKER_FIELDS = frozenset({"replica_incarnation"})


def without_own_fields(message: Message) -> Message:
    """Return `message` without the values that an oracle cannot decode: pybroker's own tagged
    field, and the error of ApiVersions, after which kafka-python expects the layout of version
    0."""
    match message:
        case FetchRequest():
            message.replica_incarnation = -1
        case ApiVersionsResponse():
            message.error_code = 0
    return message


def plain_message(message: Message, version: int) -> Plain:
    """Return the fields of `message` in the version, with the field names of the oracles."""
    return {
        _RENAMED.get(f"{type(message).__name__}.{field.name}", field.name): _plain_ours(
            getattr(message, field.name), version
        )
        for field in wire_fields(type(message))
        if field.wire.exists_in(version) and field.name not in _PYBROKER_FIELDS
    }


def _plain_ours(value: Any, version: int) -> Any:
    if isinstance(value, Message):
        plain = plain_message(value, version)
        return None if set(map(repr, plain.values())) == {"-1"} else plain
    if isinstance(value, list):
        return [_plain_ours(item, version) for item in value]
    return bytes(value) if isinstance(value, memoryview) else value


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return the differences of two plain values, with their paths. An oracle may have additional
    fields of newer versions, and default values for an omitted tagged structure."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            fault
            for name, value in ours.items()
            for fault in (
                differences(value, theirs[name], f"{path}.{name}")
                if name in theirs
                else [f"{path}.{name} is missing"]
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [
            fault
            for index, (mine, other) in pairs
            for fault in differences(mine, other, f"{path}[{index}]")
        ]
    if ours is None and isinstance(theirs, dict):
        return [] if set(theirs.values()) <= {-1} else [f"{path}: {theirs!r}, not null"]
    return [] if ours == theirs else [f"{path}: {ours!r} here, {theirs!r} there"]


def kafka_python(case: Case) -> Oracle | None:
    """Return the codec of kafka-python, or None if it does not support the version."""
    theirs = _find(case.message_class.__name__, _KAFKA_PYTHON)
    if theirs is None:
        return None
    lowest, highest = theirs._valid_versions
    if not lowest <= case.version <= highest:
        return None

    def read(body: bytes) -> tuple[Plain, Callable[[], bytes]]:
        decoded = theirs.decode(body, version=case.version)
        decoded._header = None
        plain: Plain = _plain_theirs(decoded.to_dict(json=False))
        return plain, lambda: bytes(decoded.encode(version=case.version))

    return read


def former_kafka_python(case: Case) -> Oracle | None:
    """Return the older codec of kafka-python, or None if its current codec supports the version."""
    if kafka_python(case) is not None:
        return None
    name = f"{case.message_class.__name__}_v{case.version}"
    theirs = _find(name, _FORMER_KAFKA_PYTHON)
    if theirs is None or name in _WRONG_STRUCTURES:
        return None

    def read(body: bytes) -> tuple[Plain, Callable[[], bytes]]:
        decoded = theirs.decode(body)
        return _plain_theirs(decoded.to_object()), lambda: bytes(decoded.encode())

    return read


def kio(case: Case) -> Oracle | None:
    """Return the codec of kio, or None if it does not support the version."""
    index = importlib.import_module("kio.index")
    serial = importlib.import_module("kio.serial")
    is_request = case.message_class is case.api.request
    load = index.load_request_schema if is_request else index.load_response_schema
    try:
        theirs = load(int(case.api.key), case.version)
    except (index.UnknownEntity, index.UnknownAPIKey):
        return None

    def read(body: bytes) -> tuple[Plain, Callable[[], bytes]]:
        decoded, size = serial.entity_reader(theirs)(body, 0)
        assert size == len(body)
        plain: Plain = _plain_theirs(decoded)

        def write() -> bytes:
            out = importlib.import_module("io").BytesIO()
            serial.entity_writer(theirs)(out, decoded)
            written: bytes = out.getvalue()
            return written

        return plain, write

    return read


_KAFKA_PYTHON = tuple(
    f"kafka.protocol.{name}" for name in ("admin", "metadata", "producer", "consumer", "sasl")
)
_FORMER_KAFKA_PYTHON = tuple(
    f"kafka.protocol.old.{name}"
    for name in ("admin", "commit", "list_offsets", "offset_for_leader_epoch", "produce")
)


def _find(name: str, modules: tuple[str, ...]) -> Any:
    found = (getattr(importlib.import_module(module), name, None) for module in modules)
    return next((theirs for theirs in found if theirs is not None), None)


def _plain_theirs(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        named = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {_with_unit(name, item): _plain_theirs(item) for name, item in named}
    if isinstance(value, dict):
        return {
            ours: -(2**31) if name in _OPERATIONS and item is None else _plain_theirs(item)
            for name, item in value.items()
            for ours in _OPERATIONS.get(name, (name,))
        }
    if isinstance(value, set):
        return int.from_bytes(sum(1 << bit for bit in value).to_bytes(4), signed=True)
    if isinstance(value, list | tuple):
        return [_plain_theirs(item) for item in value]
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, enum.IntEnum):
        return int(value)
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, uuid.UUID):
        return uuid.UUID(int=value.int)
    return value


def _with_unit(name: str, value: Any) -> str:
    """Return the field name with its unit, which kio omits for durations and timestamps."""
    is_time = isinstance(value, datetime.timedelta | datetime.datetime)
    return f"{name}_ms" if is_time and not name.endswith("timestamp") else name
