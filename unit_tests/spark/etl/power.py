"""A faulty file system: the process can be killed at any step, and unsynced data can be lost."""

from __future__ import annotations

import shutil
from pathlib import Path

from pybroker.spark.etl.files import RealFiles


class Killed(BaseException):
    """The process was killed at this step."""


class FaultyFiles(RealFiles):
    """Real files below `root`. The process is killed at the step with the number `die_at`."""

    def __init__(self, root: Path, die_at: int | None = None) -> None:
        self._root = root
        self._die_at = die_at
        self.steps = 0
        self.kinds: list[str] = []
        self._synced: set[int] = set()
        self._named: set[Path] = {root}

    def restart(self, die_at: int | None = None) -> None:
        """Start another process on the same files. Synced files are unchanged."""
        self.steps = 0
        self._die_at = die_at

    def _step(self, kind: str) -> None:
        if self._die_at is not None and self.steps >= self._die_at:
            raise Killed(f"step {self.steps}")
        self.steps += 1
        self.kinds.append(kind)

    def make_folder(self, path: Path) -> None:
        self._step("make_folder")
        super().make_folder(path)

    def create(self, path: Path, content: bytes) -> None:
        try:
            self._step("create")
        except Killed:
            if self.steps == self._die_at:
                path.write_bytes(content[: len(content) // 2])
            raise
        super().create(path, content)

    def sync(self, path: Path) -> None:
        self._step("sync")
        self._synced.add(path.stat().st_ino)

    def sync_folder(self, path: Path) -> None:
        self._step("sync_folder")
        if path.is_relative_to(self._root):
            self._named |= set(path.iterdir())

    def link(self, source: Path, target: Path) -> None:
        self._step("link")
        super().link(source, target)

    def remove(self, path: Path) -> None:
        self._step("remove")
        super().remove(path)

    def remove_tree(self, path: Path) -> None:
        self._step("remove_tree")
        super().remove_tree(path)

    def lose_power(self) -> None:
        for path in sorted(self._root.rglob("*"), key=lambda each: len(each.parts)):
            if not path.exists():
                continue
            if path not in self._named:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.is_file() and path.stat().st_ino not in self._synced:
                path.write_bytes(b"")
