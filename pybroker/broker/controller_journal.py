"""The controller's decisions as lines of JSON, in two files in the first log directory. The
controller never waits for the journal."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.errors import StorageError
from pybroker.ports import Blocking, Disk

log = logging.getLogger(__name__)

FILE_NAME: Final = "controller-journal"
OLDER_FILE_NAME: Final = f"{FILE_NAME}.1"
FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""The size limit of each of the two files (bytes). A full current file is renamed and replaces the
older file."""
WAITING_MAX: Final = 20_000
"""The maximum number of entries that wait to be written. If more wait, the oldest ones are
dropped."""
SHOWN_MAX: Final = 10_000

Entry = dict[str, object]


class ControllerJournal:
    """Writes the controller's decisions to the journal files, between `start` and `stop`. `read`
    works at any time."""

    def __init__(self, directory: str, disk: Disk, blocking: Blocking) -> None:
        self._path = f"{directory}/{FILE_NAME}"
        self._older = f"{directory}/{OLDER_FILE_NAME}"
        self._disk = disk
        self._blocking = blocking
        self._waiting: deque[bytes] = deque(maxlen=WAITING_MAX)
        self._wake = asyncio.Event()
        self._files = asyncio.Lock()
        self._task = BackgroundTask("controller-journal")
        self._refused = False

    def note(self, entry: Entry) -> None:
        """Queue an entry for writing. Return at once and raise nothing."""
        self._waiting.append(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._wake.set()

    def start(self) -> None:
        self._task.start(self._run)

    async def stop(self) -> None:
        """End the background task after one attempt to write the queued entries. Idempotent."""
        await self._task.stop()
        await self._flush()

    async def read(self, partition: str | None, limit: int) -> list[Entry]:
        """Return at most `limit` of the newest entries, the newest last. If `partition` (such as
        `topic-0`) is not None, return only entries about this partition."""
        async with self._files:
            waiting = list(self._waiting)
            return await self._blocking.run(self._read, waiting, partition, limit)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._flush()

    async def _flush(self) -> None:
        async with self._files:
            lines = list(self._waiting)
            self._waiting.clear()
            if not lines:
                return
            try:
                await self._blocking.run(self._write, b"".join(lines))
            except StorageError as error:
                if not self._refused:
                    log.warning(
                        "journal not written, trying again with the next entry path=%s error=%s",
                        self._path,
                        error,
                    )
                self._refused = True
                self._waiting = deque([*lines, *self._waiting], WAITING_MAX)
            else:
                self._refused = False

    def _write(self, data: bytes) -> None:
        """Append `data`, lines of JSON, to the current file. If the file would become too large,
        rename it and begin a new file. Blocks. Raises StorageError."""
        disk, path = self._disk, self._path
        if disk.exists(path) and disk.size(path) + len(data) > FILE_BYTES_MAX:
            disk.rename(path, self._older)
        file = disk.open(path, create=True)
        try:
            end = file.size()
            is_torn = end > 0 and file.pread(end - 1, 1) != b"\n"
            # The next entry must not continue a line that a crash cut off.
            file.append(b"\n" + data if is_torn else data)
        finally:
            file.close()

    def _read(self, waiting: list[bytes], partition: str | None, limit: int) -> list[Entry]:
        """Read the newest entries from the current file, the older file, and `waiting`, the lines
        that are still to be written. A line that a crash cut off is skipped. Blocks."""
        found: list[Entry] = []
        wanted = b"" if partition is None else json.dumps(partition).encode()
        for lines in (waiting, self._lines(self._path), self._lines(self._older)):
            for line in reversed(lines):
                if len(found) >= min(limit, SHOWN_MAX):
                    break
                entry = _entry(line) if wanted in line else None
                if entry is not None and partition in (None, entry.get("partition")):
                    found.append(entry)
        return found[::-1]

    def _lines(self, path: str) -> list[bytes]:
        try:
            return self._disk.read(path).splitlines()
        except (FileNotFoundError, StorageError):
            return []


def _entry(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
