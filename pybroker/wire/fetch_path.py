"""Fetch requests and responses: what consumers and followers ask all the time.

As in `produce_path`, the compiled functions are bound once. Responses stay a list of buffers, so
that what was read from the log goes to the socket without another copy.
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
    """What `codec.decode_request` gives. `version` must be one that the list of APIs allows.
    Raises MalformedInput."""
    decode = _DECODERS[version]
    try:
        request, _ = decode(body)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"FetchRequest v{version}: {error}") from error
    return request


def encode_fetch_response(version: int, response: FetchResponse) -> list[Buffer]:
    """The body in buffers; joined they are what `codec.encode_response` gives. Record batches of
    `encoder.SCATTER_BYTES_MIN` bytes or more are the very objects that the response holds. Raises
    ValueError where the response cannot be said in that version."""
    try:
        return _ENCODERS[version](response)
    except struct.error as error:
        raise ValueError(f"FetchResponse v{version}: {error}") from error
