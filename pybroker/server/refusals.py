"""Log lines about refused peers, with the reason, in a bounded number.

A hostile or mistaken peer may try again and again, and must not flood the log.
"""

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
    """Return a sentence if the peer speaks TLS or HTTP, else None. Read as the size of a Kafka
    frame, both are far beyond every limit."""
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
    """A server has one: it logs a line for each refused peer, within a limit."""

    def __init__(self, clock: Clock) -> None:
        self._limit = LogLimit(clock)

    def log(self, level: int, what: str, peer: object, reason: object) -> None:
        """Log a line such as "connection closed peer=10.0.0.7:50112 reason=...", or none if there
        were too many of that level lately."""
        left_out = self._limit.allow(f"{what} {level}")
        if left_out is None:
            return
        more = f" left_out={left_out}" if left_out else ""
        log.log(level, "%s peer=%s reason=%s%s", what, peer, reason, more)
