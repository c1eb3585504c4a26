"""Encoding and decoding of messages: bodies only, `headers` has the headers, `frame` the framing.

This module knows no single API; the messages declare which fields exist in which version.
"""

from __future__ import annotations

import struct

from pybroker.errors import MalformedInput
from pybroker.wire.api import Api
from pybroker.wire.decoder import decoder
from pybroker.wire.encoder import encoder
from pybroker.wire.primitives import (
    ANY_NUMBER,
    DECODING_ERRORS,
    REQUEST_ELEMENTS_MAX,
    Buffer,
)
from pybroker.wire.schema import Message, MessageT


def decode_message(
    message_class: type[MessageT],
    version: int,
    flexible: bool,
    body: Buffer,
    elements_max: int = ANY_NUMBER,
    *,
    to_the_end: bool = True,
) -> MessageT:
    """Return the structure at the start of `body`; with `to_the_end` no byte may follow it. Fields
    of kind `records` are slices of `body`. `elements_max` bounds all arrays together. Raises
    MalformedInput."""
    data = body if type(body) is memoryview else memoryview(body)
    try:
        message, end = decoder(message_class, version, flexible)(data, elements_max)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"{message_class.__name__} v{version}: {error}") from error
    if to_the_end and end != len(data):
        raise MalformedInput(f"{message_class.__name__} v{version}: {len(data) - end} bytes follow")
    return message


def encode_message(message: Message, version: int, flexible: bool) -> bytes:
    """Return the bytes of a structure. Raises ValueError if a value does not fit its field, is null
    although that is not allowed, or does not exist in that version."""
    return b"".join(encode_parts(message, version, flexible))


def encode_parts(message: Message, version: int, flexible: bool) -> list[Buffer]:
    """Return the bytes of a structure as buffers for a vectored write: large record batches are not
    copied. Raises the errors of `encode_message`."""
    try:
        return encoder(type(message), version, flexible)(message)
    except struct.error as error:
        raise ValueError(f"{type(message).__name__} v{version}: {error}") from error


def decode_request(api: Api, version: int, body: Buffer) -> Message:
    """Return the request in `body`. Bytes after it are ignored, as in Kafka: librdkafka writes some
    behind a Metadata request for all topics. Raises MalformedInput, also for more elements than a
    request may have; ValueError for an unsupported version: the caller checks `api.supports`
    first."""
    flexible = _is_flexible(api, version)
    return decode_message(
        api.request, version, flexible, body, REQUEST_ELEMENTS_MAX, to_the_end=False
    )


def encode_request(api: Api, version: int, message: Message) -> bytes:
    """Return the body of a request. Raises ValueError; see `encode_message`."""
    _expect(message, api.request)
    return encode_message(message, version, _is_flexible(api, version))


def decode_response(api: Api, version: int, body: Buffer) -> Message:
    """Return the response in `body`, all of it: the client requested it, so it may have any number
    of elements. Raises the errors of `decode_request`."""
    return decode_message(api.response, version, _is_flexible(api, version), body)


def encode_response(api: Api, version: int, message: Message) -> bytes:
    """Return the body of a response. Raises ValueError; see `encode_message`."""
    _expect(message, api.response)
    return encode_message(message, version, _is_flexible(api, version))


def _is_flexible(api: Api, version: int) -> bool:
    if not api.supports(version):
        raise ValueError(f"{api.key.name} version {version} is not supported")
    return api.is_flexible(version)


def _expect(message: Message, message_class: type[Message]) -> None:
    if type(message) is not message_class:
        raise ValueError(f"{type(message).__name__} where a {message_class.__name__} is due")
