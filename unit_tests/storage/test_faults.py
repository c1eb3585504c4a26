"""Tests of the behaviour of a log whose disk fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import Bench, storage_error
from unit_tests.storage.faulty_disk import Faults, FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def bench(tmp_path: Path, disk: FaultyDisk) -> Bench:
    return Bench(tmp_path, disk=disk)


@pytest.fixture
def faults(disk: FaultyDisk) -> Faults:
    return disk.faults


@pytest.mark.parametrize("room", [0, 1, 60, len(batch()) - 1])
def test_a_log_accepts_appends_again_once_a_full_disk_has_space(
    bench: Bench, faults: Faults, room: int
) -> None:
    bench.append(1, 1)
    faults.room_bytes = room
    with storage_error():
        bench.append(1)
    assert bench.offsets() == [0, 1]
    faults.room_bytes = None
    bench.append(1)
    bench.crash()
    assert bench.offsets() == [0, 1, 2]
    assert bench.failures == []


def test_a_refused_batch_does_not_change_the_producer_state(bench: Bench, faults: Faults) -> None:
    faults.room_bytes = 100
    with storage_error():
        bench.put(batch(5, producer=9, sequence=0))
    faults.room_bytes = None
    assert not bench.put(batch(5, producer=9, sequence=0)).duplicate


def test_a_partial_write_that_cannot_be_undone_ends_the_use_of_the_log(
    bench: Bench, faults: Faults
) -> None:
    bench.append(1, 1)
    faults.room_bytes, faults.short_writes = 30, True
    with storage_error():
        bench.append(1)
    faults.room_bytes, faults.short_writes = None, False
    with storage_error():
        bench.append(1)
    assert len(bench.failures) == 1
    bench.crash()
    assert bench.offsets() == [0, 1]
    assert bench.cut_bytes == 30


def test_a_log_is_unusable_after_a_failed_sync(bench: Bench, faults: Faults) -> None:
    bench.append(1)
    bench.log.flush()
    bench.append(1)
    faults.sync_fails = True
    with storage_error():
        bench.log.flush()
    faults.sync_fails = False
    with storage_error():
        bench.log.flush()
    with storage_error():
        bench.append(1)
    assert bench.log.recovery_point == 1
    assert len(bench.failures) == 1


def test_flush_messages_1_syncs_before_it_answers(bench: Bench, faults: Faults) -> None:
    bench.log.set_config(LogConfig(flush_messages=1))
    bench.append(1, 2)
    assert [Path(path).name for path in faults.syncs] == ["00000000000000000000.log"] * 2
    assert bench.log.recovery_point == 3


@pytest.mark.parametrize(("count", "due"), [(4, False), (5, True)])
def test_flush_messages(bench: Bench, count: int, due: bool) -> None:
    bench.append(count)
    bench.log.set_config(LogConfig(flush_messages=5))
    assert bench.log.needs_flush(0) is due


@pytest.mark.parametrize(("now_ms", "due"), [(1999, False), (2000, True)])
def test_flush_ms(bench: Bench, now_ms: int, due: bool) -> None:
    bench.append(1)
    bench.log.flush(now_ms=1000)
    bench.log.set_config(LogConfig(flush_ms=1000))
    assert not bench.log.needs_flush(now_ms)
    bench.append(1)
    assert bench.log.needs_flush(now_ms) is due


def test_a_flush_overtaken_by_a_truncation_does_not_raise_the_recovery_point(
    bench: Bench, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.append(*[1] * 5)
    sync_dir = disk.sync_dir

    def truncating(path: str) -> None:
        monkeypatch.undo()
        bench.log.truncate_to(2)
        sync_dir(path)

    monkeypatch.setattr(disk, "sync_dir", truncating)
    bench.log.flush()
    assert bench.log.recovery_point <= 2


def test_an_epoch_is_durable_before_its_first_append(bench: Bench) -> None:
    bench.log.begin_epoch(5, 0)
    bench.append(1, epoch=5)
    assert (bench.path / "leader-epoch-checkpoint").read_text() == "0\n1\n5 0\n"


def test_an_epoch_that_cannot_be_recorded_gets_no_record(bench: Bench, faults: Faults) -> None:
    bench.append(1, epoch=1)
    faults.room_bytes = 5
    with storage_error():
        bench.append(1, epoch=2)
    assert bench.offsets() == [0]
    faults.room_bytes = None
    bench.append(1, epoch=2)
    assert (bench.path / "leader-epoch-checkpoint").read_text() == "0\n2\n1 0\n2 1\n"
