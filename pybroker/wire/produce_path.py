"""Produce requests, the most frequent decoding of a broker.

The compiled decoder is within a tenth of a hand-written one, so there is only one. The remaining
cost is finding it: the decoders are bound once here.
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
    """Return the result of `codec.decode_request`: `records` are slices of `body`. `version` must
    be in the list of APIs. Raises MalformedInput."""
    decode = _DECODERS[version]
    try:
        request, _ = decode(body)
    except DECODING_ERRORS as error:
        raise MalformedInput(f"ProduceRequest v{version}: {error}") from error
    return request
