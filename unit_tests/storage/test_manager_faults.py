"""Tests of the log manager with full disks, failed disks, missing directories and damaged logs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pybroker.errors import CorruptionError, ErrorCode
from pybroker.storage.files import SystemDisk
from pybroker.storage.log import Log
from unit_tests.storage.bench import refused
from unit_tests.storage.faulty_disk import FaultyDisk
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, B, C, Host, existing, fill, make


def test_a_damaged_log_stays_damaged_after_another_start(host: Host) -> None:
    manager = host.start()
    make(manager, A, 40)
    path = (
        Path(existing(manager).directory)
        / sorted(p.name for p in Path(existing(manager).directory).glob("*.log"))[-1]
    )
    host.restart().write_checkpoints({A: 40})
    os.truncate(path, path.stat().st_size - 5)
    for _ in range(2):
        manager = host.kill()
        assert existing(manager).damage is not None
        manager.write_checkpoints({A: 0})
    for _ in range(2):
        manager = host.restart()
        damage = existing(manager).damage
        assert damage is not None and damage.offset == 39


def test_records_before_damage_at_an_index_entry_can_be_read(host: Host) -> None:
    manager = host.start()
    log = make(manager, A, 7)
    entry = log.segments.active.offsets.last()
    assert entry is not None
    path = log.segments.active.path
    host.restart()
    os.truncate(path, entry.position + 70)
    damaged = existing(host.kill())
    assert damaged.damage is not None and damaged.damage.offset == entry.last_offset
    assert damaged.log_end_offset == entry.last_offset


def test_a_full_disk_does_not_take_its_directory_offline(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    make(manager, A, 5)
    disk.faults.room_bytes = 0
    for _ in range(3):
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            fill(existing(manager))
        manager.write_checkpoints({A: 5})
        manager.flush_idle(1_000_000)
    assert host.failed == []
    assert len([r for r in caplog.records if "write refused" in r.message]) == 1
    disk.faults.room_bytes = None
    fill(existing(manager))
    manager.write_checkpoints({A: 6})
    assert host.kill().high_watermark_checkpoint(A) == 6


def test_a_broker_can_register_again_while_the_disk_is_full(host: Host) -> None:
    """With each new session the broker gets a new incarnation, and has to record it even if the
    disk is full."""
    disk = host.disk = FaultyDisk()
    manager = host.start()
    make(manager, A, 5)
    manager.record_incarnation(7)
    disk.faults.room_bytes = 0
    manager.record_incarnation(8)
    assert host.failed == []
    disk.faults.room_bytes = None
    manager = host.kill()
    assert manager.suspects == set()
    manager.write_checkpoints({A: 5})
    assert not manager.checkpoints.is_due
    disk.faults.room_bytes = 0
    manager.record_incarnation(9)
    disk.faults.room_bytes = None
    assert manager.checkpoints.is_due
    manager.write_checkpoints({A: 5})
    assert not manager.checkpoints.is_due
    assert "incarnation=9\n" in (host.data / "pybroker.boot").read_text()


def test_settled_suspects_are_recorded_once_a_full_disk_has_space(host: Host) -> None:
    """Before that, the next start would find the same suspect replicas as this start."""
    disk = host.disk = FaultyDisk()
    make(host.start(), A, 5)
    host.boot = "boot-2"
    for is_full in (True, True, False):
        manager = host.kill()
        assert manager.suspects == {A}
        disk.faults.room_bytes = 0 if is_full else None
        manager.record_incarnation(7)
        assert host.failed == []
        disk.faults.room_bytes = None
    manager = host.kill()
    assert manager.suspects == set()


def test_deletion_frees_space_on_a_full_disk(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    make(manager)
    manager.write_checkpoints({A: 3})
    disk.faults.room_bytes = 0
    manager.delete(A)
    manager.remove_deleted(host.clock.wall_ms() + SMALL.file_delete_delay_ms)
    assert [path.name for path in host.data.iterdir() if A.topic in path.name] == []
    disk.faults.room_bytes = None
    make(manager, B)
    manager.write_checkpoints({})
    content = (host.data / "replication-offset-checkpoint").read_text()
    assert f"{A.topic} {A.partition} " not in content


def lose(host: Host) -> str:
    """Two partitions with records; the directory of the first is moved away while no broker
    runs."""
    manager = host.start()
    gone = make(manager, A).directory
    make(manager, B)
    manager.write_checkpoints({A: 3, B: 3})
    shutil.move(gone, f"{gone}.elsewhere")
    return gone


def test_a_partition_whose_directory_is_missing_is_logged(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    lose(host)
    host.kill()
    said = [record.message for record in caplog.records if "directory missing" in record.message]
    assert len(said) == 1 and f"partition={A} " in said[0]


def test_no_empty_log_replaces_a_missing_one(host: Host) -> None:
    gone = lose(host)
    for start_again in (host.kill, host.restart, host.kill):
        manager = start_again()
        manager.write_checkpoints({B: 3})
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            manager.create(A, SMALL, TOPIC_ID)
        assert not Path(gone).exists()
        manager.create(C, SMALL, TOPIC_ID)
    shutil.move(f"{gone}.elsewhere", gone)
    manager = host.restart()
    assert existing(manager).log_end_offset == 3
    assert manager.create(A, SMALL, TOPIC_ID).log_end_offset == 3


def test_a_missing_partition_can_be_deleted_and_recreated(host: Host) -> None:
    lose(host)
    manager = host.kill()
    manager.delete(A)
    assert manager.create(A, SMALL, TOPIC_ID).log_end_offset == 0
    manager.write_checkpoints({A: 0, B: 3})
    assert existing(host.kill()).log_end_offset == 0


def test_a_partition_does_not_count_as_missing_after_an_interrupted_deletion(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = host.start()
    make(manager, A)
    manager.write_checkpoints({A: 3})

    def killed(self: SystemDisk, old: str, new: str) -> None:
        Path(old).rename(new)
        if new.endswith("-delete"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SystemDisk, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            manager.delete(A)
    assert host.kill().create(A, SMALL, TOPIC_ID).log_end_offset == 0


def test_unsynced_segments_are_rewritten_after_a_failed_sync(host: Host) -> None:
    """Another sync of the file would write nothing, because the kernel has marked the pages as
    clean. The file may also be shorter than before."""
    disk = host.disk = FaultyDisk()
    manager = host.start()
    log = make(manager, A, 40)
    log.flush()
    make(manager, B)
    manager.write_checkpoints({A: 40, B: 3})
    fill(log, 3)
    durable, *_, unsure = sorted(Path(log.directory).glob("*.log"))
    before = durable.stat().st_ino, unsure.stat().st_ino
    disk.faults.sync_fails = True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.flush()
    disk.faults.sync_fails = False
    disk.faults.syncs.clear()
    for _ in range(2):
        manager = host.kill()
        assert manager.suspects == {A, B}
        assert existing(manager).log_end_offset == 43
    assert durable.stat().st_ino == before[0] and unsure.stat().st_ino != before[1]
    assert f"{unsure}.tmp" in disk.faults.syncs and str(durable) not in disk.faults.syncs
    manager.record_incarnation(1)
    assert host.kill().suspects == set()


def test_a_new_log_with_only_its_directory_left_is_opened_after_a_failed_sync(
    host: Host,
) -> None:
    """A power loss may remove the names of files that were never synced. The log then has no
    segment to rewrite, which prevented the start of the broker."""
    disk = host.disk = FaultyDisk()
    manager = host.start()
    log = make(manager, A, 3)
    disk.faults.sync_fails = True
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.flush()
    disk.faults.sync_fails = False
    for path in Path(log.directory).glob("0*"):
        path.unlink()
    manager = host.kill()
    assert manager.suspects == {A}
    assert existing(manager).log_end_offset == 0


def test_retention_runs_for_other_logs_if_one_is_corrupt(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = host.start()
    for partition in (A, B):
        make(manager, partition, 40)
    expire = Log.delete_expired

    def corrupt_in_a(log: Log, now_ms: int, high_watermark: int) -> int:
        if log.topic_partition == A:
            raise CorruptionError("a batch has a wrong checksum")
        return expire(log, now_ms, high_watermark)

    monkeypatch.setattr(Log, "delete_expired", corrupt_in_a)
    assert manager.run_retention(host.clock.wall_ms() * 2, lambda partition: 40) > 0
    assert existing(manager, B).log_start_offset == 40
