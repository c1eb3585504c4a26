"""Messages from bytes and to bytes: bodies only, headers are in `headers`, framing in `frame`.

Nothing here knows a single API; what exists in which version is declared with the messages.
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
    """The structure that `body` begins with, and unless not `to_the_end` ends with. Fields of kind
    `records` are slices of `body`. `elements_max` bounds all arrays together. Raises
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
    """The bytes of a structure. Raises ValueError where a value does not fit its field, is null
    without leave, or cannot be said in that version."""
    return b"".join(encode_parts(message, version, flexible))


def encode_parts(message: Message, version: int, flexible: bool) -> list[Buffer]:
    """The bytes of a structure as buffers for a vectored write: large record batches are passed
    through uncopied. Raises as `encode_message` does."""
    try:
        return encoder(type(message), version, flexible)(message)
    except struct.error as error:
        raise ValueError(f"{type(message).__name__} v{version}: {error}") from error


def decode_request(api: Api, version: int, body: Buffer) -> Message:
    """The request in `body`. Bytes that follow it are ignored, as Kafka does: librdkafka writes
    some behind a Metadata request for all topics. Raises MalformedInput, also for more elements
    than a request may have; ValueError if the version is not one of ours, which the caller should
    have asked `api.supports` before."""
    flexible = _is_flexible(api, version)
    return decode_message(
        api.request, version, flexible, body, REQUEST_ELEMENTS_MAX, to_the_end=False
    )


def encode_request(api: Api, version: int, message: Message) -> bytes:
    """The body of a request. Raises ValueError; see `encode_message`."""
    _expect(message, api.request)
    return encode_message(message, version, _is_flexible(api, version))


def decode_response(api: Api, version: int, body: Buffer) -> Message:
    """The response in `body`, all of it: we asked for it, so it may have any number of elements.
    Raises as `decode_request` does."""
    return decode_message(api.response, version, _is_flexible(api, version), body)


def encode_response(api: Api, version: int, message: Message) -> bytes:
    """The body of a response. Raises ValueError; see `encode_message`."""
    _expect(message, api.response)
    return encode_message(message, version, _is_flexible(api, version))


def _is_flexible(api: Api, version: int) -> bool:
    if not api.supports(version):
        raise ValueError(f"{api.key.name} has no version {version} here")
    return api.is_flexible(version)


def _expect(message: Message, message_class: type[Message]) -> None:
    if type(message) is not message_class:
        raise ValueError(f"{type(message).__name__} where a {message_class.__name__} is due")
