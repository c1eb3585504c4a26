"""Logs refused connections with the reason. The number of lines is limited."""

from __future__ import annotations

import logging
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.ports import Buffer, Clock

log = logging.getLogger(__name__)

_PEEKED_BYTES: Final = 16
_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_METHODS: Final = (
    *(b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"CONNECT "),
    b"PRI * HTTP",
)


def mistaken_protocol(first_bytes: Buffer) -> str | None:
    """Return a sentence for the log if a peer's first bytes are those of TLS or HTTP, else None."""
    begin = bytes(first_bytes[:_PEEKED_BYTES])
    if begin.startswith(_TLS_HANDSHAKE):
        return (
            "this is a TLS handshake, but the listener speaks plain text; "
            "set the client's security.protocol to that of the listener"
        )
    if begin.startswith(_HTTP_METHODS):
        return "this is an HTTP request, but the listener speaks Kafka's protocol"
    return None


class RefusalLog:
    """Logs refused and closed connections of one server, at most a limited number of lines per
    interval."""

    def __init__(self, clock: Clock) -> None:
        self._limit = LogLimit(clock)

    def log(self, level: int, what: str, peer: object, reason: object) -> None:
        """Log `what` with the peer and the reason, unless there were too many lines with the same
        `what` and `level`."""
        left_out = self._limit.allow(f"{what} {level}")
        if left_out is None:
            return
        more = f" lines_left_out={left_out}" if left_out else ""
        log.log(level, "%s peer=%s reason=%s%s", what, peer, reason, more)
