"""Wall clocks of brokers that a test can set: a library compiled with gcc is preloaded into each
broker and shifts the kernel's time by an offset that the test writes to a file.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from pybroker.testing.place import Place
from unit_tests.patience import PATIENCE_S

_SOURCE: Final = Path(__file__).with_name("shifted_clock.c")
_OFFSET: Final = struct.Struct("=q")
_NANOSECONDS: Final = 1_000_000_000


@functools.cache
def reason_to_skip() -> str | None:
    """Return why clocks cannot be shifted on this machine; None if they can."""
    if shutil.which("gcc") is None:
        return "gcc is missing: apt-get install gcc libc6-dev"
    with tempfile.TemporaryDirectory() as folder:
        done = _compiled(Path(folder) / "shim.so")
        if done.returncode != 0:
            return f"gcc cannot compile {_SOURCE.name}: {done.stderr.strip()}"
    return None


class WallClocks:
    """The wall clocks of these brokers, initially right. The files are in `folder`, which must
    remain.
    """

    def __init__(self, folder: Path, brokers: tuple[int, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "shifted_clock.so"
        done = _compiled(library)
        assert done.returncode == 0, done.stderr
        self._files = {broker: folder / f"clock-{broker}" for broker in brokers}
        self.places: dict[int, Place] = {}
        for broker, file in self._files.items():
            file.write_bytes(_OFFSET.pack(0))
            words = ("env", f"LD_PRELOAD={library}", f"PYBROKER_CLOCK_OFFSET={file}")
            self.places[broker] = Place(prefix=words)

    def set(self, broker: int, seconds: float) -> None:
        """Set the broker's clock ahead of the right time by this many seconds (negative: behind
        it).
        """
        with self._files[broker].open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), _OFFSET.pack(round(seconds * _NANOSECONDS)), 0)


def _compiled(library: Path) -> subprocess.CompletedProcess[str]:
    words = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
