"""Tests of moves of a partition between log directories: no event during a move loses a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.records.batch import read_header
from pybroker.storage.filename import can_have_future
from pybroker.storage.log import Log
from pybroker.storage.manager import LogManager
from pybroker.storage.moves import MoveCancelled, ReplicaMove
from pybroker.storage.relocation import Relocations
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import refused
from unit_tests.storage.faulty_disk import FaultyDisk
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, B, Host, existing, fill, make


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.directories = [str(tmp_path / name) for name in ("data", "more")]
    yield host
    host.release()


def target(host: Host) -> str:
    return host.directories[1]


def begin(host: Host, manager: LogManager) -> ReplicaMove:
    move = manager.moves.begin(A, target(host))
    assert move is not None
    return move


def copy_all(move: ReplicaMove) -> None:
    while not move.copy():
        pass


def swap(manager: LogManager, move: ReplicaMove) -> None:
    for _ in range(100):
        if manager.moves.swap(move):
            return
        move.copy()
    raise AssertionError("the copy did not replace the log")


def finish(manager: LogManager, move: ReplicaMove) -> None:
    origin = manager.home(A)
    assert origin is not None
    swap(manager, move)
    manager.moves.finish(move, origin, existing(manager).log_end_offset)


def moved(host: Host, manager: LogManager) -> Log:
    """Return the log of partition A after a whole move."""
    move = begin(host, manager)
    copy_all(move)
    move.rename()
    finish(manager, move)
    return existing(manager)


def content(log: Log) -> bytes:
    data = bytearray()
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(
            offset, 10_000, upper_offset=2**62, at_least_one_batch=True, cached_only=False
        )
        assert piece
        data += piece
        position = 0
        while position < len(piece):
            header = read_header(piece, position)
            offset, position = header.next_offset, position + header.size
    return bytes(data)


def directories_of(host: Host, partition: TopicPartition = A) -> list[tuple[str, str]]:
    return sorted(
        (path.parent.name, path.name.split(".")[0] + path.name[-7:] * ("." in path.name))
        for path in host.home.glob(f"*/{partition}*")
    )


@pytest.mark.parametrize("start", [1, 4, 9, 10, 13, 20])
def test_a_log_whose_start_is_inside_a_batch_can_be_moved(host: Host, start: int) -> None:
    """After DeleteRecords the log start may be inside a batch. The copy contains the whole batch,
    and has the same log start."""
    manager = host.start()
    log = make(manager, count=0)
    for _ in range(2):
        data = batch(10)
        log.append(data, read_header(data), leader_epoch=0, now_ms=0)
    log.advance_log_start(start)
    before = content(log)
    after = moved(host, manager)
    assert (after.log_start_offset, after.log_end_offset) == (start, 20)
    assert content(after) == before


@pytest.mark.parametrize("start", [5, 15, 20])
def test_records_that_are_deleted_during_a_move_are_deleted_in_the_copy(
    host: Host, start: int
) -> None:
    manager = host.start()
    log = make(manager, count=0)
    data = batch(10)
    log.append(data, read_header(data), leader_epoch=0, now_ms=0)
    move = begin(host, manager)
    copy_all(move)
    data = batch(10)
    log.append(data, read_header(data), leader_epoch=0, now_ms=0)
    log.advance_log_start(start)
    copy_all(move)
    move.rename()
    finish(manager, move)
    after = existing(manager)
    assert (after.log_start_offset, after.log_end_offset) == (start, 20)


def test_the_copy_has_all_records_and_replaces_the_log(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=40)
    log.begin_epoch(5, 40)
    manager.write_checkpoints({A: 40})
    before = content(log)
    after = moved(host, manager)
    assert after is not log and after.directory == f"{target(host)}/orders-0"
    assert content(after) == before
    assert (after.latest_epoch, after.topic_id) == (5, TOPIC_ID)
    assert directories_of(host) == [("data", "orders-0-delete"), ("more", "orders-0")]
    points = [(Path(path) / "recovery-point-offset-checkpoint") for path in host.directories]
    assert [path.read_text() for path in points] == ["0\n0\n", "0\n1\norders 0 40\n"]
    assert manager.high_watermark_checkpoint(A) == 40
    assert not (host.home / "more" / "orders-0" / "pybroker.moved").exists()
    fill(after, 2)
    assert existing(host.kill()).log_end_offset == 42
    assert content(existing(host.restart()))[: len(before)] == before


def test_records_written_during_a_move_are_copied(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=10)
    move = begin(host, manager)
    fill(log, 30)
    copy_all(move)
    fill(log, 30)
    move.rename()
    fill(log, 3)
    expected = content(log)
    finish(manager, move)
    assert content(existing(manager)) == expected


def test_the_start_of_a_log_inside_a_batch_or_after_retention(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=40)
    log.advance_log_start(7)
    move = begin(host, manager)
    assert move.copied[1] == 7
    log.advance_log_start(30)
    copy_all(move)
    log.advance_log_start(33)
    move.rename()
    finish(manager, move)
    after = existing(manager)
    assert (after.log_start_offset, after.log_end_offset) == (33, 40)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        after.read(32, 1000, upper_offset=40, at_least_one_batch=True, cached_only=False)


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("keep", [0, 3, 20])
def test_a_truncation_of_the_source_truncates_the_copy(
    host: Host, keep: int, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, lower = host.start(), Relocations.lower
    log = make(manager, count=40)
    move = begin(host, manager)
    copy_all(move)
    with monkeypatch.context() as patch:
        if goes_on:  # the thread copies records again that are about to be truncated
            patch.setattr(Relocations, "lower", lambda *all: (lower(*all), move.copy()))
        log.truncate_to(keep)
    fill(log, 50, b"another")
    assert goes_on or not manager.moves.swap(move)
    copy_all(move)
    move.rename()
    expected = content(log)
    finish(manager, move)
    assert content(existing(manager)) == expected


def test_a_move_keeps_the_producer_state(host: Host) -> None:
    manager = host.start()
    log = manager.create(A, SMALL, TOPIC_ID)
    for sequence in range(8):
        data = batch(producer=9, sequence=sequence)
        log.append(data, read_header(data), leader_epoch=0, now_ms=0)
    after = moved(host, manager)
    for current in (after, existing(host.kill())):
        again = batch(producer=9, sequence=7)
        result = current.append(again, read_header(again), leader_epoch=0, now_ms=0)
        assert (result.duplicate, result.first_offset) == (True, 7)
        gap = batch(producer=9, sequence=99)
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            current.append(gap, read_header(gap), leader_epoch=0, now_ms=0)


# a killed process


def just_begun(manager: LogManager, move: ReplicaMove) -> None:
    del manager, move


def half_copied(manager: LogManager, move: ReplicaMove) -> None:
    move.copy()


def renamed(manager: LogManager, move: ReplicaMove) -> None:
    copy_all(move)
    move.rename()


def written_after_the_name(manager: LogManager, move: ReplicaMove) -> None:
    renamed(manager, move)
    fill(move.source, 5)


def swapped(manager: LogManager, move: ReplicaMove) -> None:
    renamed(manager, move)
    swap(manager, move)


def written_after_the_swap(manager: LogManager, move: ReplicaMove) -> None:
    swapped(manager, move)
    fill(existing(manager), 5)


def deleted_after_the_swap(manager: LogManager, move: ReplicaMove) -> None:
    swapped(manager, move)
    existing(manager).advance_log_start(20)
    manager.write_checkpoints({A: 40})


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize(
    "phase",
    [
        just_begun,
        half_copied,
        renamed,
        written_after_the_name,
        swapped,
        written_after_the_swap,
        deleted_after_the_swap,
    ],
)
def test_a_kill_in_any_phase_of_a_move_loses_no_record(
    host: Host, phase: Callable[[LogManager, ReplicaMove], None], power: bool
) -> None:
    manager = host.start()
    make(manager, count=40)
    phase(manager, begin(host, manager))
    log = existing(manager)
    expected, start = content(log), log.log_start_offset
    manager = host.lose_power() if power else host.kill()
    after = existing(manager)
    assert content(after)[-len(expected) :] == expected
    assert after.log_start_offset == start
    assert manager.health.damage == {}
    is_there = after.directory.startswith(target(host))
    assert manager.moves.unfinished == ({} if is_there else {A: target(host)})
    live = [name for _, name in directories_of(host) if not name.endswith("-delete")]
    assert live == ["orders-0"]
    if not is_there:
        assert content(moved(host, manager)) == expected
    assert content(existing(host.restart()))[-len(expected) :] == expected


@pytest.mark.parametrize("phase", [just_begun, half_copied, renamed])
def test_a_clean_stop_keeps_one_log_and_the_requested_directory(
    host: Host, phase: Callable[[LogManager, ReplicaMove], None]
) -> None:
    manager = host.start()
    make(manager, count=40)
    move = begin(host, manager)
    phase(manager, move)
    manager.shutdown({})
    assert directories_of(host) == [("data", "orders-0"), ("more", "orders-0-future")]
    with pytest.raises(MoveCancelled):
        move.copy()
    assert host.start().moves.unfinished == {A: target(host)}


def test_a_copy_whose_original_is_offline_is_kept(host: Host) -> None:
    manager = host.start()
    make(manager, count=40)
    begin(host, manager)
    host.managers[-1].unlock()
    host.data.rename(host.home / "kept")
    host.data.write_text("")
    manager = host.start()
    assert manager.log(A) is None
    assert directories_of(host) == [("kept", "orders-0"), ("more", "orders-0-future")]


# a killed process, and a disk that is missing at the next start


def unmount(host: Host, which: int) -> None:
    Path(host.directories[which]).rename(host.home / "kept")
    Path(host.directories[which]).write_text("")


def mount(host: Host, which: int) -> None:
    Path(host.directories[which]).unlink()
    (host.home / "kept").rename(host.directories[which])


@pytest.mark.parametrize("away", ["offline", "not in log.dirs"])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "phase", [renamed, written_after_the_name, swapped, written_after_the_swap]
)
def test_the_older_of_two_logs_is_not_served_while_the_newer_is_offline(
    host: Host, phase: Callable[[LogManager, ReplicaMove], None], which: int, away: str
) -> None:
    manager = host.start()
    make(manager, count=40)
    phase(manager, begin(host, manager))
    expected = content(existing(manager))
    host.managers[-1].unlock()
    directories = list(host.directories)
    unmount(host, which)
    if away != "offline":
        host.directories = [directories[1 - which]]
    for _ in range(2):
        manager = host.start()
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            manager.create(A, SMALL, TOPIC_ID, is_new=False)
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            fill(existing(manager))
        manager.shutdown({})
    host.directories = directories
    mount(host, which)
    assert content(existing(host.start())) == expected
    assert content(existing(host.kill())) == expected


def given_up(manager: LogManager, move: ReplicaMove) -> None:
    manager.moves.cancel(A)


def stopped(manager: LogManager, move: ReplicaMove) -> None:
    manager.shutdown({})


def target_failed(manager: LogManager, move: ReplicaMove) -> None:
    manager.moves.directory_failed(move.target, ())
    with pytest.raises(MoveCancelled):
        move.copy()
    move.stay()


@pytest.mark.parametrize("end", [given_up, stopped, target_failed])
def test_a_log_whose_move_ended_is_served_without_the_target_directory(
    host: Host, end: Callable[[LogManager, ReplicaMove], None]
) -> None:
    manager = host.start()
    make(manager, count=40)
    move = begin(host, manager)
    renamed(manager, move)
    end(manager, move)
    host.managers[-1].unlock()
    unmount(host, 1)
    fill(existing(host.start()))


def test_marks_of_a_move_without_a_second_log_are_removed(host: Host) -> None:
    manager = host.start()
    log = make(manager, count=3)
    for name in ("pybroker.moved", "pybroker.moving"):
        (Path(log.directory) / name).write_text(f"{target(host)}\n")
    after = existing(host.kill())
    assert after.failure is None
    assert list(Path(after.directory).glob("pybroker.*")) == []


def test_a_replica_can_be_moved_away_from_a_full_disk(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    make(manager, count=40)
    move = begin(host, manager)
    copy_all(move)
    disk.faults.full_path = f"{host.data}/"
    move.rename()
    disk.faults.full_path = None
    finish(manager, move)
    assert existing(manager).log_end_offset == 40


# cancelling


@pytest.mark.parametrize("phase", [just_begun, half_copied, renamed, swapped])
def test_deleting_the_topic_ends_the_move(
    host: Host, phase: Callable[[LogManager, ReplicaMove], None]
) -> None:
    manager = host.start()
    make(manager, count=40)
    move = begin(host, manager)
    phase(manager, move)
    manager.delete(A)
    if move.done:
        manager.moves.finish(move, host.directories[0], 40)
    else:
        with pytest.raises(MoveCancelled):
            move.copy()
    manager.remove_deleted(10**15)
    assert directories_of(host) == []
    assert manager.moves.current == {}
    assert host.kill().all() == {}


def test_a_failed_target_of_a_move_leaves_the_log_unchanged(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    log = make(manager, count=40)
    move = begin(host, manager)
    copy_all(move)
    disk.faults.sync_fails = True
    with pytest.raises(BrokerError, match="Input/output error"):
        move.rename()
    disk.faults.sync_fails = False
    assert host.failed == [target(host)]
    assert existing(manager) is log
    fill(log)


def test_a_full_target_disk_does_not_take_its_directory_offline(host: Host) -> None:
    disk = host.disk = FaultyDisk()
    manager = host.start()
    make(manager, count=40)
    disk.faults.room_bytes = 100
    move = begin(host, manager)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        move.copy()
    disk.faults.room_bytes = None
    copy_all(move)
    assert host.failed == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/nowhere", ErrorCode.LOG_DIR_NOT_FOUND),
        ("failed", ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
def test_a_move_that_is_not_possible_is_refused(host: Host, path: str, code: ErrorCode) -> None:
    manager = host.start()
    make(manager, A)
    make(manager, B).fail(StorageError("broken"))
    with refused(code):
        manager.moves.begin(A, target(host) if path == "failed" else path)
    with refused(code):
        manager.moves.request_directory(A, target(host) if path == "failed" else path)


def test_a_requested_directory_is_kept_for_a_partition_that_is_created_later(host: Host) -> None:
    manager = host.start()
    manager.moves.request_directory(A, f"{target(host)}/")
    assert make(manager, A).directory.startswith(target(host))
    assert manager.moves.begin(A, target(host)) is None


def test_a_name_may_be_too_long_to_be_moved() -> None:
    assert can_have_future(TopicPartition("x" * 213, 0))
    assert not can_have_future(TopicPartition("x" * 214, 0))
