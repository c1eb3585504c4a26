"""Restores deleted segments (`*.deleted`) that a log needs after a power loss.

One deletion may be durable, while the deletion or the creation of another segment is lost. The log
would then have a gap, or no segment.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Collection
from typing import Final

from pybroker.errors import CorruptionError
from pybroker.ports import Disk
from pybroker.storage.filename import (
    DELETED_SUFFIX,
    SegmentFile,
    parse_segment_file,
    segment_file,
)
from pybroker.storage.segment import Segment

log = logging.getLogger(__name__)

_LOG: Final = SegmentFile.LOG


def restore(directory: str, disk: Disk, names: Collection[str], recovery_point: int) -> bool:
    """Restore each `*.deleted` segment that begins where the previous segment ends. A later segment
    must exist, or the `*.deleted` segment must begin below `recovery_point`. If all segments are
    `*.deleted`, restore only the newest segment that begins below `recovery_point`. `names` are all
    files in `directory`. Return whether a segment was restored. Raises StorageError."""
    if not any(name.endswith(DELETED_SUFFIX) for name in names):
        return False
    found = {name: parse_segment_file(name.removesuffix(DELETED_SUFFIX)) for name in names}
    logs = {name: each.offset for name, each in found.items() if each and each.kind is _LOG}
    bases = sorted(base for name, base in logs.items() if not name.endswith(DELETED_SUFFIX))
    removed = sorted({base for name, base in logs.items() if name.endswith(DELETED_SUFFIX)})
    # A deleted segment fills a gap if both conditions hold:
    # - Its base offset equals the end offset of the previous segment.
    # - A later segment exists, or the deleted segment begins below the recovery point. In the
    #   second case no truncation has removed the segment, because a truncation lowers the recovery
    #   point first.
    newest = max((base for base in removed if base < recovery_point), default=-1)
    is_changed = False
    for base in removed:
        place = bisect.bisect(bases, base)
        if base in bases or not (place < len(bases) or base < recovery_point):
            continue
        if not bases and base != newest:
            continue
        if bases and not (place and _end(directory, disk, bases[place - 1]) == base):
            continue
        path = f"{directory}/{segment_file(base, _LOG)}"
        disk.rename(path + DELETED_SUFFIX, path)
        log.warning("segment restored after a power loss undid its deletion path=%s", path)
        bases.insert(place, base)
        is_changed = True
    if is_changed:
        disk.sync_dir(directory)
    return is_changed


def _end(directory: str, disk: Disk, base: int) -> int | None:
    """Return the end offset of the segment that begins at `base`; None if its batches are
    corrupt."""
    size = disk.size(f"{directory}/{segment_file(base, _LOG)}")
    segment = Segment(directory, base, disk, size=size, next_offset=base)
    end = base
    try:
        for _, header in segment.headers(0, size):
            end = header.next_offset
    except CorruptionError:
        return None
    finally:
        segment.close()
    return end
