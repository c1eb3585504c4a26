"""Opens, takes over and closes ZooKeeper sessions without kazoo. kazoo does not report the granted
session timeout, and replaces an expired session by a new one."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_LENGTH = struct.Struct(">i")
_CONNECT_REQUEST = struct.Struct(">iqiqi16s?")
_CONNECT_RESPONSE = struct.Struct(">iiqi16s")
_CLOSE_REQUEST = struct.Struct(">ii")
_CLOSE_OPCODE: Final = -11
_NEW_SESSION: Final = 0
_NO_PASSWORD: Final = bytes(16)
_ANSWER_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The id and the password (16 bytes) with which a client can take over a session."""

    id: int
    password: bytes


@dataclass(frozen=True, slots=True)
class Granted:
    """The server's answer to the opening of a session. `timeout_ms` is 0 if the session has
    expired."""

    key: SessionKey
    timeout_ms: int


class NoServer(ConnectionError):
    """No server has answered with ZooKeeper's protocol; the message gives each server's reason.
    `refused`: no server accepted the connection."""

    def __init__(self, reasons: Sequence[str], refused: bool) -> None:
        super().__init__("; ".join(reasons) or "the list of servers is empty")
        self.refused = refused


class _Refused(Exception):
    """The server did not accept the connection; the message gives the reason."""


async def close_session(
    hosts: Sequence[tuple[str, int]], key: SessionKey, *, timeout_s: float
) -> bool:
    """Close a session whose client is gone. Return whether the session was alive. Each server gets
    `timeout_s` to answer. Raises NoServer."""
    granted = await open_and_close(hosts, key=key, timeout_ms=1000, timeout_s=timeout_s)
    return granted.timeout_ms > 0


async def open_and_close(
    hosts: Sequence[tuple[str, int]],
    *,
    key: SessionKey | None = None,
    timeout_ms: int,
    timeout_s: float,
) -> Granted:
    """Open a session, or if `key` is given, take over its session. Close the session at once, and
    return the server's answer. Each server gets `timeout_s` to answer. Raises NoServer."""
    reasons = []
    refused = True
    for host, port in hosts:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(timeout_s):
                return await _open_and_close(host, port, key, timeout_ms)
        except _Refused as error:
            reasons.append(str(error))
            continue
        except TimeoutError:
            reasons.append(f"no answer from {place} within {timeout_s:g} s")
        except (OSError, asyncio.IncompleteReadError, struct.error, ValueError):
            reasons.append(f"{place} does not answer with ZooKeeper's protocol")
        refused = False
    raise NoServer(reasons, refused)


async def _connected(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of the host that accepts. Raises _Refused."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise _Refused(f"no address is known for {host}") from None
    reason = f"no address is known for {host}"
    for *_, address in found:
        try:
            return await asyncio.open_connection(str(address[0]), port)
        except ConnectionRefusedError:
            reason = f"connection refused by {host}:{port}"
        except TimeoutError:
            raise
        except OSError as error:
            reason = f"no connection to {host}:{port} ({error.strerror or error})"
    raise _Refused(reason)


async def _open_and_close(host: str, port: int, key: SessionKey | None, timeout_ms: int) -> Granted:
    reader, writer = await _connected(host, port)
    try:
        session = key or SessionKey(_NEW_SESSION, _NO_PASSWORD)
        request = _CONNECT_REQUEST.pack(
            0, 0, timeout_ms, session.id, len(session.password), session.password, False
        )
        writer.write(_LENGTH.pack(len(request)) + request)
        _, granted_ms, session_id, _, password = _CONNECT_RESPONSE.unpack_from(
            await _read_message(reader)
        )
        if granted_ms > 0:
            close = _CLOSE_REQUEST.pack(1, _CLOSE_OPCODE)
            writer.write(_LENGTH.pack(len(close)) + close)
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await _read_message(reader)
        return Granted(SessionKey(session_id, password), max(granted_ms, 0))
    finally:
        writer.close()


async def _read_message(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if not 0 <= length <= _ANSWER_BYTES_MAX:
        raise ValueError(
            f"ZooKeeper's answer has a length of {length} bytes, expected 0 to {_ANSWER_BYTES_MAX}"
        )
    return await reader.readexactly(length)
