"""Moves the process's memory to huge pages of the processor (Linux)."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS: Final = Path("/proc/self/maps")
_MADV_COLLAPSE: Final = 25
"""The advice of madvise(2) that moves memory to huge pages at once (Linux 6.1)."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def use_huge_pages() -> None:
    """Move the present heap of this process to huge pages, if the kernel has them and allows them.
    Must be called before the process starts threads: otherwise the stack of each thread could take
    the memory of one more huge page.

    An event loop reads bytecode and objects all over the heap for each request. With huge pages,
    few entries in the processor's cache of address translations (TLB) cover the whole heap.
    """
    try:
        if "[never]" in (_HUGE_PAGES / "enabled").read_text(encoding="ascii"):
            return
        page_bytes = int((_HUGE_PAGES / "hpage_pmd_size").read_text(encoding="ascii"))
        ranges = list(heap_ranges(_MAPS.read_text("utf-8", errors="replace"), page_bytes))
    except (OSError, ValueError):  # another system, or a kernel without huge pages
        return
    refusals = []
    for start, end in ranges:
        length = ctypes.c_size_t(end - start)
        if _LIBC.madvise(ctypes.c_void_p(start), length, _MADV_COLLAPSE):
            refusals.append(os.strerror(ctypes.get_errno()))
    if refusals:  # Linux before 6.1, or there are too few free huge pages
        text = "heap not completely moved to huge pages ranges=%d refused=%d reason=%s"
        log.info(text, len(ranges), len(refusals), refusals[0])


def heap_ranges(maps: str, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the address ranges [start, end) of the heap that consist of whole pages of `page_bytes`
    bytes. `maps` is the content of /proc/PID/maps (proc_pid_maps(5))."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5:  # the rest of a file name that contains a line break
            continue
        addresses, access, _, _, inode, *name = fields
        if access != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-first // page_bytes) * page_bytes, last // page_bytes * page_bytes
        if start < end:
            yield start, end
