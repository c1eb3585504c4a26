"""Measures the resources of a process and its children: CPU time, memory, and reads from the disk.
Also fills and empties the page cache. Linux only; the module works for every kind of process."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB: the RSS, and the PSS, which divides each shared page among the
    processes that share it."""

    rss_mib: float
    pss_mib: float


def tree(pid: int) -> list[int]:
    """Return the ids of the process and of all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that the process and its descendants have used so far: user and system
    time, including that of threads that have ended."""
    return sum(_cpu_clock(member) for member in tree(pid))


def _cpu_clock(pid: int) -> float:
    """Return the CPU time in seconds that the process `pid` has used, by its CPU clock in the
    kernel. The clock's id is computed as in clock_getcpuclockid(3).

    The clock counts nanoseconds, while /proc/PID/stat counts in steps of 10 ms."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # the process has ended meanwhile
        return 0.0


def memory(pid: int) -> Memory:
    """Return the present memory of the process and its descendants."""
    rss = pss = 0
    for member in tree(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            text = Path(f"/proc/{member}/smaps_rollup").read_text(encoding="ascii")
            rss += _kib(text, "Rss")
            pss += _kib(text, "Pss")
    return Memory(rss / 1024, pss / 1024)


def _kib(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def bytes_from_disk(pid: int) -> int:
    """Return the number of bytes that this process has read from the disk so far."""
    text = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
    found = re.search(r"^read_bytes: (\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def drop_from_page_cache(folder: Path) -> None:
    """Write the segment files (`*.log`) below `folder` to the disk, and remove their pages from the
    page cache."""
    for path in folder.rglob("*.log"):
        with _opened(path) as file:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


def fill_page_cache(folder: Path) -> None:
    """Fill the free memory with page cache: with the pages of a new file, which stays in `folder`.

    A virtual machine gets memory from its host when a page is first written, and may return free
    pages to the host. The first use of a page then costs ten times as much as copying data into it.
    Pages of the page cache can be used again without this cost."""
    path = folder / "nothing"
    size = psutil.virtual_memory().available
    buffer = bytearray(MIB)
    with path.open("wb") as file:
        file.truncate(size)
    with _opened(path) as reader:
        while os.readv(reader, [buffer]):
            pass
