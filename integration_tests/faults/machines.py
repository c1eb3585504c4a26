"""Simulated power losses of machines: the broker restarts with another boot id of its kernel, and
its files have lost their unsynced parts.

A mount that only the broker's process sees replaces the boot id. The mount needs root.
"""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

from pybroker.model import TopicPartition
from pybroker.records.batch import iter_headers
from pybroker.storage import checkpoints
from pybroker.storage.filename import RECOVERY_POINTS
from pybroker.testing.place import Place

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_RUN: Final = f'mount --bind "$1" {_BOOT_ID} && shift && exec "$@"'


def reason_to_skip() -> str | None:
    """Return why a boot id cannot be replaced on this machine; None if it can."""
    program = shutil.which("unshare")
    if program is None:
        return "unshare is missing: apt-get install util-linux"
    command = [program, "--mount", "mount", "--bind", "/proc/self/status", _BOOT_ID]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return "a mount namespace of one's own needs root"
    return None


class Machine:
    """The machine of a broker, with its own boot id."""

    def __init__(self, folder: Path, broker: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"boot-id-{broker}"
        self.boot()
        words = ("unshare", "--mount", "sh", "-c", _RUN, "sh", str(self._file))
        self.place = Place(prefix=words)

    def boot(self) -> None:
        """Boot the machine again, with a new boot id."""
        self._file.write_text(f"{uuid.uuid4()}\n")


def forget_unsynced(log_dir: Path, topic: str) -> int:
    """Truncate every log of a topic to its certainly synced part, as a power loss may. Return the
    number of lost batches. The broker must not run.
    """
    file = log_dir / RECOVERY_POINTS
    synced = checkpoints.decode_offsets(file.read_bytes(), str(file)) if file.exists() else {}
    lost = 0
    for folder in log_dir.glob(f"{topic}-*"):
        key = TopicPartition(topic, int(folder.name.rpartition("-")[2]))
        for path in folder.glob("*.log"):
            lost += _cut(path, synced.get(key, 0))
    return lost


def _cut(path: Path, end_offset: int) -> int:
    """Remove the batches from `end_offset` on. Return their number. A segment without a remaining
    batch is removed, unless it is the first segment.
    """
    data = path.read_bytes()
    headers = list(iter_headers(data))
    kept = [position + h.size for position, h in headers if h.last_offset < end_offset]
    size = kept[-1] if kept else 0
    if int(path.stem) > end_offset:
        for part in path.parent.glob(f"{path.stem}.*"):
            part.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(size)
    return len(headers) - len(kept)
