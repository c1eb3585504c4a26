"""The limits of the socket server, each with its name, unit and Kafka's option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds that hold for every listener of a broker. Defaults are Kafka's."""

    request_bytes_max: int = 104_857_600
    """socket.request.max.bytes: a larger (or negative) frame closes the connection, before memory
    is taken for it."""
    connections_max: int = 2_147_483_647
    """max.connections, over all listeners."""
    connections_per_ip_max: int = 2_147_483_647
    """max.connections.per.ip"""
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides: address -> limit."""
    idle_ms_max: int = 600_000
    """connections.max.idle.ms: a connection without a request for that long is closed."""
    backlog: int = 50
    """socket.listen.backlog.size: connections that may wait to be accepted."""
    write_buffer_bytes_max: int = 256 * 1024
    """While a peer leaves more than this unread, its next request waits."""
    requests_per_turn_max: int = 64
    """After so many requests that had already arrived, the other connections have their turn."""
    receive_buffer_bytes: int = 102_400
    """socket.receive.buffer.bytes; -1 leaves it to the operating system."""
    send_buffer_bytes: int = 102_400
    """socket.send.buffer.bytes; -1 leaves it to the operating system."""
