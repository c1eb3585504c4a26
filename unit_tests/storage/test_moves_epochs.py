"""Tests of moves between log directories that a truncation or a full disk interrupts, and moves
of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.errors import DiskFull
from pybroker.records.batch import read_header
from pybroker.storage.log import Log
from pybroker.storage.moves import ReplicaMove
from unit_tests.storage.batches import batch, marker
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, Host, existing, make
from unit_tests.storage.test_moves import begin, content, copy_all, finish, moved, swap


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.directories = [str(tmp_path / name) for name in ("data", "more")]
    yield host
    host.release()


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_log_that_is_truncated_during_the_rename_of_its_copy_can_be_moved(
    host: Host, goes_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy then has batches that the log no longer has, and no damage is reported."""
    manager = host.start()
    log = make(manager, count=0)

    def append(epoch: int) -> None:
        data = batch(1)
        log.append(data, read_header(data), leader_epoch=epoch, now_ms=0)

    for epoch in (1, 1, 2):
        append(epoch)
    move = begin(host, manager)
    copy_all(move)
    copy_epochs = ReplicaMove._copy_epochs

    def cut_before(self: ReplicaMove, copy: Log) -> None:
        log.truncate_to(2)
        if goes_on:
            append(3)
        copy_epochs(self, copy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicaMove, "_copy_epochs", cut_before)
        move.rename()
    assert "damaged" not in caplog.text
    before, ends = content(log), [log.epoch_end_offset(epoch) for epoch in (1, 2, 3)]
    finish(manager, move)
    after = existing(manager)
    assert after is move.log
    assert content(after) == before
    assert [after.epoch_end_offset(epoch) for epoch in (1, 2, 3)] == ends


def test_a_copy_that_is_the_only_log_has_no_mark_of_a_move(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full at the swap. With the mark the log would not be served if the directory of
    the original is offline at the next start."""
    manager = host.start()
    make(manager, count=3)
    move = begin(host, manager)
    copy_all(move)
    move.rename()
    swap(manager, move)

    def full(self: ReplicaMove) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(ReplicaMove, "make_durable", full)
    with pytest.raises(DiskFull):
        manager.moves.finish(move, host.directories[0], 3)
    manager.unlock()
    del host.directories[0]
    assert existing(host.start()).failure is None


def test_move_keeps_the_transactions(host: Host) -> None:
    manager = host.start()
    log = manager.create(A, SMALL, TOPIC_ID)

    def put(log: Log, data: bytearray) -> None:
        log.append(data, read_header(data), leader_epoch=0, now_ms=0)

    for sequence in range(3):
        put(log, batch(producer=9, sequence=sequence, transactional=True))
        put(log, marker(9, commit=False))
    put(log, batch(producer=8, sequence=0, transactional=True))
    put(log, batch(producer=9, sequence=3, transactional=True))
    put(log, marker(9, commit=True))
    aborted = log.aborted_transactions(0, 9)
    assert len(aborted) == 3
    guard = log.producers.verification(7, 0, 0, 0)
    after = moved(host, manager)
    assert after.producers.verification(7, 0, 0, 0) is guard
    for current in (after, existing(host.kill())):
        assert current.aborted_transactions(0, 9) == aborted
        current.producers.decide(9)
        assert current.producers.first_unstable == 6
        assert list(current.producers.open_transactions.items()) == [(6, 8)]
