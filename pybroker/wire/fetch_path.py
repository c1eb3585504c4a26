"""The fast path for decoding Fetch requests and encoding Fetch responses. The compiled functions
are looked up once, at import."""

from __future__ import annotations

import struct
from typing import Final

from pybroker.errors import MalformedInput
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.decoder import decoder
from pybroker.wire.encoder import encoder
from pybroker.wire.messages.fetch import FetchRequest, FetchResponse
from pybroker.wire.primitives import DECODING_ERRORS, Buffer

_API: Final = APIS[ApiKey.FETCH]
_VERSIONS: Final = range(_API.min_version, _API.max_version + 1)
_DECODERS: Final = {
    version: decoder(FetchRequest, version, _API.is_flexible(version)) for version in _VERSIONS
}
_ENCODERS: Final = {
    version: encoder(FetchResponse, version, _API.is_flexible(version)) for version in _VERSIONS
}


def decode_fetch_request(version: int, body: memoryview) -> FetchRequest:
    """Decode a Fetch request from `body`, the bytes after the header. pybroker must support
    `version`. Raises MalformedInput."""
    decode = _DECODERS[version]
    try:
        request, _ = decode(body)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"FetchRequest v{version}: {error}") from error
    return request


def encode_fetch_response(version: int, response: FetchResponse) -> list[Buffer]:
    """Return the bytes of a Fetch response, without its header, as buffers. Large record batches
    are not copied. Raises the errors of `codec.encode_message`."""
    try:
        return _ENCODERS[version](response)
    except struct.error as error:
        raise ValueError(f"FetchResponse v{version}: {error}") from error
