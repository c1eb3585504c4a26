"""Produce requests, the hottest thing that a broker decodes.

The compiled decoder is within a tenth of one written by hand, so there is only one of them. What is
left to save is the way to it: the decoders are bound once here.
"""

from __future__ import annotations

from typing import Final

from pybroker.errors import MalformedInput
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.decoder import decoder
from pybroker.wire.messages.produce import ProduceRequest
from pybroker.wire.primitives import DECODING_ERRORS

_API: Final = APIS[ApiKey.PRODUCE]
_DECODERS: Final = {
    version: decoder(ProduceRequest, version, _API.is_flexible(version))
    for version in range(_API.min_version, _API.max_version + 1)
}


def decode_produce_request(version: int, body: memoryview) -> ProduceRequest:
    """What `codec.decode_request` gives: `records` are slices of `body`. `version` must be one that
    the list of APIs allows. Raises MalformedInput."""
    decode = _DECODERS[version]
    try:
        request, _ = decode(body)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"ProduceRequest v{version}: {error}") from error
    return request
