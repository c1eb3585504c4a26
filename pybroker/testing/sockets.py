"""Chooses free ports for a test's servers. Finds the process that has a TCP connection from a given
port (Linux only)."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Lock
from typing import Final

_LOWEST_PORT: Final = 10_000
_SYSTEMS_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES: Final = 500
_KEPT_MAX: Final = 3_000
"""The maximum number of ports that one process keeps for itself."""
_CONNECTIONS: Final = Path("/proc/net/tcp")
_LOCAL, _INODE = 1, 9
"""Columns of /proc/net/tcp."""


class _Choice:
    """The ports that this process has chosen. Until the test's server binds a chosen port, another
    process could choose the port too. So this process reserves its ports: it locks one byte for
    each port in a file that all processes of the user share."""

    def __init__(self, file: str) -> None:
        self._file: Final = file
        self._descriptor: int | None = None
        self._mine: Final = deque[int]()
        self._guard: Final = Lock()

    def row(self, count: int, host: str) -> int:
        """Choose `count` consecutive ports of `host`, and return the first."""
        highest = _highest_port()
        with self._guard:
            for _ in range(_TRIES):
                first = random.randint(_LOWEST_PORT, highest - count + 1)
                ports = range(first, first + count)
                if self._keep(ports):
                    if _are_free(ports, host):
                        return first
                    self._give_back(count)
        raise OSError(
            f"no {count} consecutive ports from {_LOWEST_PORT} to {highest} of {host} are free;"
            f" stop some of the processes that listen there"
        )

    def _keep(self, ports: range) -> bool:
        if self._descriptor is None:
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if any(port in self._mine for port in ports):
            return False
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
        except OSError:
            return False
        self._mine.extend(ports)
        while len(self._mine) > _KEPT_MAX:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._mine.popleft())
        return True

    def _give_back(self, count: int) -> None:
        assert self._descriptor is not None
        for _ in range(count):
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._mine.pop())


_chosen: Final = _Choice(f"/tmp/pybroker-ports-{os.getuid()}")


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of 127.0.0.1, below the system's range for outgoing
    connections. No process of the same user is given one of these ports again until the calling
    process has ended or has chosen 3,000 more ports."""
    return [free_row(1) for _ in range(count)]


def free_row(count: int, host: str = "127.0.0.1") -> int:
    """Return the first of `count` consecutive ports of `host`, chosen as by `free_ports`."""
    return _chosen.row(count, host)


def _highest_port() -> int:
    """Return the highest port below the system's range for outgoing connections."""
    with suppress(OSError, ValueError):
        return max(int(_SYSTEMS_RANGE.read_text().split()[0]) - 1, _LOWEST_PORT + 1000)
    return 32_767


def _are_free(ports: range, host: str) -> bool:
    with suppress(OSError), ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server((host, port)))
        return True
    return False


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
