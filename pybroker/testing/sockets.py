"""Ports for servers of a test, and whose the other end of a connection is (on Linux)."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOWEST_PORT: Final = 10_000
_SYSTEMS_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CONNECTIONS: Final = Path("/proc/net/tcp")
_LOCAL, _INODE = 1, 9
"""Columns of /proc/net/tcp."""


def free_ports(count: int) -> list[int]:
    """`count` different ports of 127.0.0.1 that nobody listens on, below those that the system
    gives to outgoing connections: a server that is away for a while finds its port free again."""
    highest = 32_767
    with suppress(OSError, ValueError):
        highest = max(int(_SYSTEMS_RANGE.read_text().split()[0]) - 1, _LOWEST_PORT + 1000)
    found: list[int] = []
    for port in random.sample(range(_LOWEST_PORT, highest), 500):
        if len(found) == count:
            break
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
    if len(found) < count:
        raise OSError(f"no {count} free ports from {_LOWEST_PORT} to {highest}")
    return found


def owner_of_port(port: int, pids: Iterable[int]) -> int | None:
    """Which of these processes has a TCP connection from that local port."""
    inodes = {
        columns[_INODE]
        for columns in map(str.split, _CONNECTIONS.read_text().splitlines()[1:])
        if int(columns[_LOCAL].rpartition(":")[2], 16) == port
    }
    names = {f"socket:[{inode}]" for inode in inodes}
    return next((pid for pid in pids if not names.isdisjoint(_open_files(pid))), None)


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(link.readlink()))
    return found
