"""Valid requests of every API, generated field by field from their declarations, as a function of
the given random numbers.

Strings name one topic, numbers are small, and record batches are valid, so a broker must answer
these requests. The transactional ids are those of TRANSACTIONAL_IDS. On a new broker that first
started a producer with each of them, the numbers are often the id and epoch of such a producer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import types
import typing
import uuid
from typing import Any

from integration_tests.wire_client import frame_of
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.wire.api import APIS, Api, ApiKey
from pybroker.wire.schema import Message

NAME = "hostile"
"""The value of all strings in the requests: topic, group and other names."""
TRANSACTIONAL_IDS = (f"{NAME}-0", f"{NAME}-1")
MOST_USED = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)


def sample_value(kind: Any, name: str, rng: random.Random) -> Any:
    """Return a valid value of a message's field: strings are NAME, numbers are small."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is list:
        return [sample_value(arguments[0], name, rng) for _ in range(rng.randrange(1, 3))]
    if origin in (types.UnionType, typing.Union):
        return sample_value(arguments[0], name, rng)
    if isinstance(kind, type) and issubclass(kind, Message):
        return sample_message(kind, rng)
    if kind is bool:
        return rng.random() < 0.5
    if name == "transaction_timeout_ms":
        return rng.choice((60_000, 1_000, 0))
    if name == "producer_id":
        return rng.choice((0, 0, 1, 1, -1))
    if kind is int:
        return rng.choice((0, 0, 0, 1, -1, 3))
    if kind is float:
        return 1.5
    if kind is str:
        usual = rng.choice(TRANSACTIONAL_IDS) if name == "transactional_id" else NAME
        return usual if rng.random() < 0.8 else ""
    if kind is uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128))
    if name == "records":
        return sample_batch(rng)
    return b"bytes"


def sample_batch(rng: random.Random) -> bytes:
    """Return a batch of one record: of a plain, an idempotent or a transactional producer."""
    builder = BatchBuilder(rng.choice(list(Codec)))
    builder.append(1, b"key", b"v" * rng.randrange(200))
    if rng.random() < 0.5:
        return builder.build()
    producer_id, sequence = rng.randrange(2), rng.choice((0, 0, 1, 2))
    return builder.build(producer_id, 0, sequence, transactional=rng.random() < 0.7)


def sample_message(kind: type[Message], rng: random.Random) -> Message:
    """Return a message with all fields set."""
    hints = typing.get_type_hints(kind)
    fields: list[Any] = list(dataclasses.fields(kind))  # type: ignore[arg-type]
    return kind(**{f.name: sample_value(hints[f.name], f.name, rng) for f in fields})


def default_message(kind: type[Message], rng: random.Random) -> Message:
    """Return a message in which each field is set, or keeps its default, at random."""
    message = kind()
    whole = sample_message(kind, rng)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if rng.random() < 0.5:
            setattr(message, field.name, getattr(whole, field.name))
    return message


def valid_frame(
    api: Api, rng: random.Random, *, version: int | None = None, correlation_id: int = 1
) -> bytes:
    """Return a request of that version, or of a random version. If the version lacks a field,
    random fields keep their defaults until the request can be encoded.
    """
    version = rng.randint(api.min_version, api.max_version) if version is None else version
    with contextlib.suppress(ValueError):
        return frame_of(version, sample_message(api.request, rng), correlation_id)
    for _ in range(1000):
        with contextlib.suppress(ValueError):
            return frame_of(version, default_message(api.request, rng), correlation_id)
    raise AssertionError(f"no {api.key.name} of version {version} could be made")


def corpus(rng: random.Random) -> list[bytes]:
    """Return valid requests of every API, in several versions, with more requests of the most used
    APIs.
    """
    return [
        valid_frame(api, rng, correlation_id=rng.randrange(1000))
        for api in APIS.values()
        for _ in range(60 if api.key in MOST_USED else 12)
    ]
