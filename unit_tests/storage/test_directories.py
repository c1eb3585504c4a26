"""Tests of several log directories: unusable ones, failing ones, and lost ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.errors import DiskFull, ErrorCode, StartupError, StorageError
from pybroker.storage.files import SystemDisk
from pybroker.storage.manager import LogManager
from unit_tests.storage.bench import refused
from unit_tests.storage.faulty_disk import FaultyDisk
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, B, C, Host, existing, fill, make


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A machine with three disks, on which three partitions are spread."""
    host = Host(tmp_path)
    host.directories = [str(tmp_path / name) for name in ("data", "more", "last")]
    yield host
    host.release()


def spread(host: Host) -> LogManager:
    manager = host.start()
    for partition in (A, B, C):
        make(manager, partition)
    manager.write_checkpoints({A: 3, B: 3, C: 3})
    return manager


def not_opened(manager: LogManager) -> None:
    """Check that B has no log, and gets no empty one, even if another broker leads."""
    assert manager.log(B) is None
    for is_copied in (False, True):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            manager.create(B, SMALL, TOPIC_ID, is_new=False, is_copied=is_copied)


def replace_by_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def garble(path: Path) -> None:
    (path / "meta.properties").write_text("version=0\nbroker.id=one\n")


def lock_out(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to(path / "itself")


@pytest.mark.parametrize("spoil", [replace_by_a_file, garble, lock_out])
def test_an_unusable_directory_is_offline_and_the_others_are_used(
    host: Host, spoil: object, caplog: pytest.LogCaptureFixture
) -> None:
    spread(host).shutdown({})
    assert callable(spoil)
    spoil(host.home / "more")
    manager = host.start()
    assert list(manager.failed_directories) == [host.directories[1]]
    assert manager.all().keys() == {A, C}
    assert sum("log directory offline" in message for message in caplog.messages) == 1
    not_opened(manager)
    fill(existing(manager, A))
    made = manager.create(B, SMALL, TOPIC_ID, is_new=True)
    assert not made.directory.startswith(host.directories[1])


def test_the_start_fails_without_a_usable_directory(host: Host) -> None:
    for path in host.directories:
        Path(path).write_text("")
    with pytest.raises(StartupError, match="is not a directory"):
        host.start()
    with pytest.raises(StartupError, match="is not a directory"):
        LogManager.peek(host.directories, SystemDisk())


def test_the_directory_of_another_broker_prevents_the_start(host: Host) -> None:
    spread(host).shutdown({})
    meta = host.home / "more" / "meta.properties"
    meta.write_text(meta.read_text().replace("broker.id=1", "broker.id=2"))
    with pytest.raises(StartupError, match="belongs to broker 2"):
        host.start()


def test_a_copy_of_a_log_directory_prevents_the_start(host: Host) -> None:
    spread(host).shutdown({})
    shutil.rmtree(host.home / "last")
    shutil.copytree(host.home / "data", host.home / "last", ignore=shutil.ignore_patterns("*-*"))
    with pytest.raises(StartupError, match="one is a copy of the other"):
        host.start()


def test_a_directory_listed_under_two_names_prevents_the_start(host: Host) -> None:
    spread(host).shutdown({})
    (host.home / "link").symlink_to(host.home / "more")
    host.directories = [*host.directories, str(host.home / "link")]
    with pytest.raises(StartupError, match="link is the same as another one in log"):
        host.start()


def test_a_directory_without_meta_properties_is_identified_by_its_path(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    spread(host).shutdown({})
    meta = host.home / "more" / "meta.properties"
    content = meta.read_text()
    meta.unlink()
    manager = host.start()
    assert not manager.failed_directories
    assert meta.read_text() == content
    assert any("taken back: it has partitions" in message for message in caplog.messages)


def test_each_directory_lists_all_directories(host: Host) -> None:
    spread(host)
    files = [Path(path) / "pybroker.directories" for path in host.directories]
    (content,) = {file.read_text() for file in files}
    known = {row["path"]: row["id"] for row in json.loads(content)["directories"]}
    assert list(known) and sorted(known) == sorted(host.directories)
    for path, directory_id in known.items():
        assert f"directory.id={directory_id}\n" in (Path(path) / "meta.properties").read_text()


# lost directories


def test_an_empty_directory_at_the_path_of_a_lost_one_stays_offline(host: Host) -> None:
    spread(host).shutdown({})
    shutil.rmtree(host.home / "more")
    for _ in range(2):
        manager = host.start()
        assert "mount the disk" in str(manager.failed_directories[host.directories[1]])
        not_opened(manager)
        manager.shutdown({})
    assert not (host.home / "more" / "meta.properties").exists()


def test_a_directory_that_is_usable_again_has_its_logs(host: Host) -> None:
    spread(host).shutdown({})
    (host.home / "more").rename(host.home / "kept")
    host.start().shutdown({})
    shutil.rmtree(host.home / "more")
    (host.home / "kept").rename(host.home / "more")
    manager = host.start()
    assert manager.failed_directories == {}
    assert existing(manager, B).log_end_offset == 3


def test_a_log_directory_may_have_another_path_at_the_next_start(host: Host) -> None:
    spread(host).shutdown({})
    (host.home / "more").rename(host.home / "elsewhere")
    host.directories[1] = str(host.home / "elsewhere")
    manager = host.start()
    assert existing(manager, B).log_end_offset == 3
    manager.shutdown({})
    assert host.start().create(B, SMALL, TOPIC_ID, is_new=False).log_end_offset == 3


def test_a_directory_removed_from_log_dirs_is_lost(host: Host) -> None:
    spread(host).shutdown({})
    del host.directories[1]
    not_opened(host.start())
    not_opened(host.restart())


@pytest.mark.parametrize("removed", [True, False])
def test_the_operator_accepts_a_loss_once(
    host: Host, removed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    spread(host).shutdown({})
    lost = host.directories[1]
    shutil.rmtree(lost)
    if removed:
        del host.directories[1]
    host.start().shutdown({})
    consent = host.home / "last" / "pybroker.accept-loss"
    consent.write_text(f"{lost}/\n")
    manager = host.start()
    assert any("loss of a log directory accepted" in message for message in caplog.messages)
    assert manager.failed_directories == {}
    assert manager.gave_up
    manager.record_incarnation(1)
    assert not consent.exists()
    assert manager.create(B, SMALL, TOPIC_ID, is_new=False).log_end_offset == 0
    manager.shutdown({})
    manager = host.start()
    assert len(manager.all()) == 3 and not manager.gave_up


def test_empty_directories_of_a_broker_with_partitions_are_lost(host: Host) -> None:
    manager = host.manager()
    manager.start(1, "cluster-A", expects_data=True)
    not_opened(manager)
    manager.create(A, SMALL, TOPIC_ID, is_new=True)
    not_opened(host.restart())
    host.managers[-1].shutdown({})
    consent = host.data / "pybroker.accept-loss"
    consent.write_text("\n".join(host.directories))
    assert host.start().create(B, SMALL, TOPIC_ID, is_new=False).log_end_offset == 0


def test_a_lost_only_directory_gets_copies_from_other_leaders(tmp_path: Path) -> None:
    host = Host(tmp_path)
    manager = host.manager()
    manager.start(1, "cluster-A", expects_data=True)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        manager.create(A, SMALL, TOPIC_ID, is_new=False)
    assert manager.create(A, SMALL, TOPIC_ID, is_new=False, is_copied=True).log_end_offset == 0
    host.restart().shutdown({})


# failing while in use


def test_a_failed_write_takes_its_directory_offline(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = spread(host)
    disk.faults.writes_fail = True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        fill(existing(manager, B))
    disk.faults.writes_fail = False
    assert host.failed == [host.directories[1]]
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        fill(existing(manager, B))
    fill(existing(manager, A))
    assert existing(host.kill(), B).log_end_offset == 3


def test_a_directory_failure_ends_the_use_of_its_logs(host: Host) -> None:
    manager = spread(host)
    told: list[tuple[str, str]] = []
    manager.listen(lambda path, error: told.append((path, str(error))))
    existing(manager, B).fail(StorageError("read-only"))
    assert told == [(host.directories[1], "read-only")]
    assert manager.partitions_in(host.directories[1]) == [B]
    assert manager.usable_directories == [host.directories[0], host.directories[2]]
    fill(existing(manager, A))
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        manager.create(B, SMALL, TOPIC_ID, is_new=False)
    manager.shutdown({})
    marks = [(Path(path) / ".kafka_cleanshutdown").exists() for path in host.directories]
    assert marks == [True, False, True]


def test_a_partition_is_created_in_the_directory_of_the_failed_attempt(host: Host) -> None:
    """With another directory the next start would find the partition in two directories."""
    disk = FaultyDisk()
    host.disk = disk
    manager = host.start()
    disk.faults.full_path = host.directories[0]
    with pytest.raises(DiskFull):
        make(manager, A)
    disk.faults.full_path = None
    make(manager, B)
    make(manager, A)
    assert manager.home(B) == manager.home(A) == host.directories[0]
    assert existing(host.kill(), A).log_end_offset == 3
