"""The simulated disk: the same as the real one until something goes wrong, then as bad as a real
one can be, and no worse. What any `Disk` does is shown in `storage/test_disk.py`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.errors import DiskFull, StorageError
from pybroker.ports import Disk, File
from pybroker.storage.files import SystemDisk
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_faults import ProcessKilled
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.world import World

SEEDS = range(40)


def new_disk(seed: object = 1) -> tuple[SimDisk, DiskView]:
    disk = SimDisk(World(str(seed)), "m")
    view = disk.of_process()
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
    return disk.of_process()


# as the real one


class Twins:
    """The same operations on the real disk and on the simulated one."""

    def __init__(self, home: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.real = SystemDisk()
        self.simulated = SimDisk(World(str(seed)), "m").of_process()
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
    """Names and contents, at any depth."""
    if disk.is_dir(path):
        return {name: tree(disk, f"{path}/{name}") for name in disk.list_dir(path)}
    assert disk.size(path) == len(disk.read(path))
    return disk.read(path)


@pytest.mark.parametrize("seed", range(30))
def test_random_operations_do_the_same_on_both_disks(tmp_path: Path, seed: int) -> None:
    twins = Twins(tmp_path, seed)
    for _ in range(80):
        twins.step()
        twins.compare()


# power


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_synced_outlives_a_power_loss(seed: int) -> None:
    disk, view = new_disk(seed)
    file = written(view, "/data/a", b"x" * 700, b"y" * 900)
    file.sync()
    view.sync_dir("/data")
    file.append(b"z" * 2000)
    found = after_power_loss(disk).read("/data/a")
    assert found[:1600] == b"x" * 700 + b"y" * 900
    rest = found[1600:]
    assert len(rest) <= 2000
    assert not rest.strip(b"z\0")


def test_a_power_loss_leaves_everything_that_it_may() -> None:
    """Nothing, all, a part up to a sector, a hole, a length without content; and no name."""
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


@pytest.mark.parametrize("seed", SEEDS)
def test_replacing_is_atomic_under_power_loss(seed: int) -> None:
    disk, view = new_disk(seed)
    view.replace("/data/a", b"old" * 999)
    assert view.read("/data/a") == b"old" * 999
    point = random.Random(seed).randrange(8)
    disk.kill_at(point, disk.lose_power, after_bytes=600)
    whole = True
    try:
        view.replace("/data/a", b"new" * 999)
        disk.lose_power()
    except ProcessKilled:
        whole = False
    found = disk.of_process().read("/data/a")
    assert found == b"new" * 999 or (found == b"old" * 999 and not whole)


def test_a_rename_that_was_not_synced_is_there_or_not_but_never_half() -> None:
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


@pytest.mark.parametrize("seed", SEEDS)
def test_no_file_has_two_names_or_none_after_moving_about(seed: int) -> None:
    disk, view = new_disk(seed)
    rng = random.Random(seed)
    view.make_dirs("/data/x")
    for name in "abcdef":
        view.replace(f"/data/{name}", name.encode())
    view.sync_dir("/data")
    places = [f"/data/{name}" for name in "abcdef"]
    for number in range(20):
        index = rng.randrange(len(places))
        fresh = f"/data/{rng.choice(('', 'x/'))}{number}"
        if rng.random() < 0.2:
            view.make_dirs("/data/y")
            fresh = f"/data/y/{number}"
        view.rename(places[index], fresh)
        places[index] = fresh
        if rng.random() < 0.1:
            view.sync_dir(fresh.rpartition("/")[0])
    after_power_loss(disk)
    assert sorted(bytes(node.data) for _, node in disk.files()) == [
        b"a",
        b"b",
        b"c",
        b"d",
        b"e",
        b"f",
    ]


def test_what_is_pending_becomes_durable_by_itself() -> None:
    disk, view = new_disk()
    written(view, "/data/a", b"z" * 1000)
    disk.world.run(31)
    assert after_power_loss(disk).read("/data/a") == b"z" * 1000


def test_killing_a_process_loses_nothing_and_it_does_nothing_more() -> None:
    world = World("1")
    machine = Machine(world, "m")
    disk = SimDisk.of_machine(machine)
    view = disk.of_process()
    file = written(view, "/a", b"one")
    release = view.lock("/lock", "me")
    assert release is not None
    machine.start(lambda loop: nothing(), None)
    world.run(1)
    machine.kill()
    for operate in (
        lambda: file.append(b"two"),
        file.sync,
        lambda: file.pread(0, 1),
        lambda: view.unlink("/a"),
        lambda: view.replace("/a", b"two"),
        lambda: view.exists("/a"),
    ):
        with pytest.raises(ProcessKilled):
            operate()
    following = disk.of_process()
    assert following.read("/a") == b"one"
    assert following.lock("/lock", "you") is not None


async def nothing() -> None:
    return


def test_a_process_dies_in_the_middle_of_a_write() -> None:
    disk, view = new_disk()
    file = written(view, "/data/a", b"one")
    killed: list[bool] = []
    disk.kill_at(
        lambda operation, path: operation == "append", lambda: killed.append(True), after_bytes=2
    )
    with pytest.raises(ProcessKilled):
        file.append(b"two")
    with pytest.raises(ProcessKilled):
        view.read("/data/a")
    assert killed == [True]
    assert disk.of_process().read("/data/a") == b"onetw"


# faults


def test_what_does_not_fit_is_refused_and_cut_back() -> None:
    disk, view = new_disk()
    file = written(view, "/data/a", b"x" * 100)
    disk.capacity = 150
    assert view.free_bytes("/data") == 50
    with pytest.raises(DiskFull, match="append to /data/a: only 50 of 60 bytes were written: No"):
        file.append(b"y" * 60)
    assert (file.size(), view.read("/data/a")) == (100, b"x" * 100)
    file.append(b"y" * 50)
    with pytest.raises(DiskFull, match="append to /data/a: No space left on device"):
        file.append(b"y")
    with pytest.raises(DiskFull, match=r"write /data/b.tmp: No space left on device"):
        view.replace("/data/b", b"z")
    assert view.list_dir("/data") == ["a"]
    view.unlink("/data/a")
    assert view.free_bytes("/data") == 150
    view.replace("/data/b", b"z" * 150)


def test_a_sync_that_fails_loses_the_data_and_the_next_one_does_not_say_so() -> None:
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
def test_broken_disks_refuse_as_often_as_they_are_told(operation: str) -> None:
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


def test_bits_flip_where_they_are_told_to() -> None:
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


def test_a_disk_tells_where_a_bit_is_wrong_still() -> None:
    disk, view = new_disk()
    names = ("cut", "deleted", "kept", "moved", "replaced", "turned")
    for name in names:
        view.replace(f"/data/{name}", bytes(10))
        disk.flip(f"/data/{name}", 8 * 9)
    assert disk.flipped() == [f"/data/{name}" for name in names]
    written_anew = view.open("/data/cut")
    written_anew.truncate(9)
    written_anew.append(bytes(1))
    view.unlink("/data/deleted")
    view.rename("/data/moved", "/data/there")
    view.replace("/data/replaced", bytes(10))
    disk.flip("/data/turned", 8 * 9)
    assert disk.flipped() == ["/data/kept", "/data/there"]


def test_reads_miss_the_cache_now_and_then() -> None:
    _, view = new_disk()
    file = written(view, "/data/a", b"x" * 100)
    answers = [file.pread_cached(10, 5) for _ in range(300)]
    assert set(answers) == {b"xxxxx", None}
    assert answers.count(None) < 100


def test_the_trace_tells_what_was_written() -> None:
    digests = set()
    for data in (b"one", b"two", b"one"):
        disk, view = new_disk()
        view.replace("/data/a", data)
        digests.add(disk.world.digest)
    assert len(digests) == 2
