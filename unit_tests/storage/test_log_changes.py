"""Tests that the periodic duties look only at logs that changed, and lose no change."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition
from pybroker.storage.directory import OffsetCheckpoint
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager
from pybroker.storage.moves import ReplicaMove
from unit_tests.patience import PATIENCE_S
from unit_tests.storage.batches import FIRST_TIMESTAMP
from unit_tests.storage.faulty_disk import FaultyDisk
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, B, Host, existing, fill, make
from unit_tests.storage.test_moves import begin, copy_all, swap

MANY = [TopicPartition("orders", number) for number in range(50)]
LATER_MS = 1_000_000


class Marks(Mapping[TopicPartition, int]):
    """High watermarks that record which of them were read."""

    def __init__(self, marks: dict[TopicPartition, int]) -> None:
        self.marks = marks
        self.read: list[TopicPartition] = []

    def __getitem__(self, key: TopicPartition) -> int:
        self.read.append(key)
        return self.marks[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        raise AssertionError("a checkpoint walks all high watermarks")

    def __len__(self) -> int:
        return len(self.marks)


def move(manager: LogManager, marks: Marks, key: TopicPartition, offset: int) -> None:
    """Change a high watermark as a partition does."""
    marks.marks[key] = offset
    existing(manager, key).changes.unsaved.add(key)


def checkpoint(host: Host, name: str) -> dict[str, int]:
    path = host.data / name
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}


def assert_all_is_saved(host: Host, manager: LogManager, marks: Marks) -> None:
    logs = {f"{key.topic} {key.partition}": log for key, log in manager.all().items()}
    assert checkpoint(host, "recovery-point-offset-checkpoint") == {
        name: log.recovery_point for name, log in logs.items()
    }
    assert checkpoint(host, "replication-offset-checkpoint") == {
        name: min(marks.marks.get(log.topic_partition, 0), log.log_end_offset)
        for name, log in logs.items()
    }
    assert checkpoint(host, "log-start-offset-checkpoint") == {
        name: log.log_start_offset
        for name, log in logs.items()
        if log.log_start_offset > log.first_base_offset
    }


def test_a_checkpoint_reads_only_what_changed(host: Host) -> None:
    manager = host.start()
    for key in MANY:
        make(manager, key, 1)
    marks = Marks(dict.fromkeys(MANY, 0))
    manager.write_checkpoints(marks)
    assert set(marks.read) == set(MANY)
    marks.read.clear()
    manager.write_checkpoints(marks)
    assert marks.read == []
    move(manager, marks, B, 1)
    manager.write_checkpoints(marks)
    assert marks.read == [B]
    manager.flush_idle(LATER_MS)
    existing(manager, A).advance_log_start(1)
    manager.write_checkpoints(marks)
    assert_all_is_saved(host, manager, marks)


def test_a_flush_check_looks_only_at_unflushed_logs(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = host.start()
    for key in MANY:
        make(manager, key, 1)
    assert manager.flush_idle(LATER_MS) == len(MANY)
    looked: list[TopicPartition] = []
    needs_flush = Log.needs_flush

    def noting(log: Log, now_ms: int) -> bool:
        looked.append(log.topic_partition)
        return needs_flush(log, now_ms)

    monkeypatch.setattr(Log, "needs_flush", noting)
    manager.flush_idle(LATER_MS)
    looked.clear()  # a flush is a change: it is looked at once more
    assert manager.flush_idle(LATER_MS) == 0
    assert looked == []
    fill(existing(manager, B))
    assert manager.flush_idle(0) == 0
    assert manager.flush_idle(LATER_MS) == 1
    assert set(looked) == {B}


def test_records_of_a_kill_are_flushed(host: Host) -> None:
    make(host.start(), A)
    manager = host.kill()
    assert manager.flush_idle(LATER_MS) == 1
    assert existing(manager).recovery_point == 3


def test_an_append_during_a_flush_is_flushed_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = host.start()
    log = make(manager)
    flush = Log.flush

    def flush_and_append(log: Log, *, closed_only: bool = False, now_ms: int | None = None) -> None:
        flush(log, closed_only=closed_only, now_ms=now_ms)
        fill(log)

    monkeypatch.setattr(Log, "flush", flush_and_append)
    assert manager.flush_idle(LATER_MS) == 1
    monkeypatch.undo()
    assert log.recovery_point == 3
    assert manager.flush_idle(LATER_MS) == 1
    assert log.recovery_point == 4


def test_a_change_during_a_checkpoint_is_written_later(host: Host) -> None:
    manager = host.start()
    make(manager, A, 5)

    class Moving(Marks):
        def __getitem__(self, key: TopicPartition) -> int:
            before = super().__getitem__(key)
            if before < 5:
                move(manager, self, key, before + 1)
            return before

    marks = Moving({A: 1})
    for written in (1, 2, 3, 4, 5, 5):
        manager.write_checkpoints(marks)
        assert checkpoint(host, "replication-offset-checkpoint") == {"orders 0": written}


def test_a_checkpoint_waits_for_the_one_under_way(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeleteRecords is answered when the log start is durable, no matter which thread wrote it."""
    manager = host.start()
    log = make(manager, A, 5)
    reached, proceed = threading.Event(), threading.Event()
    write = OffsetCheckpoint.write

    def slow(checkpoint: OffsetCheckpoint, offsets: Mapping[TopicPartition, int]) -> None:
        reached.set()
        assert proceed.wait(PATIENCE_S)
        write(checkpoint, offsets)

    monkeypatch.setattr(OffsetCheckpoint, "write", slow)
    log.advance_log_start(2)
    marks = Marks({A: 5})
    with ThreadPoolExecutor() as pool:
        first = pool.submit(manager.write_checkpoints, marks)
        assert reached.wait(PATIENCE_S)
        second = pool.submit(manager.write_checkpoints, marks)
        with pytest.raises(TimeoutError):
            second.result(0.05)
        proceed.set()
        second.result(PATIENCE_S)
        assert checkpoint(host, "log-start-offset-checkpoint") == {"orders 0": 2}
        first.result(PATIENCE_S)


def test_a_full_disk_loses_no_note(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    log = make(manager)
    marks = Marks({A: 0})
    manager.write_checkpoints(marks)
    move(manager, marks, A, 3)
    disk.faults.room_bytes = 0
    manager.write_checkpoints(marks)
    disk.faults.room_bytes = None
    manager.write_checkpoints(marks)
    assert checkpoint(host, "replication-offset-checkpoint") == {"orders 0": 3}
    assert log.recovery_point == 0
    assert manager.flush_idle(LATER_MS) == 1


def test_an_unexpected_error_loses_no_note(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = host.start()
    for key in (A, B):
        make(manager, key)

    def broken(log: Log, **options: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Log, "flush", broken)
    with pytest.raises(RuntimeError):
        manager.flush_idle(LATER_MS)
    monkeypatch.undo()
    assert manager.flush_idle(LATER_MS) == 2


def test_records_before_a_failed_segment_are_flushed(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower may write some of an answer's batches before it finds no room for the others."""
    manager = host.start()
    leader, log = manager.create(A, LogConfig(), TOPIC_ID), make(manager, B, 0)
    fill(leader, 40)
    data = leader.read(0, 10**6, upper_offset=40, at_least_one_batch=True, cached_only=False)
    assert data is not None
    manager.flush_idle(LATER_MS)
    manager.flush_idle(LATER_MS)

    def no_room(log: Log, base_offset: int, now_ms: int) -> None:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")

    monkeypatch.setattr(Log, "_start_segment", no_room)
    with pytest.raises(BrokerError):
        log.append_replicated(data, now_ms=0)
    assert 0 < log.log_end_offset < 40
    assert manager.flush_idle(LATER_MS) == 1
    assert log.recovery_point == log.log_end_offset


def test_a_checkpoint_in_the_middle_of_a_truncation_is_written_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = host.start()
    log = make(manager, A, 5)
    marks = Marks({A: 9})
    persist = Log.persist_epochs

    def persist_and_checkpoint(log: Log) -> None:
        persist(log)
        manager.write_checkpoints(marks)

    monkeypatch.setattr(Log, "persist_epochs", persist_and_checkpoint)
    log.truncate_fully_and_start_at(9)
    monkeypatch.undo()
    manager.write_checkpoints(marks)
    assert_all_is_saved(host, manager, marks)


def test_a_missing_partition_leaves_the_recovery_points(host: Host) -> None:
    manager = host.start()
    for key in (A, B):
        make(manager, key)
    marks = Marks({A: 3, B: 3})
    manager.shutdown(marks)
    (host.data / "orders-0").rename(host.home / "taken-away")
    host.start().write_checkpoints(marks)
    assert checkpoint(host, "recovery-point-offset-checkpoint") == {"orders 1": 3}
    assert checkpoint(host, "replication-offset-checkpoint") == {"orders 0": 3, "orders 1": 3}


def lose_all_notes(manager: LogManager) -> None:
    changes = existing(manager).changes
    for noted in (changes.unflushed, changes.unsaved, changes.doomed):
        noted.clear()


def test_retention_finds_what_was_never_noted(host: Host) -> None:
    manager = host.start()
    make(manager, A, 40)
    marks = Marks({A: 40})
    lose_all_notes(manager)
    assert manager.flush_idle(LATER_MS) == 0
    manager.run_retention(FIRST_TIMESTAMP, lambda key: 40)
    assert manager.flush_idle(LATER_MS) == 1
    manager.write_checkpoints(marks)
    assert_all_is_saved(host, manager, marks)


def test_the_shutdown_needs_no_notes(host: Host) -> None:
    manager = host.start()
    make(manager)
    lose_all_notes(manager)
    marks = Marks({A: 3})
    manager.shutdown(marks)
    assert_all_is_saved(host, manager, marks)


def test_a_deleted_partition_leaves_the_checkpoints(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    for key in (A, B):
        make(manager, key)
    marks = Marks({A: 3, B: 3})
    manager.write_checkpoints(marks)
    disk.faults.room_bytes = 0
    manager.delete(A)
    disk.faults.room_bytes = None
    manager.write_checkpoints(marks)
    assert_all_is_saved(host, manager, marks)


def test_a_copy_that_takes_the_place_is_noted_for_the_duties(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is noted after it has replaced the original log, because a duty that runs during the
    replacement still sees the original log."""
    host.directories.append(str(host.home / "more"))
    manager = host.start()
    make(manager)
    move = begin(host, manager)
    copy_all(move)
    changes = move.log.changes
    assert changes is move.source.changes
    monkeypatch.setattr(ReplicaMove, "catch_up", lambda move: True)
    for noted in (changes.unflushed, changes.unsaved, changes.doomed):
        noted.clear()
    swap(manager, move)
    assert changes.unflushed == changes.unsaved == changes.doomed == {A}


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_changes_is_noted(host: Host, seed: int) -> None:
    """At every moment each log that is not flushed, and each log with deleted files, is noted. A
    checkpoint writes the same values as a search through all logs would find."""
    rng = random.Random(seed)
    manager = host.start()
    marks = Marks({})
    keys = MANY[:4]
    for _ in range(80):
        key = rng.choice(keys)
        log = manager.log(key)
        if log is None:
            manager.create(key, SMALL, TOPIC_ID)
            marks.marks[key] = 0
            continue
        start, end = log.log_start_offset, log.log_end_offset
        match rng.randrange(12):
            case 0:
                move(manager, marks, key, rng.randint(start, end))
            case 1:
                log.truncate_to(rng.randint(start, end))
                move(manager, marks, key, min(marks.marks[key], log.log_end_offset))
            case 2:
                log.truncate_fully_and_start_at(rng.randint(0, end + 5))
                move(manager, marks, key, log.log_end_offset)
            case 3:
                log.advance_log_start(rng.randint(start, end))
            case 4:
                log.flush(closed_only=rng.random() < 0.5)
            case 5:
                log.roll()
            case 6:
                manager.run_retention(FIRST_TIMESTAMP * 2, marks.marks.__getitem__)
            case 7:
                manager.remove_deleted(host.clock.wall_ms() + rng.choice((0, 100_000)))
            case 8:
                manager.flush_idle(rng.choice((0, LATER_MS)))
            case 9 if rng.random() < 0.2:
                manager.delete(key)
            case _:
                fill(log, rng.randint(1, 8))
        for each in manager.all().values():
            changes = each.changes
            if each.recovery_point < each.log_end_offset:
                assert each.topic_partition in changes.unflushed
            if each.segments.has_doomed:
                assert each.topic_partition in changes.doomed
        if rng.random() < 0.3:
            manager.write_checkpoints(marks)
            assert_all_is_saved(host, manager, marks)
