"""Renames the files of segments that are deleted, or that the log cleaner replaces. The file
suffixes are those of Apache Kafka.

The log cleaner syncs the new files as `*.cleaned`, and renames each to `*.swap`, the log file last.
This rename of the log file commits the replacement: if the broker crashes afterwards, the next
start completes the replacement. After the commit the old files are removed, and the new files lose
the suffix `.swap`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.ports import Disk
from pybroker.storage.filename import (
    CLEANED_SUFFIX,
    CORRUPT_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    SegmentFile,
    parse_segment_file,
    segment_file,
)
from pybroker.storage.segment import SCRUB_BYTES, Segment

log = logging.getLogger(__name__)
_LOG: Final = SegmentFile.LOG
_SIDES: Final = (SegmentFile.INDEX, SegmentFile.TIME_INDEX, SegmentFile.TXN_INDEX)


def mark_deleted(segment: Segment, disk: Disk) -> list[str]:
    """Rename the segment's files to `*.deleted`, and return the new paths. The caller must remove
    the files later."""
    segment.close()
    paths = segment.paths()
    for path in paths:
        disk.rename(path, path + DELETED_SUFFIX)
    return [path + DELETED_SUFFIX for path in paths]


def set_aside(segment: Segment, disk: Disk) -> None:
    """Rename the file of batches to `*.corrupt`, and remove the files that can be rebuilt."""
    segment.close()
    for path in segment.paths():
        if path == segment.path:
            disk.rename(path, path + CORRUPT_SUFFIX)
        else:
            disk.unlink(path)


def decide(directory: str, base_offset: int, disk: Disk) -> None:
    """Rename the synced files `*.cleaned` of a new segment to `*.swap`, durably. If the broker
    stops after that, its next start completes the replacement of the old segments."""
    for kind in (*_SIDES, _LOG):
        path = f"{directory}/{segment_file(base_offset, kind)}"
        if disk.exists(path + CLEANED_SUFFIX):
            disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    disk.sync_dir(directory)


def complete(directory: str, base_offset: int, replaced: Iterable[int], disk: Disk) -> None:
    """Remove the files of the `replaced` segments (their base offsets), and give the files
    `*.swap` of the new segment their final names. Idempotent. The caller must sync the directory
    afterwards."""
    for base in replaced:
        for kind in (_LOG, *_SIDES):
            if base != base_offset:  # the renames below replace the files of `base_offset`
                disk.unlink(f"{directory}/{segment_file(base, kind)}")
    # The removal must be durable before the new files get their names. Otherwise a power loss could
    # restore old files, and the log would contain some offsets twice.
    disk.sync_dir(directory)
    for kind in (*_SIDES, _LOG):
        path = f"{directory}/{segment_file(base_offset, kind)}"
        if disk.exists(path + SWAP_SUFFIX):
            disk.rename(path + SWAP_SUFFIX, path)


def complete_at_start(directory: str, disk: Disk, names: Collection[str]) -> bool:
    """Complete each committed replacement of segments, and remove the files of each uncommitted
    replacement. A file `*.log.swap` marks a committed replacement. `names` are all files in the
    log's `directory`. Return whether any file was changed. Raises StorageError."""
    unfinished = [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]
    if not unfinished:
        return False
    parsed = {name: parse_segment_file(name.removesuffix(SWAP_SUFFIX)) for name in names}
    segments = {
        name: found.offset for name, found in parsed.items() if found and found.kind is _LOG
    }
    decided = sorted(base for name, base in segments.items() if name.endswith(SWAP_SUFFIX))
    present = {base for name, base in segments.items() if not name.endswith(SWAP_SUFFIX)}
    for name in unfinished:
        found = parsed.get(name)
        if found is None or found.offset not in decided:
            disk.unlink(f"{directory}/{name}")
    for base in decided:
        end = _end(directory, base, disk)
        replaced = sorted(each for each in present if base <= each < max(end, base + 1))
        complete(directory, base, replaced, disk)
        disk.sync_dir(directory)
        log.info(
            "replacement of segments completed path=%s base_offset=%d replaced=%d",
            directory,
            base,
            len(replaced),
        )
    return True


def _end(directory: str, base: int, disk: Disk) -> int:
    """Return the end offset of the batches in the file `*.log.swap`."""
    path = f"{directory}/{segment_file(base, _LOG)}{SWAP_SUFFIX}"
    size = disk.size(path)
    segment = Segment(directory, base, disk, size=size, next_offset=base, suffix=SWAP_SUFFIX)
    end = base
    try:
        for _, header in segment.headers(0, size, scan_bytes=SCRUB_BYTES):
            end = header.next_offset
    except CorruptionError:
        # The recovery of the log reports the damage.
        log.warning("new segment of the log cleaner is corrupt path=%s", path)
    finally:
        segment.close()
    return end
