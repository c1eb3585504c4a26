"""The parsed value of `zookeeper.connect`: HOST:PORT[,HOST:PORT...][/chroot]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pybroker.errors import StartupError

DEFAULT_PORT: Final = 2181


@dataclass(frozen=True, slots=True)
class ConnectString:
    """The servers and the chroot. `chroot` is empty or a path like `/kafka/one`, without a final
    slash."""

    hosts: tuple[tuple[str, int], ...]
    chroot: str

    @property
    def servers(self) -> str:
        """HOST:PORT of every server, joined by commas, without the chroot."""
        return ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts
        )


def parse_connect_string(text: str) -> ConnectString:
    """Parse the value of zookeeper.connect. Raises StartupError, which names the wrong part."""
    servers, slash, rest = text.strip().partition("/")
    chroot = slash + rest.rstrip("/") if rest.rstrip("/") else ""
    if any(part in ("", ".", "..") for part in chroot.split("/")[1:]):
        raise StartupError(
            f"zookeeper.connect={text}: the chroot {chroot!r} has a part that is empty, '.' or"
            " '..'; give a path like /kafka"
        )
    hosts = tuple(_parse_server(text, server.strip()) for server in servers.split(","))
    return ConnectString(hosts, chroot)


def _parse_server(text: str, server: str) -> tuple[str, int]:
    if server.startswith("["):
        host, bracket, port = server[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = server.partition(":")
        bracket = "]"
    number = port or str(DEFAULT_PORT)
    is_port = number.isascii() and number.isdigit() and 0 < int(number) < 65536
    if not host or not bracket or not is_port or any(c.isspace() for c in host):
        raise StartupError(
            f"zookeeper.connect={text}: {server!r} is not HOST:PORT;"
            f" give HOST:PORT[,HOST:PORT...][/chroot]"
        )
    return host, int(number)
