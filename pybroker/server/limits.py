"""The limits of the socket server that are no options, each with its name and unit. The others are
rows of the broker's options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds that hold for every connection of a broker."""

    read_bytes_per_second_min: int = 4096
    """A request that arrives at this rate may take longer than pybroker.request.read.timeout.ms,
    and an answer that is read at this rate may take any time."""
    linger_ms_max: int = 5_000
    """How long requests that have arrived are still handled after their peer closed its sending
    side."""
    write_buffer_bytes_max: int = 256 * 1024
    """While a peer leaves more than this unread, its next request waits."""
    requests_per_turn_max: int = 64
    """After this many requests that had already arrived, the other connections have their turn."""
