"""Tests of the writes of the leader epoch file: an epoch is written just before its first batch,
not earlier."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from unit_tests.patience import MOMENT_S, PATIENCE_S
from unit_tests.storage.bench import Bench, storage_error
from unit_tests.storage.faulty_disk import FaultyDisk

FILE = "leader-epoch-checkpoint"
EPOCH_MAX = 9
"""A leader epoch that is larger than all epochs of the test."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, disk=FaultyDisk())


def history(bench: Bench) -> list[tuple[int, int]]:
    return [bench.log.epoch_end_offset(epoch) for epoch in range(-1, EPOCH_MAX + 1)]


def at_random(bench: Bench, seed: int) -> None:
    """Append, begin leader epochs, truncate and restart the log; then begin a leader epoch."""
    rng, epoch = random.Random(seed), 0
    for _ in range(rng.randrange(12)):
        match rng.randrange(6):
            case 0 | 1:
                bench.append(rng.randint(1, 3), epoch=epoch)
            case 2 if epoch < EPOCH_MAX - 1:
                epoch += 1
                bench.log.begin_epoch(epoch, bench.log.log_end_offset)
            case 3:
                bench.log.truncate_to(rng.randint(0, bench.log.log_end_offset))
            case 4:
                bench.log.persist_epochs()
            case _:
                bench.crash()
        epoch = max(epoch, bench.log.latest_epoch)
    bench.log.begin_epoch(epoch + 1, bench.log.log_end_offset)


@pytest.mark.parametrize("ends", ["killed", "closed", "torn"])
def test_a_restart_ignores_an_epoch_without_a_record(tmp_path: Path, ends: str) -> None:
    """No truncation after a restart depends on whether the file had the epoch. So the broker need
    not write it."""
    for seed in range(150):
        found = []
        for persists in (False, True):
            bench = Bench(tmp_path / f"{seed}-{persists}", LogConfig(segment_bytes=200))
            at_random(bench, seed)
            if persists:
                bench.log.persist_epochs()
            end = bench.log.log_end_offset
            if ends == "closed":
                bench.reopen()
            else:
                if ends == "torn" and bench.segment().stat().st_size:
                    bench.tear(1)
                bench.crash()
            assert bench.log.damage is None
            assert (bench.log.log_end_offset == end) is not bool(bench.cut_bytes)
            found.append((history(bench), bench.log.latest_epoch, bench.log.log_end_offset))
            bench.log.close()
            shutil.rmtree(tmp_path / f"{seed}-{persists}")
        assert found[0] == found[1], seed


def test_an_epoch_without_a_record_is_not_written_at_a_stop(bench: Bench) -> None:
    bench.append(1, epoch=1)
    bench.log.begin_epoch(2, 1)
    bench.log.truncate_to(1)
    bench.log.begin_epoch(3, 1)
    bench.reopen()
    assert (bench.path / FILE).read_text() == "0\n1\n1 0\n"
    assert bench.log.latest_epoch == 1


def test_an_epoch_that_removes_those_of_records_is_written_at_a_stop(bench: Bench) -> None:
    """Only a corrupt file has a larger epoch than the leader's. Without this write the file would
    keep that epoch."""
    bench.append(1, epoch=7)
    bench.log.begin_epoch(3, 1)
    bench.close()
    assert (bench.path / FILE).read_text() == "0\n1\n3 1\n"


def test_a_failed_disk_goes_offline_when_it_refuses_an_epoch(bench: Bench) -> None:
    bench.append(1, epoch=1)
    bench.log.begin_epoch(2, 1)
    assert isinstance(bench.disk, FaultyDisk)
    bench.disk.faults.sync_fails = True
    bench.log.epoch_file.comes_after(str(bench.segment()))
    with storage_error():
        bench.append(1, epoch=2)
    assert len(bench.failures) == 1
    assert bench.offsets() == [0]


def test_a_full_disk_stays_online_when_it_refuses_an_epoch(bench: Bench) -> None:
    bench.append(1, epoch=1)
    bench.log.begin_epoch(2, 1)
    assert isinstance(bench.disk, FaultyDisk)
    bench.disk.faults.room_bytes = 5
    with storage_error():
        bench.append(1, epoch=2)
    assert bench.failures == []
    bench.disk.faults.room_bytes = None
    bench.append(1, epoch=2)
    assert bench.offsets() == [0, 1]


def test_a_deleted_log_writes_no_leader_epoch(bench: Bench) -> None:
    """A thread may come to the file after the deletion. The log directory stays online, and a
    recreated topic in a directory of the same name keeps its own file."""
    bench.log.begin_epoch(2, 0)
    bench.log.release()
    bench.path.rename(bench.path.with_name("orders-0.1-delete"))
    bench.log.persist_epochs()
    assert bench.failures == []
    bench.path.mkdir()
    bench.log.persist_epochs()
    assert not list(bench.path.iterdir())


def test_the_deletion_of_a_log_waits_for_the_write_of_its_leader_epochs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, replace = threading.Event(), threading.Event(), bench.disk.replace

    def slow(path: str, data: bytes) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)
        replace(path, data)

    monkeypatch.setattr(bench.disk, "replace", slow)
    bench.log.begin_epoch(2, 0)
    writer = threading.Thread(target=bench.log.persist_epochs)
    writer.start()
    assert begun.wait(PATIENCE_S)
    deleter = threading.Thread(target=bench.log.release)
    deleter.start()
    deleter.join(MOMENT_S)
    assert deleter.is_alive()
    may_end.set()
    for thread in (writer, deleter):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert (bench.path / FILE).exists()
