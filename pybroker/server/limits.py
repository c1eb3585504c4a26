"""The limits of the socket server that are not options. The other limits are rows of the broker's
options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of every connection of a broker."""

    read_bytes_per_second_min: int = 4096
    """The rate at which a request may take longer than pybroker.request.read.timeout.ms to arrive,
    and at which a peer may take any time to read an answer."""
    linger_ms_max: int = 5_000
    """How long (s) after a peer closed its sending side its requests are still handled."""
    write_buffer_bytes_max: int = 256 * 1024
    """While a peer leaves more bytes than this unread, its next request waits."""
    requests_per_turn_max: int = 64
    """After this many requests in its buffer, a connection lets the others be served."""
