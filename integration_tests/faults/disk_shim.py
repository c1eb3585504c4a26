"""Disks that fail a sync, or are slow: a library preloaded into a broker's process (LD_PRELOAD)
reads from a file how to treat writes and syncs of segments.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from pybroker.testing.place import Place

_SOURCE: Final = Path(__file__).with_name("disk_shim.c")
_ORDER: Final = (
    "fail_syncs",
    "sync_delay_ms",
    "write_delay_ms",
    "syncs",
    "failed",
    "retried",
    "writes",
)
"""The field numbers of the file, as in the enum of disk_shim.c."""


def reason_to_skip() -> str | None:
    """Return why the library cannot be built on this machine; None if it can."""
    if shutil.which("cc") is None:
        return "no C compiler for the library that makes disks fail"
    return None


def compiled(folder: Path) -> Path:
    """Compile the library, and return its path."""
    library = folder / "disk_shim.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Disk:
    """The simulated faults of one broker's disk, over all runs of the broker."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(bytes(struct.calcsize("i") * len(_ORDER)))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.variables = {"LD_PRELOAD": str(library), "PYBROKER_DISK_SHIM": str(control)}
        words = [f"{name}={value}" for name, value in self.variables.items()]
        self.place = Place(prefix=("env", *words))

    def fail_next_sync(self) -> None:
        """Make the next sync of a segment fail with EIO; later syncs succeed."""
        self._set("fail_syncs", 1)

    def slow(self, *, sync_ms: int = 0, write_ms: int = 0) -> None:
        """Delay each sync and each write of a segment by these times in seconds."""
        self._set("sync_delay_ms", sync_ms)
        self._set("write_delay_ms", write_ms)

    @property
    def syncs(self) -> int:
        """Return the number of started syncs of segments."""
        return self._get("syncs")

    @property
    def writes(self) -> int:
        """Return the number of writes of segments."""
        return self._get("writes")

    @property
    def failed(self) -> int:
        """Return the number of syncs that failed with EIO."""
        return self._get("failed")

    @property
    def retried(self) -> int:
        """Return the number of syncs of a file after a failed sync of the same file in the same
        run.
        """
        return self._get("retried")

    def _get(self, name: str) -> int:
        (value,) = struct.unpack_from("i", self._map, _place(name))
        return int(value)

    def _set(self, name: str, value: int) -> None:
        struct.pack_into("i", self._map, _place(name), value)


def _place(name: str) -> int:
    return _ORDER.index(name) * struct.calcsize("i")
