"""The stored keys (id and password) of a broker's ZooKeeper sessions. After a kill, the next
process with the same data directory closes the old session at once, and recognizes the old
session's registration as its own."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from pybroker.coordinator.zookeeper.handshake import SessionKey

log = logging.getLogger(__name__)
_FILE_NAME: Final = "zookeeper.session"
_SESSIONS_MAX: Final = 8


class SessionStore(Protocol):
    """Stores the keys (id and password) of a broker's ZooKeeper sessions. The key of the oldest
    session comes first."""

    def load(self) -> list[SessionKey]:
        """Return the stored keys; empty if the stored content is damaged. Does not raise."""

    def save(self, keys: Sequence[SessionKey]) -> None:
        """Replace the stored keys. Raises OSError."""


class NoSessionStore:
    """A store that keeps no keys."""

    def load(self) -> list[SessionKey]:
        return []

    def save(self, keys: Sequence[SessionKey]) -> None:
        del keys


class FileSessionStore:
    """Stores the keys of ZooKeeper sessions in a file in `directory`. Only the file's owner can
    read the file. The file is replaced atomically, but not synced: after a power loss the sessions
    have expired anyway."""

    def __init__(self, directory: str, name: str = _FILE_NAME) -> None:
        self._path = Path(directory) / name

    def load(self) -> list[SessionKey]:
        try:
            items = json.loads(self._path.read_bytes())["sessions"]
            keys = [SessionKey(int(item["id"]), bytes.fromhex(item["password"])) for item in items]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("session file ignored path=%s reason=%s", self._path, error)
            return []
        return [key for key in keys if len(key.password) == 16 and -(2**63) <= key.id < 2**63]

    def save(self, keys: Sequence[SessionKey]) -> None:
        items = [{"id": key.id, "password": key.password.hex()} for key in keys[-_SESSIONS_MAX:]]
        temporary = self._path.with_name(f"{self._path.name}.tmp")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(json.dumps({"version": 1, "sessions": items}).encode())
        temporary.replace(self._path)
