"""Tests of reading a replica's files: contents are unchanged, and damage is detected."""

from __future__ import annotations

import pytest

from pybroker.model import TopicPartition
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.storage.producer_state import ProducerEntry, RememberedBatch
from pybroker.testing.history.model import Record
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.replica_files import DamagedFile, final_read, replica_files

KEY = TopicPartition("t", 0)
FOLDER = "/data/t-0"
SECOND = f"{FOLDER}/00000000000000000002.log"


def batch(first: int, *values: bytes, epoch: int, producer: int = -1) -> bytes:
    builder = BatchBuilder(Codec.ZSTD)
    for value in values:
        builder.append(1_000, None, value)
    made = bytearray(builder.build(producer, 0 if producer >= 0 else -1, 0))
    made[:8] = first.to_bytes(8, "big")
    made[12:16] = epoch.to_bytes(4, "big")
    return bytes(made)


@pytest.fixture
def disk() -> DiskView:
    """Return a disk with a log of two segments with two batches each."""
    view = DiskView(SimDisk(Environment("1"), "m"))
    view.make_dirs(FOLDER)
    view.write(f"{FOLDER}/00000000000000000000.log", batch(0, b"a", b"b", epoch=0, producer=7))
    view.write(SECOND, batch(2, b"c", epoch=1) + batch(3, b"d", epoch=1))
    view.write(f"{FOLDER}/leader-epoch-checkpoint", b"0\n2\n0 0\n1 2\n")
    return view


def test_batches_epochs_producers_and_records_are_read(disk: DiskView) -> None:
    known = [ProducerEntry(7, 0, (RememberedBatch(1, 1, 1, 0),), 0, 0, -1)]
    files = replica_files(disk, "/data", 3, KEY, 4, producers=known)
    assert (files.partition, files.broker, files.start, files.high_watermark) == (KEY, 3, 0, 4)
    assert [(each.first, each.last, each.epoch, each.producer) for each in files.batches] == [
        (0, 1, 0, "7/0"),
        (2, 2, 1, ""),
        (3, 3, 1, ""),
    ]
    assert files.epochs == ((0, 0), (1, 2))
    assert files.producers == ("producer 7 epoch 0: [(1, 1)]",)
    read = final_read(disk, "/data", 3, KEY, 3, start=1)
    assert read.start == 1
    assert read.records == (Record(1, "b", 0), Record(2, "c", 1))


def test_other_bytes_have_another_digest(disk: DiskView) -> None:
    before = replica_files(disk, "/data", 3, KEY, 4)
    disk.write(SECOND, batch(2, b"C", epoch=1) + batch(3, b"d", epoch=1))
    after = replica_files(disk, "/data", 3, KEY, 4)
    differ = [one != other for one, other in zip(before.batches, after.batches, strict=True)]
    assert differ == [False, True, False]


def test_a_damaged_batch_and_a_torn_tail_are_reported(disk: DiskView) -> None:
    whole = disk.read(SECOND)
    disk.write(SECOND, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=r"00002\.log: .* at position \d+ has a wrong checksum"):
        replica_files(disk, "/data", 3, KEY, 4)
    disk.write(SECOND, whole + b"\0" * 10)
    with pytest.raises(DamagedFile, match="10 bytes after position"):
        final_read(disk, "/data", 3, KEY, 4)
