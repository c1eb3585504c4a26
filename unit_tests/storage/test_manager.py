"""Tests of the log manager: start, use and shutdown of a log directory."""

from __future__ import annotations

import random
import threading
import uuid
from pathlib import Path

import pytest

from pybroker.clock import ManualClock
from pybroker.errors import BrokerError, ErrorCode, StartupError, StorageError
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.ports import Disk
from pybroker.records.batch import read_header
from pybroker.storage.files import SystemDisk
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager
from unit_tests.patience import PATIENCE_S
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import refused
from unit_tests.storage.faulty_disk import FaultyDisk

A, B, C = (TopicPartition("orders", number) for number in range(3))
TOPIC_ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


class Proc:
    def __init__(self, boot: str, process_id: int) -> None:
        self._boot = boot
        self._process_id = process_id

    def boot_id(self) -> str:
        return self._boot

    def pid(self) -> int:
        return self._process_id


class Host:
    """A machine with log directories, on which a test starts and stops brokers."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directories = [str(home / "data")]
        self.clock = ManualClock()
        self.boot = "boot-1"
        self.disk: Disk = SystemDisk()
        self.managers: list[LogManager] = []
        self.failed: list[str] = []
        self.process_id = 100

    @property
    def data(self) -> Path:
        return Path(self.directories[0])

    def manager(self) -> LogManager:
        self.process_id += 1
        manager = LogManager(
            directories=self.directories,
            disk=self.disk,
            clock=self.clock,
            proc=Proc(self.boot, self.process_id),
            defaults=SMALL,
            rng=random.Random(len(self.managers)),
            on_failure=lambda path, error: self.failed.append(path),
        )
        self.managers.append(manager)
        return manager

    def start(self, broker_id: int = 1, cluster: str = "cluster-A") -> LogManager:
        manager = self.manager()
        manager.start(broker_id, cluster)
        return manager

    def restart(self) -> LogManager:
        """Restart after a clean shutdown."""
        self.managers[-1].shutdown({})
        return self.start()

    def kill(self) -> LogManager:
        """Kill the process and start again."""
        self.managers[-1].unlock()
        return self.start()

    def lose_power(self) -> LogManager:
        """Boot the machine again after a power loss in which no bytes are lost."""
        self.boot += "x"
        return self.kill()

    def release(self) -> None:
        for manager in self.managers:
            manager.unlock()


def fill(log: Log, count: int = 1, value: bytes = b"value") -> None:
    for _ in range(count):
        data = batch(value=value)
        log.append(data, read_header(data), leader_epoch=0, now_ms=0)


def make(manager: LogManager, partition: TopicPartition = A, count: int = 3) -> Log:
    log = manager.create(partition, SMALL, TOPIC_ID)
    fill(log, count)
    return log


def existing(manager: LogManager, partition: TopicPartition = A) -> Log:
    log = manager.log(partition)
    assert log is not None
    return log


def test_listing_all_logs_does_not_wait_for_the_disk(host: Host) -> None:
    """A thread may hold the manager's lock while it syncs checkpoints."""
    manager = host.start()
    make(manager)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with manager._lock:
            held.set()
            done.wait(PATIENCE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE_S)
    asker = threading.Thread(target=manager.all, daemon=True)
    asker.start()
    asker.join(PATIENCE_S)
    answered = not asker.is_alive()
    done.set()
    holder.join()
    assert answered


# starting


def test_a_restart_finds_all_records(host: Host) -> None:
    make(host.start(), count=40)
    manager = host.restart()
    assert existing(manager).log_end_offset == 40
    assert existing(manager).topic_id == TOPIC_ID
    assert existing(host.kill()).log_end_offset == 40


def test_while_a_broker_runs_there_is_a_boot_file_and_no_clean_mark(host: Host) -> None:
    def marks() -> set[str]:
        names = {path.name for path in host.data.iterdir()}
        return names & {".kafka_cleanshutdown", "pybroker.boot"}

    manager = host.start()
    assert marks() == {"pybroker.boot"}
    assert "boot.id=boot-1\n" in (host.data / "pybroker.boot").read_text()
    manager.record_incarnation(7)
    assert "incarnation=7\n" in (host.data / "pybroker.boot").read_text()
    manager.shutdown({})
    assert marks() == {".kafka_cleanshutdown"}
    host.start()
    assert marks() == {"pybroker.boot"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("version=0\nbroker.id=2\ncluster.id=cluster-A\n", "belongs to broker 2, this is broker 1"),
        ("version=0\nbroker.id=1\ncluster.id=other\n", "belongs to cluster other"),
        ("version=1\nnode.id=1\ncluster.id=cluster-A\n", "version 1"),
        ("version=0\nbroker.id=one\n", "invalid literal"),
    ],
)
def test_the_directory_of_another_broker_is_refused_and_unchanged(
    host: Host, content: str, message: str
) -> None:
    host.data.mkdir()
    (host.data / "meta.properties").write_text(content)
    with pytest.raises(StartupError, match=message) as caught:
        host.start()
    assert "\n" not in str(caught.value)
    assert (host.data / "meta.properties").read_text() == content
    assert {path.name for path in host.data.iterdir()} == {"meta.properties"}


def test_a_locked_directory_is_refused_and_its_holder_named(host: Host) -> None:
    host.start()
    with pytest.raises(StartupError, match="in use by process 101"):
        host.start()


def test_a_log_directory_that_is_a_file_is_refused(host: Host) -> None:
    host.data.write_text("")
    with pytest.raises(StartupError, match="is not a directory"):
        host.start()
    with pytest.raises(StartupError, match="is not a directory"):
        LogManager.peek(host.directories, host.disk)


def test_one_partition_in_two_directories_is_refused(host: Host) -> None:
    host.directories.append(str(host.home / "more"))
    for path in host.directories:
        (Path(path) / "orders-0").mkdir(parents=True)
    with pytest.raises(StartupError, match=r"orders-0 has two directories, .* and "):
        host.start()
    host.manager().lock()


def test_peek(host: Host) -> None:
    assert LogManager.peek(host.directories, host.disk) == (None, None)
    host.start(7, "cluster-B")
    host.directories.append(str(host.home / "new"))
    assert LogManager.peek(host.directories, host.disk) == (7, "cluster-B")


def test_files_of_apache_kafka_can_be_read(host: Host) -> None:
    make(host.start(), count=5)
    host.managers[-1].shutdown({})
    (host.data / "meta.properties").write_text(
        "#\n#Sat Mar 01 12:00:00 UTC 2025\ncluster.id=cluster-A\nversion=0\nbroker.id=1\n"
        "directory.id=aGVsbG8taGVsbG8taGVsbA\n"
    )
    (host.data / "replication-offset-checkpoint").write_text("0\n1\norders 0 4\n")
    (host.data / "cleaner-offset-checkpoint").write_text("0\n0\n")
    (host.data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":25}')
    metadata = "version: 0\ntopic_id: ASNFZ4mrze8BI0VniavN7w"
    assert (host.data / "orders-0" / "partition.metadata").read_text() == metadata
    manager = host.start()
    assert manager.high_watermark_checkpoint(A) == 4
    assert "directory.id" in (host.data / "meta.properties").read_text()


def test_checkpoints_are_written_as_apache_kafka_reads_them(host: Host) -> None:
    manager = host.start()
    make(manager, A, 12)
    make(manager, B)
    existing(manager, A).advance_log_start(2)
    manager.shutdown({A: 11, B: 3})
    read = {path.name: path.read_text() for path in host.data.glob("*checkpoint")}
    assert read == {
        "replication-offset-checkpoint": "0\n2\norders 0 11\norders 1 3\n",
        "recovery-point-offset-checkpoint": "0\n2\norders 0 12\norders 1 3\n",
        "log-start-offset-checkpoint": "0\n1\norders 0 2\n",
    }
    assert existing(host.start()).log_start_offset == 2


# the state after the last broker


def test_every_log_is_suspect_after_another_boot(host: Host) -> None:
    manager = host.start()
    make(manager, A)
    make(manager, B)
    existing(manager, B).flush()
    manager.write_checkpoints({})
    assert host.kill().suspects == set()
    # Records that were appended after the flush of B may be missing from the file.
    assert host.lose_power().suspects == {A, B}


@pytest.mark.parametrize("clean", [True, False])
def test_suspects_are_found_again_until_they_are_settled(host: Host, clean: bool) -> None:
    make(host.start(), A)
    assert host.lose_power().suspects == {A}
    manager = host.restart() if clean else host.kill()
    assert manager.suspects == {A}
    manager.record_incarnation(7)
    assert (host.restart() if clean else host.kill()).suspects == set()


def test_no_replica_is_suspect_after_a_clean_stop_and_another_boot(host: Host) -> None:
    make(host.start(), A)
    host.managers[-1].shutdown({})
    assert host.lose_power().suspects == set()


def test_a_log_end_below_the_high_watermark_is_damage_within_one_boot(host: Host) -> None:
    manager = host.start()
    make(manager, A)
    manager.write_checkpoints({A: 3})
    segment = next((host.data / "orders-0").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-5])
    manager = host.kill()
    assert list(manager.health.damage) == [A]
    manager.shutdown({})
    assert not (host.data / ".kafka_cleanshutdown").exists()


def test_lost_checkpoints_lose_no_record(host: Host) -> None:
    make(host.start(), count=40)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (host.data / name).write_text("0\n1\n")
    manager = host.kill()
    assert existing(manager).log_end_offset == 40
    assert existing(manager).recovery_point == 0
    assert manager.high_watermark_checkpoint(A) == 0


def test_no_clean_mark_after_a_failed_sync(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    make(manager)
    disk.faults.sync_fails = True
    manager.flush_idle(1_000_000)
    disk.faults.sync_fails = False
    assert host.failed == [str(host.data)]
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        fill(existing(manager))
    manager.shutdown({})
    assert not (host.data / ".kafka_cleanshutdown").exists()
    assert (host.data / "pybroker.failed").exists()


def test_no_clean_mark_after_a_shutdown_on_a_full_disk(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    make(host.start())
    disk.faults.room_bytes = 0
    host.managers[-1].shutdown({})
    assert not (host.data / ".kafka_cleanshutdown").exists()


# creating and deleting


def test_a_new_partition_is_created_in_the_directory_with_the_fewest(host: Host) -> None:
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    homes = [Path(make(manager, partition).directory).parent.name for partition in (A, B, C)]
    assert homes == ["data", "more", "data"]
    assert len(host.restart().all()) == 3


def test_a_failed_directory_gets_no_new_partitions(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    make(manager, A)
    disk.faults.sync_fails = True
    with pytest.raises(BrokerError):
        existing(manager).flush()
    disk.faults.sync_fails = False
    assert list(manager.failed_directories) == [str(host.data)]
    assert Path(make(manager, B).directory).parent.name == "more"
    assert Path(make(manager, C).directory).parent.name == "more"


def test_create_returns_an_existing_log(host: Host) -> None:
    manager = host.start()
    log = manager.create(A, SMALL, NO_TOPIC_ID)
    assert manager.all()[A].topic_id is None
    assert manager.create(A, LogConfig(), TOPIC_ID) is log
    assert log.topic_id == TOPIC_ID
    assert log.config == LogConfig()
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        manager.create(A, SMALL, uuid.UUID(int=5))


def test_a_deleted_partition_is_gone_at_once_and_its_files_later(host: Host) -> None:
    manager = host.start()
    log = make(manager)
    manager.write_checkpoints({A: 3})
    manager.delete(A)
    assert manager.log(A) is None
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        fill(log)
    left = [path for path in host.data.iterdir() if path.name.endswith("-delete")]
    assert len(left) == 1
    manager.remove_deleted(host.clock.wall_ms() + SMALL.file_delete_delay_ms - 1)
    assert left[0].exists()
    manager.remove_deleted(host.clock.wall_ms() + SMALL.file_delete_delay_ms)
    assert not left[0].exists()


def test_a_start_finishes_deletions(host: Host) -> None:
    make(host.start())
    host.managers[-1].delete(A)
    manager = host.kill()
    assert manager.all() == {}
    assert not [path for path in host.data.iterdir() if path.is_dir()]


def test_a_new_topic_of_the_same_name_inherits_nothing(host: Host) -> None:
    manager = host.start()
    make(manager)
    manager.write_checkpoints({A: 3})
    manager.delete(A)
    manager.create(A, SMALL, TOPIC_ID)
    manager = host.kill()
    assert manager.health.damage == {}
    assert manager.high_watermark_checkpoint(A) == 0


def test_a_log_of_a_deleted_topic_is_renamed_to_stray_with_its_bytes(host: Host) -> None:
    manager = host.start()
    make(manager)
    manager.set_aside(A)
    make(manager, count=1)
    manager = host.kill()
    assert existing(manager).log_end_offset == 1
    stray = next(path for path in host.data.iterdir() if path.name.endswith("-stray"))
    assert next(stray.glob("*.log")).stat().st_size == 3 * len(batch())


def test_unexpected_entries_are_kept(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    (host.data / "lost+found").mkdir(parents=True)
    (host.data / "notes").write_text("mine")
    host.start()
    assert (host.data / "notes").read_text() == "mine"
    assert (
        sum("unexpected file or directory is not used" in message for message in caplog.messages)
        == 2
    )


def test_a_start_logs_each_stray_directory(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    manager = host.start()
    make(manager)
    manager.set_aside(A)
    caplog.clear()
    host.kill()
    assert [message for message in caplog.messages if "stray directory found" in message]
    assert not [message for message in caplog.messages if "unexpected" in message]


# chores


def test_idle_logs_and_closed_segments_are_flushed(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=20)
    assert log.segment_count > 1
    assert manager.flush_idle(1_000) == 1
    assert 0 < log.recovery_point < 20
    assert manager.flush_idle(2_000) == 0
    assert manager.flush_idle(30_000) == 1
    assert log.recovery_point == 20
    assert "orders 0 20" in (host.data / "recovery-point-offset-checkpoint").read_text()


def test_a_log_is_flushed_by_flush_ms(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=1)
    log.set_config(LogConfig(flush_ms=500))
    assert manager.flush_idle(499) == 0
    assert manager.flush_idle(500) == 1


def test_truncation_lowers_the_checkpoints_first(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=5)
    log.flush()
    manager.write_checkpoints({A: 5})
    log.truncate_to(2)
    assert "orders 0 2\n" in (host.data / "recovery-point-offset-checkpoint").read_text()
    assert "orders 0 2\n" in (host.data / "replication-offset-checkpoint").read_text()
    manager = host.kill()
    assert manager.health.damage == {}


def test_retention_runs_for_all(host: Host) -> None:
    manager = host.start()
    for partition in (A, B):
        make(manager, partition, 40)
    far = host.clock.wall_ms() * 2
    assert manager.run_retention(far, lambda partition: 40 if partition == A else 0) > 0
    assert existing(manager, A).log_start_offset == 40
    assert existing(manager, B).log_start_offset == 0


def test_a_failed_start_leaves_no_lock(host: Host) -> None:
    class Broken(FaultyDisk):
        def list_dir(self, path: str) -> list[str]:
            raise StorageError(f"list {path}: Input/output error")

    host.data.mkdir()
    host.disk = Broken()
    with pytest.raises(StartupError, match="Input/output error"):
        host.start()
    host.disk = SystemDisk()
    host.start()
