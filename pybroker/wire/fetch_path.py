"""Fetch requests and responses, which consumers and followers send all the time.

As in `produce_path`, the compiled functions are bound once. Responses stay a list of buffers, so
that batches read from the log go to the socket without another copy.
"""

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
    """Return the result of `codec.decode_request`. `version` must be in the list of APIs. Raises
    MalformedInput."""
    decode = _DECODERS[version]
    try:
        request, _ = decode(body)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"FetchRequest v{version}: {error}") from error
    return request


def encode_fetch_response(version: int, response: FetchResponse) -> list[Buffer]:
    """Return the body in buffers; joined they equal `codec.encode_response`. Record batches of
    `encoder.SCATTER_BYTES_MIN` bytes or more are the objects in the response themselves. Raises
    ValueError if the response cannot be expressed in that version."""
    try:
        return _ENCODERS[version](response)
    except struct.error as error:
        raise ValueError(f"FetchResponse v{version}: {error}") from error
