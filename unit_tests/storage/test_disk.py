"""Conformance tests for each `Disk`: the real one, the faulty one without faults, and the simulated
one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pybroker.errors import StorageError
from pybroker.ports import Disk
from pybroker.storage.files import SystemDisk
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.storage.faulty_disk import FaultyDisk


def simulated_disk(home: Path) -> Disk:
    disk = DiskView(SimDisk(Environment("1"), "m"))
    disk.make_dirs(str(home))
    return disk


MAKERS: Mapping[str, Callable[[Path], Disk]] = {
    "system": lambda home: SystemDisk(),
    "faulty": lambda home: FaultyDisk(),
    "simulated": simulated_disk,
}


@pytest.fixture(params=MAKERS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return MAKERS[request.param](tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "file")


def test_appended_bytes_are_read_back(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    file.append(b"hello ")
    file.append(memoryview(b"world"))
    assert file.size() == 11
    assert file.pread(4, 3) == b"o w"
    assert file.pread(9, 100) == b"ld"
    assert file.pread(11, 5) == b""
    file.sync()
    file.close()
    file.close()
    assert disk.read(path) == b"hello world"
    assert disk.open(path).size() == 11


def test_cached_reads_return_the_same_bytes_or_none(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    data = os.urandom(3 * 1024**2)
    file.append(data)
    for position, length in [(0, 10), (5, 2 * 1024**2), (len(data) - 4, 100), (len(data), 1)]:
        assert file.pread_cached(position, length) in (data[position : position + length], None)


def test_truncation(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    file.append(b"0123456789")
    file.truncate(4)
    file.append(b"ab")
    assert file.pread(0, 100) == b"0123ab"


def test_a_missing_file_raises_file_not_found(disk: Disk, path: str) -> None:
    with pytest.raises(StorageError, match="file"):
        disk.open(path)
    with pytest.raises(FileNotFoundError):
        disk.read(path)
    assert not disk.exists(path)
    disk.unlink(path)
    disk.remove_tree(path)


def test_replace_leaves_only_the_new_content(disk: Disk, path: str) -> None:
    disk.replace(path, b"one")
    disk.replace(path, b"two")
    assert disk.read(path) == b"two"
    assert disk.list_dir(str(Path(path).parent)) == ["file"]


def test_names(disk: Disk, tmp_path: Path) -> None:
    deep = f"{tmp_path}/a/b"
    disk.make_dirs(deep)
    disk.make_dirs(deep)
    disk.write(f"{deep}/z", b"zz")
    disk.write(f"{deep}/y", b"")
    disk.rename(f"{deep}/z", f"{deep}/x")
    disk.sync_dir(deep)
    assert disk.list_dir(deep) == ["x", "y"]
    assert disk.size(f"{deep}/x") == 2
    assert disk.modified_ms(f"{deep}/x") > 1_600_000_000_000
    assert disk.free_bytes(deep) > 0
    assert disk.is_dir(deep)
    assert not disk.is_dir(f"{deep}/x")
    assert disk.writable(deep)
    disk.remove_tree(f"{tmp_path}/a")
    assert disk.list_dir(str(tmp_path)) == []


def test_a_lock_has_one_holder(disk: Disk, path: str) -> None:
    release = disk.lock(path, "me")
    assert release is not None
    assert disk.lock(path, "you") is None
    assert disk.read(path) == b"me"
    release()
    release()
    again = disk.lock(path, "you")
    assert again is not None
    again()


def test_errors_name_path_and_operation(disk: Disk, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=f"list {tmp_path}/none: No such file"):
        disk.list_dir(f"{tmp_path}/none")


def test_open_files_survive_renames_and_deletions(disk: Disk, tmp_path: Path) -> None:
    disk.make_dirs(f"{tmp_path}/old")
    file = disk.open(f"{tmp_path}/old/a", create=True)
    file.append(b"one")
    disk.rename(f"{tmp_path}/old/a", f"{tmp_path}/old/b")
    disk.rename(f"{tmp_path}/old", f"{tmp_path}/new")
    file.append(b"two")
    assert disk.read(f"{tmp_path}/new/b") == b"onetwo"
    disk.unlink(f"{tmp_path}/new/b")
    file.append(b"three")
    file.sync()
    assert file.pread(0, 100) == b"onetwothree"
    assert disk.list_dir(f"{tmp_path}/new") == []


def test_a_closed_file_is_not_used(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    file.close()
    with pytest.raises(StorageError, match=f"the file {path} cannot be used: it is closed"):
        file.append(b"x")


def test_a_rename_replaces_an_existing_file(disk: Disk, path: str) -> None:
    disk.write(path, b"old")
    before = disk.open(path)
    assert before.pread(0, 9) == b"old"
    disk.write(f"{path}2", b"new")
    disk.rename(f"{path}2", path)
    assert disk.read(path) == b"new"
    assert before.pread(0, 9) == b"old"
    disk.rename(path, path)
    assert disk.read(path) == b"new"


def test_impossible_renames_are_errors(disk: Disk, tmp_path: Path) -> None:
    disk.make_dirs(f"{tmp_path}/full/inner")
    disk.make_dirs(f"{tmp_path}/empty")
    disk.write(f"{tmp_path}/file", b"")
    for old, new, why in (
        ("none", "other", "No such file"),
        ("file", "none/file", "No such file"),
        ("file", "full", "Is a directory"),
        ("full", "file", "Not a directory"),
        ("empty", "full", "Directory not empty"),
        ("full", "full/inner/deep", "Invalid argument"),
    ):
        with pytest.raises(StorageError, match=f"rename {tmp_path}/{old}: {why}"):
            disk.rename(f"{tmp_path}/{old}", f"{tmp_path}/{new}")
    disk.rename(f"{tmp_path}/full", f"{tmp_path}/empty")
    assert disk.list_dir(str(tmp_path)) == ["empty", "file"]


def test_directory_operations_on_a_file_fail(disk: Disk, path: str) -> None:
    disk.write(path, b"x")
    for operation in (disk.list_dir, disk.sync_dir, disk.remove_tree):
        with pytest.raises(StorageError, match=f"{path}: Not a directory"):
            operation(path)
    with pytest.raises(StorageError, match=f"make directory {path}: File exists"):
        disk.make_dirs(path)
    with pytest.raises(StorageError, match=f"make directory {path}/a: Not a directory"):
        disk.make_dirs(f"{path}/a")
    with pytest.raises(StorageError, match="Not a directory"):
        disk.unlink(f"{path}/a")
    assert not disk.exists(f"{path}/a")


def test_file_operations_on_a_directory_fail(disk: Disk, path: str) -> None:
    disk.make_dirs(path)
    for operation in (disk.read, disk.unlink):
        with pytest.raises(StorageError, match=f"{path}: Is a directory"):
            operation(path)
    with pytest.raises(StorageError, match=f"write {path}: Is a directory"):
        disk.write(path, b"x")
    with pytest.raises(StorageError, match=f"open {path}: Is a directory"):
        disk.open(path, create=True)
    with pytest.raises(StorageError, match=f"rename {path}.tmp: Is a directory"):
        disk.replace(path, b"x")


# the real disk only


def open_handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_handles_are_bounded_except_for_unsynced_files(tmp_path: Path) -> None:
    disk = SystemDisk(handles_max=4)
    before = open_handles()
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(20)]
    assert open_handles() == before
    for file in files:
        file.append(file.path.encode())
    assert open_handles() == before + 20
    for file in files:
        file.sync()
    for file in files:
        assert file.pread(0, 1000).decode() == file.path
    assert open_handles() <= before + 5
    for file in files:
        file.close()
    assert open_handles() == before


def test_a_file_opened_again_stays_open_while_all_others_are_unsynced(tmp_path: Path) -> None:
    disk = SystemDisk(handles_max=4)
    synced, *unsynced = (disk.open(f"{tmp_path}/{number}", create=True) for number in range(6))
    synced.append(b"synced")
    synced.sync()
    for file in unsynced:
        file.append(b"not synced")
    assert synced.pread(0, 1000) == b"synced"
    synced.sync()
    for file in (synced, *unsynced):
        file.close()


def test_a_partial_write_is_undone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SystemDisk().open(path, create=True)
    file.append(b"whole")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    with pytest.raises(StorageError, match="only 3 of 6 bytes were written: No space"):
        file.append(b"broken")
    monkeypatch.undo()
    assert (file.size(), Path(path).read_bytes()) == (5, b"whole")


def test_a_write_error_is_reported(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, at: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = SystemDisk().open(path, create=True)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="No space left on device"):
        file.append(b"x")


def test_cached_reads_return_none_on_a_file_system_without_nowait(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def unsupported(*args: object) -> int:
        calls.append(args)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    file = SystemDisk().open(path, create=True)
    file.append(b"x")
    monkeypatch.setattr("pybroker.storage.files._MOUNTS", tmp_path / "unknown")
    monkeypatch.setattr(os, "preadv", unsupported)
    assert file.pread_cached(0, 1) is None
    assert file.pread_cached(0, 1) is None
    assert len(calls) == 1


@pytest.mark.parametrize(("kind", "found"), [("tmpfs", b"x"), ("nfs4", None)])
def test_a_file_system_in_memory_is_read_without_nowait(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, found: bytes | None
) -> None:
    def unsupported(*args: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    disk = SystemDisk()
    file = disk.open(path, create=True)
    file.append(b"x")
    device = Path(path).stat().st_dev
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"21 1 999:999 / /other rw,relatime shared:1 - ext4 /dev/sda rw\n"
        f"22 1 {os.major(device)}:{os.minor(device)} / /here rw,nosuid - {kind} {kind} rw\n"
    )
    monkeypatch.setattr("pybroker.storage.files._MOUNTS", mounts)
    monkeypatch.setattr(os, "preadv", unsupported)
    assert file.pread_cached(0, 1) == found
    assert file.pread_cached(0, 1) == found


def test_a_file_system_without_nowait_does_not_slow_down_others(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*args: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    disk = SystemDisk()
    one, other = disk.open(path, create=True), disk.open(path + "2", create=True)
    one.append(b"x")
    other.append(b"y")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(os, "preadv", unsupported)
        one.pread_cached(0, 1)
    if hasattr(os, "RWF_NOWAIT"):
        assert other.pread_cached(0, 1) == b"y"


def test_a_cached_read_of_a_page_that_is_not_in_memory_returns_none(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    file = SystemDisk().open(path, create=True)
    file.append(b"x")
    monkeypatch.setattr(os, "preadv", missing)
    assert file.pread_cached(0, 1) is None
    monkeypatch.undo()
    assert file.pread_cached(0, 1) in (b"x", None)
