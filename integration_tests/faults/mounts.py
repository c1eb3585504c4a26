"""File systems for tests: small file systems in memory that fill up, and images. A copy of an image
has the data that a machine would have after a power loss at this moment.

Mounts need root. A killed test run leaves its mounts behind. The next run removes them, because
their paths contain the pid of their run.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from unit_tests.patience import PATIENCE_S, wait_until

FOLDER: Final = f"pybroker-disks-of-{os.getpid()}-"
"""The prefix of the names of folders with mounts."""
_OURS: Final = re.compile(r"/pybroker-disks-of-(\d+)-")


@functools.cache
def reason_to_skip() -> str | None:
    """Return why file systems cannot be mounted on this machine; None if they can."""
    if os.geteuid() != 0:
        return "mounts need root"
    for program in ("mount", "umount", "mkfs.ext4"):
        if shutil.which(program) is None:
            return f"mounts need {program}: apt-get install mount e2fsprogs"
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder, Mounts() as mounts:
        try:
            mounts.memory(Path(folder) / "memory", 1 << 20)
            mounts.image(Path(folder) / "disk", made_image(Path(folder) / "image", 1 << 23))
        except subprocess.CalledProcessError as error:
            return f"mounts are not allowed here: {error.stderr.strip().partition(chr(10))[0]}"
    return None


def made_image(path: Path, size_bytes: int) -> Path:
    """Return a file with an empty ext4 file system."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", str(path))
    return path


def copied_image(image: Path, copy: Path) -> Path:
    """Copy the content of a mounted image on its disk, without data that is only in the page
    cache.
    """
    _run("cp", "--sparse=always", str(image), str(copy))
    return copy


class Mounts:
    """The mounts of a test, for a `with` statement, which unmounts everything at its end."""

    def __init__(self) -> None:
        self._places: list[Path] = []

    def __enter__(self) -> Mounts:
        _remove_leftovers()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for place in reversed(self._places[:]):
            self.unmount(place)

    def memory(self, place: Path, size_bytes: int) -> None:
        """Mount a file system in memory at `place`, inside a folder whose name begins with
        FOLDER.
        """
        self._mount(place, "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs")

    def image(self, place: Path, image: Path) -> None:
        """Mount the file system of an image at `place`, inside a folder whose name begins with
        FOLDER.
        """
        self._mount(place, "-o", "loop", str(image))

    def unmount(self, place: Path) -> None:
        """Unmount a file system that is not in use any more. Wait for a process that has just ended
        to close its files.
        """
        wait_until(lambda: _is_unmounted(place), what=f"no process uses {place}")
        self._places.remove(place)

    def _mount(self, place: Path, *words: str) -> None:
        assert _OURS.search(str(place)), f"{place} is not inside a folder of this run's mounts"
        place.mkdir(parents=True, exist_ok=True)
        _run("mount", *words, str(place))
        self._places.append(place)


def _remove_leftovers() -> None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place = line.split()[4]
        if (found := _OURS.search(place)) and not psutil.pid_exists(int(found[1])):
            subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def _is_unmounted(place: Path) -> bool:
    done = subprocess.run(
        ("umount", str(place)), check=False, capture_output=True, timeout=PATIENCE_S
    )
    return done.returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
