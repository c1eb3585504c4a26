"""The limits of the socket server, each with its name, unit and Kafka's option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SYSTEMS_CHOICE: Final = -1
"""Leaves the size of a socket's buffer to the operating system, which adapts it."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds that hold for every listener of a broker. Defaults are Kafka's."""

    request_bytes_max: int = 104_857_600
    """socket.request.max.bytes: a larger (or negative) frame closes the connection, before memory
    is taken for it."""
    connections_max: int = 2_147_483_647
    """max.connections, over all listeners: who comes beyond it waits to be accepted."""
    protected_listener: str | None = None
    """The listener between brokers, if clients use others: whoever comes there is accepted beyond
    max.connections, and the connection of another listener that was silent longest is closed."""
    connections_per_second_max: int = 2_147_483_647
    """max.connection.creation.rate: who comes faster waits to be accepted."""
    connections_per_ip_max: int = 2_147_483_647
    """max.connections.per.ip"""
    connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides: address -> limit."""
    idle_ms_max: int = 600_000
    """connections.max.idle.ms: a connection on which nothing has been asked or been on its way for
    that long is closed; a negative time never closes one."""
    read_ms_max: int = 30_000
    """pybroker.request.read.timeout.ms: how long a request may take to arrive, if it does not keep
    up `read_bytes_per_second_min`."""
    read_bytes_per_second_min: int = 4096
    """A request that arrives at this pace may take as long as it needs, and so may an answer that
    is taken at this pace."""
    request_memory_bytes_max: int = -1
    """queued.max.request.bytes: what large requests that are on their way or in the handlers may
    take together; -1 for any amount."""
    linger_ms_max: int = 5_000
    """How long requests that had arrived are worked on after their sender closed its direction."""
    backlog: int = 50
    """socket.listen.backlog.size: connections that may wait to be accepted."""
    write_buffer_bytes_max: int = 256 * 1024
    """While a peer leaves more than this unread, its next request waits."""
    requests_per_turn_max: int = 64
    """After so many requests that had already arrived, the other connections have their turn."""
    receive_buffer_bytes: int = SYSTEMS_CHOICE
    """socket.receive.buffer.bytes"""
    send_buffer_bytes: int = SYSTEMS_CHOICE
    """socket.send.buffer.bytes"""
