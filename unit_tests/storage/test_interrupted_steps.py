"""Tests of interruptions between two steps that belong together: a kill, a power loss, another
thread."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.errors import CorruptionError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.records.batch import BatchHeader, read_header
from pybroker.storage import moves
from pybroker.storage.epochs import EpochHistory, EpochStart
from pybroker.storage.files import SystemDisk
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager
from pybroker.storage.moves import ReplicaMove
from pybroker.storage.segment import Segment
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_faults import ProcessKilled
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.patience import MOMENT_S
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import Bench, on_simulated_disk, refused
from unit_tests.storage.faulty_disk import FaultyDisk
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, B, Host, existing, fill, make
from unit_tests.storage.test_moves import begin, content, renamed, swapped

TINY = LogConfig(segment_bytes=400, index_interval_bytes=0, retention_ms=1000)


def restarted(log: Log) -> None:
    log.truncate_fully_and_start_at(0)


def cut(log: Log) -> None:
    log.truncate_to(5)


@pytest.mark.parametrize("change", [restarted, cut])
def test_a_checkpointed_log_start_does_not_outlive_a_truncation(
    host: Host, change: Callable[[Log], None]
) -> None:
    """The log end of an uncleanly elected leader may be below the log start of this replica. The
    next checkpoint may never be written, because the disk is full or the process is killed."""
    manager = host.start()
    log = make(manager, count=20)
    log.advance_log_start(15)
    manager.write_checkpoints({A: 20})
    change(log)
    start = log.log_start_offset
    fill(log, 20)
    assert existing(host.kill()).log_start_offset == start


def test_a_start_lowers_checkpoints_beyond_the_log_end(host: Host) -> None:
    """A power loss removed the end of the log, and the next start may come before a checkpoint."""
    manager = host.start()
    log = make(manager, count=5)
    log.flush()
    manager.write_checkpoints({A: 5})
    size = log.segments.active.size
    fill(log, 15)
    log.advance_log_start(15)
    log.persist_epochs()
    manager._directories.all[0].log_starts.write({A: 15})
    manager._directories.all[0].high_watermarks.write({A: 15})
    path = Path(log.segments.active.path)
    assert log.segment_count > 1
    for later in sorted(path.parent.glob("*.log"))[1:]:
        later.unlink()
    first = sorted(path.parent.glob("*.log"))[0]
    first.write_bytes(first.read_bytes()[:size])
    manager = host.lose_power()
    log = existing(manager)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    manager.record_incarnation(1)
    fill(log, 15)
    manager = host.kill()
    assert existing(manager).log_start_offset == 5
    assert manager.high_watermark_checkpoint(A) <= 5


@pytest.mark.parametrize("change", [restarted, cut])
def test_a_flush_during_a_truncation_raises_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Log], None]
) -> None:
    """A thread flushes the log while the truncation has renamed some of its files. The thread may
    have to wait for the end of the truncation."""
    bench = Bench(tmp_path, TINY)
    bench.append(*[1] * 30)
    assert bench.log.segment_count > 3
    real = bench.disk.rename
    tried: list[str] = []

    def rename(old: str, new: str) -> None:
        real(old, new)
        if not tried:
            tried.append(old)
            thread = threading.Thread(target=bench.log.flush)
            thread.start()
            thread.join(MOMENT_S)
            threads.append(thread)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(bench.disk, "rename", rename)
    change(bench.log)
    threads[0].join()
    assert (tried != [], bench.failures, bench.log.failure) == (True, [], None)


@pytest.mark.parametrize("change", [restarted, cut])
def test_a_sync_right_before_a_truncation_does_not_raise_the_recovery_point(
    tmp_path: Path, change: Callable[[Log], None]
) -> None:
    """A checkpoint between the two steps contained truncated records. After a kill the log seemed
    to be damaged."""
    bench = Bench(tmp_path, TINY)
    bench.append(*[1] * 30)
    told: list[tuple[int, int]] = []

    def lowering(partition: TopicPartition, offset: int) -> None:
        bench.log.flush()
        told.append((offset, bench.log.recovery_point))

    bench.owner = dataclasses.replace(bench.owner, lowering=lowering)
    bench.crash()
    change(bench.log)
    assert told and all(point <= offset for offset, point in told)
    bench.log.flush()
    assert bench.log.recovery_point == bench.log.log_end_offset


# names that are durable one by one


def lose_power(disk: SimDisk, bench: Bench, recovery_point: int) -> None:
    disk.lose_power()
    bench.disk = DiskView(disk)
    bench.open(recovery_point=recovery_point)


def test_a_power_loss_after_retention_deleted_all_segments_does_not_restart_at_offset_0() -> None:
    """The renames of the old segments were durable, but the name of the new segment was not."""
    for seed in range(60):
        disk, bench = on_simulated_disk(TINY, seed)
        assert bench.log.delete_expired(bench.now_ms + 10**6, 60) > 3
        assert bench.log.segment_count == 1
        lose_power(disk, bench, 60)
        assert (bench.log.damage, bench.log.log_end_offset) == (None, 60), seed


def test_a_power_loss_after_a_kill_after_retention_leaves_no_gap() -> None:
    """The start after the kill removed the deleted files before their renames were durable."""
    for seed in range(60):
        disk, bench = on_simulated_disk(TINY, seed)
        bench.log.advance_log_start(50)
        assert bench.log.delete_expired(bench.now_ms, 60) > 2
        disk.process_ended()
        bench.disk = DiskView(disk)
        bench.open(recovery_point=60, log_start=50, same_boot=True)
        lose_power(disk, bench, 0)
        assert (bench.log.damage, bench.log.log_end_offset) == (None, 60), seed


def test_a_power_loss_during_a_truncation_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last remaining segment was truncated before the renames of the later segments were
    durable."""

    def no_power(path: str) -> None:
        raise KeyboardInterrupt

    for seed in range(60):
        disk, bench = on_simulated_disk(TINY, seed)
        monkeypatch.setattr(bench.disk, "sync_dir", no_power)
        with pytest.raises(KeyboardInterrupt):
            bench.log.truncate_to(7)
        lose_power(disk, bench, 7)
        assert bench.log.damage is None, seed


# copies


def begins_anew(disk: SimDisk) -> LogManager:
    """Return a broker that has found the directory of A missing."""
    host = Host(Path("/"))
    host.disk = DiskView(disk)
    manager = host.start()
    gone = make(manager, A).directory
    make(manager, B)
    manager.write_checkpoints({A: 3, B: 3})
    host.disk.remove_tree(gone)
    return killed(disk)


def killed(disk: SimDisk) -> LogManager:
    disk.process_ended()
    host = Host(Path("/"))
    host.disk = DiskView(disk)
    return host.start()


def test_a_log_that_begins_anew_is_marked_incomplete_before_it_exists() -> None:
    """Without the mark the next start treats the empty log as complete, and could lead with it."""
    for step in itertools.count():
        disk = SimDisk(Environment("1"), "m")
        manager = begins_anew(disk)
        disk.kill_at(step, disk.process_ended)
        with contextlib.suppress(ProcessKilled):
            manager.create(A, SMALL, TOPIC_ID, is_new=False, is_copied=True)
            break
        manager = killed(disk)
        found = manager.log(A)
        if found is None or found.damage is None:
            with refused(ErrorCode.KAFKA_STORAGE_ERROR):
                manager.create(A, SMALL, TOPIC_ID, is_new=False)
    assert step > 5


def put(log: Log, count: int, epoch: int) -> None:
    for _ in range(count):
        data = batch()
        log.append(data, read_header(data), leader_epoch=epoch, now_ms=0)


def cut_before_the_swap(manager: LogManager, move: ReplicaMove) -> None:
    renamed(manager, move)
    move.source.truncate_to(20)
    put(move.source, 10, epoch=1)


def cut_after_the_swap(manager: LogManager, move: ReplicaMove) -> None:
    swapped(manager, move)
    existing(manager).truncate_to(20)
    put(existing(manager), 10, epoch=1)


@pytest.mark.parametrize("phase", [cut_before_the_swap, cut_after_the_swap])
def test_an_outdated_log_is_removed_even_if_it_is_longer(
    host: Host, phase: Callable[[LogManager, ReplicaMove], None]
) -> None:
    """The broker is killed while both directories hold the partition."""
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    make(manager, count=40)
    phase(manager, begin(host, manager))
    expected = content(existing(manager))
    after = existing(host.kill())
    assert (after.log_end_offset, after.latest_epoch) == (30, 1)
    assert content(after) == expected


@pytest.mark.parametrize(("phase", "broken"), [(renamed, 1), (swapped, 0)])
def test_a_failed_disk_does_not_end_the_log_on_the_other_disk_of_a_move(
    host: Host,
    phase: Callable[[LogManager, ReplicaMove], None],
    broken: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    make(manager, count=40)
    phase(manager, begin(host, manager))
    replace = host.disk.replace

    def fails(path: str, data: bytes) -> None:
        if path.startswith(f"{host.directories[broken]}/"):
            raise StorageError(f"write {path}: Input/output error")
        replace(path, data)

    monkeypatch.setattr(host.disk, "replace", fails)
    log = existing(manager)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        log.truncate_to(20)
    assert host.failed == [host.directories[broken]]
    assert (log.failure, log.log_end_offset) == (None, 40)
    fill(log)


def test_an_earlier_outdated_mark_does_not_affect_a_later_move(host: Host) -> None:
    """The outdated log was kept, because the other log was lost."""
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    log = make(manager, count=40)
    (Path(log.directory) / "pybroker.moving").write_text(f"{host.home / 'elsewhere'}\n")
    (Path(log.directory) / "pybroker.outdated").touch()
    manager = host.kill()
    renamed(manager, begin(host, manager))
    fill(existing(manager))
    end = existing(manager).log_end_offset
    assert existing(host.kill()).log_end_offset == end


def test_a_flipped_bit_in_the_checkpoint_of_log_starts_deletes_nothing(host: Host) -> None:
    """With a higher log start of the leader, all replicas would delete the records below it."""
    manager = host.start()
    log = make(manager, count=100)
    log.advance_log_start(44)
    manager.write_checkpoints({A: 100})
    path = host.data / "log-start-offset-checkpoint"
    written = path.read_bytes()
    assert existing(host.kill()).log_start_offset == 44
    for bit in range(8 * len(written)):
        corrupted = bytearray(written)
        corrupted[bit // 8] ^= 1 << bit % 8
        path.write_bytes(corrupted)
        assert existing(host.kill()).log_start_offset <= 44
        path.write_bytes(written)


# a reader in a thread


def test_a_reader_that_rebuilds_an_index_does_not_change_the_log_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of the active segment was damaged. Records that the leader appended during the
    rebuild counted for the size of the segment, but not for its offsets. The next batch then got an
    offset that was in use."""
    bench = Bench(tmp_path)
    bench.append(*[1] * 5)
    real = Segment.note

    def note(self: Segment, position: int, header: BatchHeader, interval: int) -> None:
        monkeypatch.undo()
        bench.append(3)
        real(self, position, header, interval)

    monkeypatch.setattr(Segment, "note", note)
    bench.log.segments.active.rebuild_indexes()
    bench.append(1)
    assert bench.offsets() == list(range(9))


def test_an_epoch_can_be_read_while_the_log_start_moves() -> None:
    """The scrubber reads epochs in its thread, and had stopped after an error."""

    class Offset(int):
        def __lt__(self, other: int) -> bool:
            history.truncate_start(35)
            return int(self) < other

    history = EpochHistory([EpochStart(number, 10 * number) for number in range(5)])
    assert history.epoch_of(Offset(39)) == 3
    assert len(history.entries) == 2


def test_settling_suspects_while_checkpoints_are_written_raises_no_error(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker registers again after the end of its session. Two threads that replaced the same
    file interfered with each other's rename."""
    manager = host.start()
    make(manager)
    threads: list[threading.Thread] = []
    real = SystemDisk.rename

    def rename(disk: SystemDisk, old: str, new: str) -> None:
        if not threads:
            threads.append(threading.Thread(target=manager.write_checkpoints, args=[{A: 3}]))
            threads[0].start()
            threads[0].join(MOMENT_S)
        real(disk, old, new)

    monkeypatch.setattr(SystemDisk, "rename", rename)
    manager.record_incarnation(2)
    threads[0].join()
    assert host.failed == []
    assert existing(host.kill()).log_end_offset == 3


def test_retention_frees_space_on_a_full_disk(tmp_path: Path) -> None:
    """All records of a log have expired. The new segment that replaces them needs no disk space."""
    disk = FaultyDisk()
    bench = Bench(tmp_path, LogConfig(retention_ms=1000, index_interval_bytes=0), disk)
    for sequence in range(5):
        bench.put(batch(producer=7, sequence=sequence))
    disk.faults.room_bytes = 0
    assert bench.log.delete_expired(bench.now_ms + 10**6, 5) == 1
    assert (bench.log.log_start_offset, bench.log.log_end_offset) == (5, 5)
    assert (bench.failures, bench.log.size_bytes) == ([], 0)
    disk.faults.room_bytes = None
    assert bench.put(batch(producer=7, sequence=4)).duplicate
    bench.reopen()
    assert bench.put(batch(producer=7, sequence=4)).duplicate


def test_a_reader_of_a_deleted_segment_creates_no_file(tmp_path: Path) -> None:
    """Retention renames the segment between two steps of the reader."""
    bench = Bench(tmp_path, TINY)
    bench.append(*[1] * 60)
    bench.reopen()
    first = bench.log.segments.first
    assert first.locate(3) is not None
    assert bench.log.delete_expired(bench.now_ms + 10**6, 60) > 3
    with pytest.raises((StorageError, CorruptionError)):
        first.read(2, 1000, 60, at_least_one_batch=True, cached_only=False)
    assert not Path(first.offsets.table.path).exists()


def test_a_copy_that_cannot_be_opened_under_its_final_name_is_removed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both directories the next start finds two logs, and no mark shows which one is older."""
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    make(manager, count=40)
    move = begin(host, manager)
    move.copy()

    def refuse(*args: object, **more: object) -> None:
        raise StorageError("too many open files")

    with monkeypatch.context() as patched, pytest.raises(StorageError):
        patched.setattr(moves, "open_log", refuse)
        move.rename()
    manager.moves.abandon(move)
    assert not (host.home / "more" / str(A)).exists()
