"""Lists, writes and loads the producer snapshots of one log. Snapshots are not synced. If the
checksum of a snapshot is wrong, the broker loads an older snapshot."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from pybroker.errors import CorruptionError, DiskFull, StorageError
from pybroker.ports import Disk
from pybroker.storage.filename import SegmentFile, segment_file
from pybroker.storage.producer_snapshot import decode, decode_undecided, encode
from pybroker.storage.producer_state import ProducerState

log = logging.getLogger(__name__)
_KEPT_MIN: Final = 2


class SnapshotFiles:
    """The producer snapshots of one log. `offsets`: the offsets of the existing snapshot files in
    `directory`."""

    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, directory: str, disk: Disk, offsets: Iterable[int] = ()) -> None:
        self._directory = directory
        self._disk = disk
        self._offsets = sorted(offsets)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{segment_file(offset, SegmentFile.SNAPSHOT)}"

    @property
    def latest(self) -> int:
        """The offset of the newest snapshot; -1 without a snapshot."""
        return self._offsets[-1] if self._offsets else -1

    def write(self, offset: int, state: ProducerState) -> None:
        """Write `state`, the producer state before the record at `offset`. If the disk is full,
        write no snapshot, and raise no error."""
        try:
            self._disk.write(self._path(offset), encode(state.entries.values(), state.undecided))
        except DiskFull as error:
            log.warning(
                "disk full, producer snapshot not written offset=%d error=%s", offset, error
            )
            self._disk.unlink(self._path(offset))  # the partial file
            return
        if offset not in self._offsets:
            self._offsets = sorted([*self._offsets, offset])

    def load(self, offset_max: int, offset_min: int) -> tuple[int, ProducerState] | None:
        """Return the offset and the producer state of the newest undamaged snapshot from
        `offset_min` to `offset_max`; None if there is none."""
        for offset in reversed(self._offsets):
            if not offset_min <= offset <= offset_max:
                continue
            path = self._path(offset)
            try:
                data = self._disk.read(path)
                entries = decode(data, path)
                return offset, ProducerState.restored(entries, decode_undecided(data))
            except FileNotFoundError:
                continue  # it was deleted with its segment
            except CorruptionError as error:
                log.warning(
                    "damaged producer snapshot, using an older one path=%s error=%s", path, error
                )
        return None

    def keep(self, bases: Iterable[int], end_offset: int) -> None:
        """Remove all snapshots above `end_offset`. Of the other snapshots, keep the newest two and
        those at the base offsets of segments (`bases`), and remove the rest."""
        wanted = {offset for offset in self._offsets if offset <= end_offset}
        newest = sorted(wanted)[-_KEPT_MIN:]
        kept = wanted & {*bases, *newest}
        for offset in self._offsets:
            if offset not in kept:
                try:
                    self._disk.unlink(self._path(offset))
                except StorageError as error:
                    log.warning("producer snapshot not removed offset=%d error=%s", offset, error)
        self._offsets = sorted(kept)
