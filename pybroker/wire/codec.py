"""Encoding and decoding of message bodies."""

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
    """Decode a message at the start of `body`. Fields of kind `records` are slices of `body`.
    `elements_max` limits the elements of all arrays together. Raises MalformedInput. With
    `to_the_end`, bytes after the message are an error too."""
    data = body if type(body) is memoryview else memoryview(body)
    try:
        message, end = decoder(message_class, version, flexible)(data, elements_max)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"{message_class.__name__} v{version}: {error}") from error
    if to_the_end and end != len(data):
        raise MalformedInput(
            f"{message_class.__name__} v{version}: {len(data) - end} bytes follow the message,"
            " expected 0"
        )
    return message


def encode_message(message: Message, version: int, flexible: bool) -> bytes:
    """Return the bytes of a message in this version. Raises ValueError if the version cannot
    represent the message."""
    return b"".join(encode_parts(message, version, flexible))


def encode_parts(message: Message, version: int, flexible: bool) -> list[Buffer]:
    """Return the bytes of a message in this version as buffers for a vectored write, without a copy
    of large record batches. Raises the errors of `encode_message`."""
    try:
        return encoder(type(message), version, flexible)(message)
    except struct.error as error:
        raise ValueError(f"{type(message).__name__} v{version}: {error}") from error


def decode_request(api: Api, version: int, body: Buffer) -> Message:
    """Decode a request from `body`, the bytes after the header. Bytes after the request are
    ignored, as in Kafka.

    Raises MalformedInput, also for more than REQUEST_ELEMENTS_MAX array elements. Raises ValueError
    for an unsupported version.
    """
    # librdkafka sends additional bytes after a Metadata request for all topics.
    flexible = _is_flexible(api, version)
    return decode_message(
        api.request, version, flexible, body, REQUEST_ELEMENTS_MAX, to_the_end=False
    )


def encode_request(api: Api, version: int, message: Message) -> bytes:
    """Return the bytes of a request, without its header. Raises ValueError for an unsupported
    version, and the errors of `encode_message`."""
    _expect(message, api.request)
    return encode_message(message, version, _is_flexible(api, version))


def decode_response(api: Api, version: int, body: Buffer) -> Message:
    """Decode a response from `body`, the bytes after the header. Raises MalformedInput, also if
    bytes follow the response. Raises ValueError for an unsupported version."""
    return decode_message(api.response, version, _is_flexible(api, version), body)


def encode_response(api: Api, version: int, message: Message) -> bytes:
    """Return the bytes of a response, without its header. Raises the errors of `encode_request`."""
    _expect(message, api.response)
    return encode_message(message, version, _is_flexible(api, version))


def _is_flexible(api: Api, version: int) -> bool:
    if not api.supports(version):
        raise ValueError(
            f"version {version} of {api.key.name} is not supported, expected"
            f" {api.min_version} to {api.max_version}"
        )
    return api.is_flexible(version)


def _expect(message: Message, message_class: type[Message]) -> None:
    if type(message) is not message_class:
        raise ValueError(
            f"the message is a {type(message).__name__}, expected a {message_class.__name__}"
        )
