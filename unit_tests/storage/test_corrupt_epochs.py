"""Tests of corrupt leader epochs: no checksum covers the epoch of a batch, and the epoch file
has no checksum. The start decides which of the two is right if they differ."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.storage.files import SystemDisk
from pybroker.storage.log_config import LogConfig
from unit_tests.storage.bench import Bench, storage_error

EPOCH_END = 15
"""The position of the last byte of the epoch in a batch."""
HISTORY = ((1, 3), (2, 6), (5, 9))
"""Epochs and their end offsets."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    for epoch, end in HISTORY:
        while made.log.log_end_offset < end:
            made.append(1, epoch=epoch)
    made.log.flush()
    return made


def ends(bench: Bench) -> tuple[tuple[int, int], ...]:
    return tuple(bench.log.epoch_end_offset(epoch) for epoch, _ in HISTORY)


@pytest.mark.parametrize("mask", (1, 2, 4, 16))
@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("how", ("killed", "closed"))
def test_a_corrupt_epoch_of_one_batch_changes_no_history(
    bench: Bench, how: str, offset: int, mask: int
) -> None:
    """With a wrong history, followers that ask for the end of an epoch would truncate valid
    records."""
    bench.flip_bit(offset, at=EPOCH_END, mask=mask)
    if how == "closed":
        bench.close()
    bench.open(clean=how == "closed", recovery_point=0 if how == "killed" else 9)
    damage = bench.log.damage
    if damage is None:
        # Opening the log does not read this batch; the scrubber finds it (`scrub.py`).
        assert how == "closed"
        assert ends(bench) == HISTORY
        return
    assert damage.offset == offset
    assert damage.is_doubt or ends(bench) == HISTORY
    if damage.is_doubt:
        assert offset in (0, 2, 3, 5, 6, 8), "only at the ends of an epoch the file may be corrupt"
    with storage_error():
        bench.append(1, epoch=6)
    assert bench.offsets_before_the_damage() == list(range(offset))


@pytest.mark.parametrize(("offset", "mask"), ((3, 16), (4, 16), (5, 16), (4, 1), (7, 16)))
def test_without_the_file_a_batch_with_an_epoch_out_of_order_is_damage(
    bench: Bench, offset: int, mask: int
) -> None:
    bench.flip_bit(offset, at=EPOCH_END, mask=mask)
    (bench.path / "leader-epoch-checkpoint").unlink()
    bench.open()
    assert bench.log.damage is not None
    assert not bench.log.damage.is_doubt
    assert bench.log.damage.offset == offset


def test_the_first_of_two_batches_that_may_be_corrupt_is_the_damage(bench: Bench) -> None:
    """Each of the two batches may be out of order, and the epoch file is missing."""
    bench.flip_bit(7, at=EPOCH_END, mask=1)
    (bench.path / "leader-epoch-checkpoint").unlink()
    bench.open()
    assert bench.log.damage is not None
    assert bench.log.damage.offset == 6


@pytest.mark.parametrize("offset", (4, 8))
def test_an_accepted_loss_begins_with_the_corrupt_batch(bench: Bench, offset: int) -> None:
    """The log is cut at a header that may be corrupt, so that the remaining records are certain."""
    before = bench.segment().read_bytes()
    bench.flip_bit(offset, at=EPOCH_END, mask=16)
    corrupted = bench.segment().read_bytes()
    assert corrupted != before
    bench.open(accepts_loss=True)
    assert bench.log.damage is None
    assert bench.offsets() == list(range(offset))
    assert ends(bench)[:1] == HISTORY[:1]
    assert bench.log.epoch_end_offset(2) == (2, min(offset, 6))
    kept = b"".join((bench.path / name).read_bytes() for name in bench.kept_aside())
    assert corrupted.endswith(kept)
    assert len(kept) == bench.cut_bytes > 0
    bench.append(1, epoch=6)
    bench.crash()
    assert bench.log.damage is None
    assert bench.offsets() == list(range(offset + 1))


def test_an_accepted_loss_covers_two_corrupt_ranges(tmp_path: Path) -> None:
    """The first check of a log whose loss is accepted cuts it at the second corrupt range."""
    bench = Bench(tmp_path, LogConfig(segment_bytes=200))
    for _ in range(9):
        bench.append(1, epoch=1)
    bench.flip_bit(6)
    bench.flip_bit(2, at=EPOCH_END, mask=16)
    bench.open(accepts_loss=True)
    assert bench.log.damage is None
    assert bench.offsets() == [0, 1]
    assert bench.kept_aside()


def test_an_epoch_file_that_several_batches_contradict_is_rewritten(bench: Bench) -> None:
    (bench.path / "leader-epoch-checkpoint").write_text("0\n3\n1 0\n2 3\n7 6\n")
    bench.crash()
    assert bench.log.damage is None
    assert ends(bench) == HISTORY
    bench.append(1, epoch=6)
    text = (bench.path / "leader-epoch-checkpoint").read_text()
    assert text == "0\n4\n1 0\n2 3\n5 6\n6 9\n"


def test_epochs_of_batches_below_the_log_start_are_ignored(bench: Bench) -> None:
    bench.log.advance_log_start(4)
    bench.flip_bit(1, at=EPOCH_END, mask=16)
    bench.crash()
    assert bench.log.damage is None
    assert ends(bench)[1:] == HISTORY[1:]


@pytest.mark.parametrize(
    "flipped",
    ["2 0\n4 2\n6 5\n", "1 0\n5 2\n6 5\n", "1 0\n4 3\n6 5\n", "1 0\n4 2\n6 4\n", "1 0\n4 2\n7 5\n"],
)
def test_leader_epochs_that_the_batches_contradict_are_taken_from_them(
    tmp_path: Path, flipped: str
) -> None:
    bench = Bench(tmp_path)
    bench.append(2, epoch=1)
    bench.append(3, epoch=4)
    bench.append(1, epoch=6)
    bench.close()
    path = bench.path / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n3\n1 0\n4 2\n6 5\n"
    path.write_text(f"0\n3\n{flipped}")
    bench.open(clean=True, recovery_point=6)
    assert bench.log.epoch_end_offset(1) == (1, 2)
    assert bench.log.epoch_end_offset(4) == (4, 5)
    assert bench.log.latest_epoch == 6
    # The file may be corrupt if the batch is the only one of that epoch.
    is_certain = flipped in ("1 0\n4 3\n6 5\n", "1 0\n4 2\n6 4\n")
    damage = bench.log.damage
    assert is_certain if damage is None else damage.is_doubt and not is_certain


class SlowDisk(SystemDisk):
    """Runs a callback before a file of leader epochs is made durable."""

    before: Callable[[], None] = staticmethod(lambda: None)

    def replace(self, path: str, data: bytes) -> None:
        self.before()
        super().replace(path, data)


class WatchedLock:
    """A lock that sets an event when a thread waits for it."""

    def __init__(self, comes: threading.Event) -> None:
        self._lock = threading.Lock()
        self._comes = comes

    def __enter__(self) -> None:
        if self._lock.locked():
            self._comes.set()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()


def test_no_batch_comes_before_its_epoch_that_another_thread_makes_durable(tmp_path: Path) -> None:
    """A broker that is killed between batch and epoch file would find a batch that contradicts the
    file, and treat its log as damaged."""
    disk = SlowDisk()
    bench = Bench(tmp_path, disk=disk)
    bench.append(1, 1, epoch=1)
    comes_or_ends = threading.Event()
    bench.log.epoch_file._lock = WatchedLock(comes_or_ends)  # type: ignore[assignment]
    early: list[int] = []

    def append() -> None:
        bench.append(1, epoch=2)
        comes_or_ends.set()

    appending = threading.Thread(target=append)

    def meanwhile() -> None:
        size = bench.segment().stat().st_size
        appending.start()
        assert comes_or_ends.wait(60)
        early.append(bench.segment().stat().st_size - size)

    bench.log.begin_epoch(2, 2)
    disk.before = meanwhile
    bench.log.persist_epochs()
    appending.join()
    assert early == [0]
    assert bench.offsets() == [0, 1, 2]
    bench.crash()
    assert bench.log.damage is None
