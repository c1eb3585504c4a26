"""What a power loss leaves of segments that were being removed.

Retention renames them oldest first. The names of a directory that was not made durable since may
come back one by one, and then the log lacks segments in its middle; or, where it had removed them
all, the one that it had begun in their place. They are put back: retention removes them again.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable
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

_logger = logging.getLogger(__name__)

_LOG: Final = SegmentFile.LOG


def restore(directory: str, disk: Disk, names: Iterable[str], recovery_point: int) -> bool:
    """Give segments their names back that begin where another one ends, where a later one is there,
    too, or where the log would end below its recovery point, which a cut lowers first. `names` are
    those of all files. Gives whether there were any. Raises StorageError."""
    found = {name: parse_segment_file(name.removesuffix(DELETED_SUFFIX)) for name in names}
    logs = {name: each.offset for name, each in found.items() if each and each.kind is _LOG}
    bases = sorted(base for name, base in logs.items() if not name.endswith(DELETED_SUFFIX))
    removed = sorted({base for name, base in logs.items() if name.endswith(DELETED_SUFFIX)})
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
        _logger.warning("segment restored after a power loss undid its deletion path=%s", path)
        bases.insert(place, base)
        is_changed = True
    if is_changed:
        disk.sync_dir(directory)
    return is_changed


def _end(directory: str, disk: Disk, base: int) -> int | None:
    """Where the batches of a segment end; None where something else stands in it."""
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
