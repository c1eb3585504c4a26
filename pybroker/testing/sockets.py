"""Free ports for servers of a test, and the owner of a connection's other end (on Linux)."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

ROW_MAX: Final = 10
"""The maximum number of consecutive ports."""
_LOWEST_PORT: Final = 10_000
_SYSTEMS_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_CONNECTIONS: Final = Path("/proc/net/tcp")
_LOCAL, _INODE = 1, 9
"""Columns of /proc/net/tcp."""


def free_ports(count: int) -> list[int]:
    """Return `count` different ports of 127.0.0.1 on which no process listens, below the range for
    outgoing connections."""
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            break
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
    if len(found) < count:
        raise OSError(
            f"there are no {count} free ports among the test ports, which begin at {_LOWEST_PORT}"
        )
    return found


def free_row(count: int, host: str = "127.0.0.1") -> int:
    """Return the first of `count` consecutive ports of `host` on which no process listens."""
    for first in _candidates():
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server((host, port)))
            return first
    raise OSError(
        f"there are no {count} consecutive free ports among the test ports, which begin at"
        f" {_LOWEST_PORT}"
    )


def _candidates() -> list[int]:
    """Return random ports. Each pytest-xdist worker has ports of its own, because a port stays free
    until a test's server binds it."""
    highest = 32_767
    with suppress(OSError, ValueError):
        highest = max(int(_SYSTEMS_RANGE.read_text().split()[0]) - 1, _LOWEST_PORT + 1000)
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = (highest - _LOWEST_PORT) // workers
    first = _LOWEST_PORT + number * share
    # A row of ports may begin at the last candidate.
    return random.sample(range(first, first + share - ROW_MAX), min(500, share - ROW_MAX))


def owner_of_port(port: int, pids: Iterable[int]) -> int | None:
    """Return the process of `pids` that has a TCP connection from this local port, else None."""
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
