"""The limits of the socket server that are constants, not options of the broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits that apply to every connection of a broker."""

    read_bytes_per_second_min: int = 4096
    """The minimal rate of a slow transfer. A request that arrives at least this fast may take
    longer than pybroker.request.read.timeout.ms. A peer that reads a response at least this fast
    does not count as idle."""
    linger_ms_max: int = 5_000
    """How long (ms) the connection stays open for its unanswered requests after the peer has closed
    its sending side."""
    write_buffer_bytes_max: int = 256 * 1024
    """If a peer has left more than this many bytes of responses unread, its next request has
    to wait."""
    requests_per_turn_max: int = 64
    """After handling this many buffered requests, a connection gives the other connections their
    turn."""
    unanswered_max: int = 64
    """The maximum number of requests of a connection that wait for their acknowledgement. The
    next request then has to wait."""
