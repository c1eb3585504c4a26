"""Parsing and formatting of broker addresses."""

from __future__ import annotations

PORT_MAX = 65_535


def split_address(text: str) -> tuple[str, int]:
    """Return (host, port) of `host:port` or `[IPv6 address]:port`, with or without `PROTOCOL://`
    before it. Raises ValueError for any other text."""
    rest = text.rpartition("://")[2]
    host, colon, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"must be host:port, not {text!r}")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets round an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
