"""Tests of the simulated disk: without faults it behaves like a real disk, with faults as badly as
a real disk can. The conformance tests of every `Disk` are in `storage/test_disk.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.errors import StorageError
from pybroker.ports import Disk, File
from pybroker.storage.files import SystemDisk
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment


def new_disk(seed: object = 1) -> tuple[SimDisk, DiskView]:
    disk = SimDisk(Environment(str(seed)), "m")
    view = DiskView(disk)
    view.make_dirs("/data")
    view.sync_dir("/")
    return disk, view


def written(view: Disk, path: str, *parts: bytes) -> File:
    file = view.open(path, create=True)
    for part in parts:
        file.append(part)
    return file


def after_power_loss(disk: SimDisk) -> DiskView:
    disk.lose_power()
    return DiskView(disk)


# as the real one


class DiskPair:
    """A real disk and a simulated disk, on which the same operations run."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.real = SystemDisk()
        self.simulated = DiskView(SimDisk(Environment(str(seed)), "m"))
        self.simulated.make_dirs(str(home))
        self.home = str(home)
        self.files: list[tuple[File, File]] = []

    def both(self, operate: Callable[[Disk], object]) -> None:
        assert outcome(operate, self.real) == outcome(operate, self.simulated)

    def path(self) -> str:
        depth = self.rng.choice((1, 1, 2, 3))
        return "/".join([self.home, *(self.rng.choice("abc") for _ in range(depth))])

    def step(self) -> None:
        getattr(self, f"_{self.rng.choice(STEPS)}")(self.path())

    def _open(self, path: str) -> None:
        create = self.rng.random() < 0.7
        if self.real.is_dir(path):
            return
        try:
            real = self.real.open(path, create=create)
        except StorageError:
            self.both(lambda disk: disk.open(path, create=create))
        else:
            self.files.append((real, self.simulated.open(path, create=create)))

    def _use(self, path: str) -> None:
        if not self.files:
            return
        real, simulated = self.rng.choice(self.files)
        data = self.rng.randbytes(self.rng.randrange(2000))
        place, length = self.rng.randrange(3000), self.rng.randrange(3000)
        operate: Callable[[File], object] = self.rng.choice(
            (
                lambda file: file.append(data),
                lambda file: file.append(memoryview(data)),
                lambda file: file.truncate(place),
                lambda file: file.pread(place, length),
                lambda file: file.sync(),
            )
        )
        assert outcome(operate, real) == outcome(operate, simulated)
        assert real.size() == simulated.size()

    def _write(self, path: str) -> None:
        data = self.rng.randbytes(self.rng.randrange(100))
        self.both(lambda disk: disk.write(path, data))

    def _replace(self, path: str) -> None:
        data = self.rng.randbytes(self.rng.randrange(100))
        self.both(lambda disk: disk.replace(path, data))

    def _rename(self, path: str) -> None:
        target = self.path()
        self.both(lambda disk: disk.rename(path, target))

    def _names(self, path: str) -> None:
        steps: tuple[Callable[[Disk], object], ...] = (
            lambda disk: disk.unlink(path),
            lambda disk: disk.make_dirs(path),
            lambda disk: disk.make_dirs(path),
            lambda disk: disk.sync_dir(path),
            lambda disk: disk.list_dir(path),
            lambda disk: disk.read(path),
        )
        self.both(self.rng.choice(steps))

    def _remove_tree(self, path: str) -> None:
        self.both(lambda disk: disk.remove_tree(path))

    def compare(self) -> None:
        assert tree(self.real, self.home) == tree(self.simulated, self.home)


STEPS = ("open", "use", "use", "use", "write", "replace", "rename", "names", "names", "remove_tree")


def outcome(operate: Callable[..., object], subject: object) -> object:
    try:
        return operate(subject)
    except (StorageError, FileNotFoundError) as error:
        return type(error), str(error)


def tree(disk: Disk, path: str) -> object:
    """Return the content of a file, or name -> content of everything in a directory, at any
    depth.
    """
    if disk.is_dir(path):
        return {name: tree(disk, f"{path}/{name}") for name in disk.list_dir(path)}
    assert disk.size(path) == len(disk.read(path))
    return disk.read(path)


@pytest.mark.parametrize("seed", range(30))
def test_random_operations_do_the_same_on_both_disks(tmp_path: Path, seed: int) -> None:
    pair = DiskPair(tmp_path, seed)
    for _ in range(80):
        pair.step()
        pair.compare()


# power


def test_a_power_loss_has_every_possible_outcome() -> None:
    """The possible outcomes are: nothing lost, all lost, a prefix up to a sector, a hole, a length
    without content, a missing name.
    """
    seen: dict[str, int] = {}
    for seed in range(400):
        disk, view = new_disk(seed)
        written(view, "/data/a", b"z" * 1600)
        survivor = after_power_loss(disk)
        if not survivor.exists("/data/a"):
            kind = "no name"
        else:
            data = survivor.read("/data/a")
            assert not data.strip(b"z\0")
            kind = {0: "nothing", 1600: "whole"}.get(len(data.rstrip(b"\0")), "a part")
            if b"\0" in data:
                kind = "zeros at the end" if data.endswith(b"\0") else "a hole"
            elif kind == "a part":
                assert len(data) % 512 == 0
        seen[kind] = seen.get(kind, 0) + 1
    assert seen.keys() == {"no name", "nothing", "whole", "a part", "a hole", "zeros at the end"}


def test_an_unsynced_rename_is_atomic_across_a_power_loss() -> None:
    seen = set()
    for seed in range(60):
        disk, view = new_disk(seed)
        view.make_dirs("/data/p")
        view.replace("/data/p/a", b"content")
        view.sync_dir("/data")
        view.rename("/data/p", "/data/q")
        view.rename("/data/q", "/data/r")
        survivor = after_power_loss(disk)
        (name,) = survivor.list_dir("/data")
        assert survivor.read(f"/data/{name}/a") == b"content"
        seen.add(name)
    assert seen == {"p", "q", "r"}


# faults


def test_a_failed_sync_loses_data_and_the_next_sync_succeeds() -> None:
    disk, view = new_disk()
    file = written(view, "/data/a", b"one")
    view.sync_dir("/data")
    file.sync()
    file.append(b"two")
    disk.fail("sync", "/data/a")
    with pytest.raises(StorageError, match="sync /data/a: Input/output error"):
        file.sync()
    file.append(b"three")
    file.sync()
    assert view.read("/data/a") == b"onetwothree"
    assert after_power_loss(disk).read("/data/a") == b"one\0\0\0three"


@pytest.mark.parametrize("operation", ["append", "read", "truncate", "rename", "sync directory"])
def test_a_disk_fails_the_requested_number_of_operations(operation: str) -> None:
    disk, view = new_disk()
    file = written(view, "/data/a", b"one")
    operate: dict[str, Callable[[], object]] = {
        "append": lambda: file.append(b"x"),
        "read": lambda: file.pread(0, 1),
        "truncate": lambda: file.truncate(1),
        "rename": lambda: view.rename("/data/a", "/data/b"),
        "sync directory": lambda: view.sync_dir("/data"),
    }
    disk.fail(operation, "/data", times=2)
    for _ in range(2):
        with pytest.raises(StorageError, match="Input/output error"):
            operate[operation]()
    operate[operation]()


def test_the_requested_bit_is_flipped() -> None:
    disk, view = new_disk()
    view.replace("/data/0.log", bytes(100))
    view.replace("/data/0.index", bytes(100))
    found = disk.flip_random(".log")
    assert found is not None
    path, bit = found
    expected = bytearray(100)
    expected[bit // 8] = 1 << bit % 8
    assert path == "/data/0.log"
    assert view.read(path) == expected
    assert view.read("/data/0.index") == bytes(100)
    assert after_power_loss(disk).read(path) == expected
    assert disk.flip_random(".timeindex") is None
