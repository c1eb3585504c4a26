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
    """Move the present memory of this process to huge pages, if the kernel has them and allows
    them. Must be called before the process starts threads: otherwise the unused parts of their
    stacks would take memory.

    An event loop reads code and objects all over this memory for each request. Huge pages need
    fewer entries in the processor's cache of addresses (TLB).
    """
    try:
        if "[never]" in (_HUGE_PAGES / "enabled").read_text(encoding="ascii"):
            return
        page_bytes = int((_HUGE_PAGES / "hpage_pmd_size").read_text(encoding="ascii"))
        maps = _MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:  # another system, or a kernel without huge pages
        return
    for start, end in heap_ranges(maps, page_bytes):
        length = ctypes.c_size_t(end - start)
        if _LIBC.madvise(ctypes.c_void_p(start), length, _MADV_COLLAPSE):
            reason = os.strerror(ctypes.get_errno())
            log.info("memory not moved to huge pages bytes=%d reason=%s", end - start, reason)


def heap_ranges(maps: str, page_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the address ranges [start, end) of the heap that consist of whole pages of `page_bytes`
    bytes. `maps` is the content of /proc/PID/maps (proc_pid_maps(5))."""
    for line in maps.splitlines():
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        first, last = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-first // page_bytes) * page_bytes, last // page_bytes * page_bytes
        if start < end:
            yield start, end
