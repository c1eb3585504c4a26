"""The headers of requests (versions 1 and 2) and of responses (versions 0 and 1). The higher
version adds tagged fields. In both request versions, the client id has a 16-bit length."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pybroker.errors import MalformedInput
from pybroker.wire.api import APIS
from pybroker.wire.primitives import (
    encode_nullable_string,
    read_nullable_string,
    skip_tagged_fields,
)

REQUEST_HEADER_FIXED_SIZE: Final = 8  # API key, API version and correlation id

_FIXED = struct.Struct(">hhi")
_FIXED_AND_LENGTH = struct.Struct(">hhih")
_CORRELATION_ID = struct.Struct(">i")

# API key and API version -> whether the header has tagged fields. In the header of any other
# request, decoding ends after the client id.
_TAGGED_FIELDS_FOLLOW: Final = {
    (int(key), version): api.is_flexible(version)
    for key, api in APIS.items()
    for version in range(api.min_version, api.max_version + 1)
}


class RequestHeader(NamedTuple):
    """The header of a request. `client_id` is a name that the client chooses, not an authenticated
    identity."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


def parse_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Return a request's header, and the position of its body. `frame` lacks the size prefix. For
    an unsupported API key or version, return the position after the client id. Raises
    MalformedInput."""
    try:
        key, version, correlation_id, length = _FIXED_AND_LENGTH.unpack_from(frame)
    except struct.error as error:
        raise MalformedInput(
            f"the request has {len(frame)} bytes, expected at least {_FIXED_AND_LENGTH.size} for a"
            " header"
        ) from error
    if length < 0 or 10 + length >= len(frame):
        client_id, position = read_nullable_string(frame, REQUEST_HEADER_FIXED_SIZE)
    else:
        position = 10 + length
        try:
            client_id = str(frame[10:position], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedInput("the client id in the request header is not UTF-8") from error
    if _TAGGED_FIELDS_FOLLOW.get((key, version)):
        if position < len(frame) and frame[position] == 0:
            position += 1
        else:
            position = skip_tagged_fields(frame, position)
    fields = (key, version, correlation_id, client_id)
    return tuple.__new__(RequestHeader, fields), position  # without a Python-level __new__


def encode_request_header(header: RequestHeader, header_version: int) -> bytes:
    """Return the bytes of a request header in version 1 or 2 of the header."""
    fixed = _FIXED.pack(header.api_key, header.version, header.correlation_id)
    tagged = b"\x00" if _has_tagged_fields(header_version, first=2) else b""
    return fixed + encode_nullable_string(header.client_id) + tagged


def encode_response_header(correlation_id: int, header_version: int) -> bytes:
    """Return the bytes of a response header in version 0 or 1 of the header."""
    tagged = b"\x00" if _has_tagged_fields(header_version, first=1) else b""
    return _CORRELATION_ID.pack(correlation_id) + tagged


def parse_response_header(frame: memoryview, header_version: int) -> tuple[int, int]:
    """Return the correlation id of the response in `frame`, and the position of its body. Raises
    MalformedInput."""
    if len(frame) < _CORRELATION_ID.size:
        raise MalformedInput(
            f"the response has {len(frame)} bytes, expected at least {_CORRELATION_ID.size} for its"
            " header"
        )
    correlation_id: int = _CORRELATION_ID.unpack_from(frame)[0]
    if _has_tagged_fields(header_version, first=1):
        return correlation_id, skip_tagged_fields(frame, _CORRELATION_ID.size)
    return correlation_id, _CORRELATION_ID.size


def _has_tagged_fields(header_version: int, *, first: int) -> bool:
    if header_version not in (first - 1, first):
        raise ValueError(f"the header version is {header_version}, expected {first - 1} or {first}")
    return header_version == first
