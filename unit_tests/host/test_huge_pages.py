"""Tests that a broker's heap is moved to huge pages."""

from __future__ import annotations

import logging
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pybroker.host import huge_pages
from pybroker.host.huge_pages import heap_ranges, use_huge_pages

MAPS = """\
00400000-0041f000 r--p 00000000 fe:00 5385       /usr/bin/python3.13
0041f000-00a00000 r-xp 0001f000 fe:00 5385       /usr/bin/python3.13
the rest of a name after a line break
00a00000-01000000 rw-p 00545000 fe:00 5385       /usr/bin/python3.13
01000000-01400000 rw-p 00000000 00:00 0
0153a000-01c8d000 rw-p 00000000 00:00 0          [heap]
7f0000000000-7f00001ff000 rw-p 00000000 00:00 0
7f0000400000-7f0000800000 ---p 00000000 00:00 0
7f0000a00000-7f0000e00000 rw-s 00000000 00:01 77 /memfd:a name (deleted)
7f0001000000-7f0001600000 rw-p 00000000 00:00 0  [anon:a name]
7ffd5b800000-7ffd5c000000 rw-p 00000000 00:00 0  [stack]
"""
PAGE = 0x200000
LINUX = tuple(map(int, re.findall("[0-9]+", platform.release())[:2]))
FIRST_LINUX = (6, 1)
"""The first version of Linux that moves memory to huge pages on request."""
MOVED_KB = 14 * 1024
"""The seven whole huge pages that 18 MB contain at any address."""

PROGRAM = r"""
import logging
import re
from pathlib import Path
from pybroker.host.huge_pages import use_huge_pages

def memory_kb():
    text = Path("/proc/self/smaps_rollup").read_text()
    return [int(re.search(rf"^{name}: +(\d+) kB", text, re.M)[1]) for name in names]

logging.basicConfig(level=logging.INFO)
names = "AnonHugePages", "Rss"
kept = bytearray(b"record" * 3_000_000)
(_, all_before), _ = memory_kb(), use_huge_pages()
huge_after, all_after = memory_kb()
assert kept == b"record" * 3_000_000
print(huge_after, all_after - all_before)
"""


def refusal() -> str | None:
    """Return the reason for which this machine's kernel has no huge pages; None if it has them."""
    try:
        if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
            return "the machine's operator has switched huge pages off"
    except OSError:
        return "the kernel has no huge pages"
    return None


def test_the_ranges_are_whole_pages_of_private_memory_without_a_name() -> None:
    assert list(heap_ranges(MAPS, PAGE)) == [(0x1000000, 0x1400000), (0x1600000, 0x1C00000)]


@pytest.mark.skipif(refusal() is not None, reason=str(refusal()))
def test_the_present_heap_moves_and_takes_hardly_more_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    huge_kb, added_kb = map(int, done.stdout.split())
    if huge_kb < MOVED_KB and "heap not completely moved" in done.stderr:
        is_old = LINUX < FIRST_LINUX
        assert is_old or "Invalid argument" not in done.stderr, done.stderr
        pytest.skip(f"the kernel refused huge pages: {done.stderr}")
    assert huge_kb >= MOVED_KB
    assert added_kb <= huge_kb / 4


def test_without_huge_pages_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(huge_pages, "_HUGE_PAGES", tmp_path)
    monkeypatch.setattr(huge_pages, "heap_ranges", lambda maps, page_bytes: 1 // 0)
    with caplog.at_level(logging.INFO):
        use_huge_pages()
        (tmp_path / "hpage_pmd_size").write_text("2097152\n")
        (tmp_path / "enabled").write_text("always madvise [never]\n")
        use_huge_pages()
    assert not caplog.records


def test_a_refusal_of_the_kernel_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hpage_pmd_size").write_text("2097152\n")
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_HUGE_PAGES", tmp_path)
    monkeypatch.setattr(huge_pages, "heap_ranges", lambda maps, page_bytes: [(1, PAGE)] * 2)
    with caplog.at_level(logging.INFO):
        use_huge_pages()
    assert [record.getMessage() for record in caplog.records] == [
        "heap not completely moved to huge pages ranges=2 refused=2 reason=Invalid argument"
    ]
