"""Finds and removes files that crashes and replays leave in an output. Files of a valid commit, and
files that a running process writes, are never removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pybroker.spark.etl import layout
from pybroker.spark.etl.exactly_once import Places
from pybroker.spark.etl.layout import AttemptName
from pybroker.spark.etl.store import Store


class Kind(Enum):
    """The reason why an attempt is not part of the output."""

    ALIVE = "is being written"
    YOUNG = "was written recently, perhaps by another machine"
    ORPHAN = "was not committed"
    SUPERSEDED = "was replaced by a later commit"


@dataclass(frozen=True)
class Leftover:
    """An attempt to write a run's result. The attempt is not part of the output. `size` is in
    bytes. `age_s` is the number of seconds since the last write."""

    name: AttemptName
    kind: Kind
    size: int
    age_s: float
    folders: tuple[Path, ...]


def leftovers(store: Store, places: Places, now_s: float, young_s: float) -> list[Leftover]:
    """Return all attempts that are not part of the output. `now_s` is in seconds since 1970. An
    attempt that no live process locks is YOUNG if its last write was less than `young_s` seconds
    ago."""
    roots = [places.output / layout.DATA, *_letters_roots(store, places)]
    folders = _attempt_folders(roots)
    found = []
    names = sorted({*folders, *store.attempts()})
    # Read the locks before the commits: a process that is dead by now commits nothing afterwards.
    alive = {name for name in names if store.is_attempt_locked(name)}
    in_force, superseded = _committed(store)
    for name in names:
        if name.attempt in in_force:
            continue
        own = tuple(folders.get(name, ()))
        size, written_s = _size_and_time([*own, *_lock_files(store, name)])
        age_s = max(0.0, now_s - written_s)
        kind = Kind.SUPERSEDED if name.attempt in superseded else Kind.ORPHAN
        if name in alive:
            kind = Kind.ALIVE
        elif age_s < young_s:
            kind = Kind.YOUNG
        found.append(Leftover(name, kind, size, age_s, own))
    return found


def remove(store: Store, items: Iterable[Leftover]) -> int:
    """For each attempt in `items`, remove its folders and its lock file. Return the number of freed
    bytes."""
    freed = 0
    for item in items:
        for folder in item.folders:
            store.files.remove_tree(folder)
            _remove_if_empty(folder.parent)
        store.forget_attempt(item.name)
        freed += item.size
    return freed


def remove_temporary(store: Store, now_s: float, young_s: float) -> int:
    """Remove temporary files that were written at least `young_s` seconds before `now_s` (seconds
    since 1970). Return their number."""
    count = 0
    for path in store.temporary_files():
        try:
            old = now_s - path.stat().st_mtime >= young_s
        except FileNotFoundError:
            continue
        if old:
            store.files.remove(path)
            count += 1
    return count


def _committed(store: Store) -> tuple[set[str], set[str]]:
    """Return two sets of attempt ids: the attempts whose files belong to the output, and the
    attempts that a later commit replaced."""
    counting = store.commit_names()
    last = store.commit(counting[-1]) if counting else None
    if last is not None and last.mode == "latest":
        counting = counting[-1:]
    in_force = {store.commit(name).attempt for name in counting}
    everything = {store.commit(name).attempt for name in store.all_commit_names()}
    return in_force, everything - in_force


def _letters_roots(store: Store, places: Places) -> Iterator[Path]:
    """Yield all folders of dead letters: the job's present folder, and each folder recorded in a
    commit."""
    names = {places.dead_letters}
    for name in store.all_commit_names():
        letters = store.commit(name).dead_letters
        if letters is not None:
            names.add(letters.folder)
    for folder in sorted(names):
        yield places.output / folder


def _attempt_folders(roots: Iterable[Path]) -> dict[AttemptName, list[Path]]:
    found: dict[AttemptName, list[Path]] = {}
    for root in roots:
        for path in root.glob("*/*"):
            name = layout.parse_folders(path.parent.name, path.name)
            if name is not None and path.is_dir():
                found.setdefault(name, []).append(path)
    return found


def _lock_files(store: Store, name: AttemptName) -> list[Path]:
    return [store.output / layout.STORE / layout.ATTEMPTS / layout.attempt_file(name)]


def _size_and_time(paths: Iterable[Path]) -> tuple[int, float]:
    size, newest = 0, 0.0
    for top in paths:
        for path in (top, *top.rglob("*")):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            size += 0 if path.is_dir() else status.st_size
            newest = max(newest, status.st_mtime)
    return size, newest


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # the folder is not empty
