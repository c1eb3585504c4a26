"""Tests of passes of the log cleaner over a log."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pybroker.compaction.blocks import BLOCK_BYTES
from pybroker.compaction.choice import plan
from pybroker.compaction.cleaning import CannotClean, clean
from pybroker.compaction.offset_map import ENTRY_BYTES
from pybroker.errors import CorruptionError, StorageError
from pybroker.ports import Buffer
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.storage import lookup
from pybroker.storage.files import SystemFile
from pybroker.storage.segment import Segment
from pybroker.storage.segments import Segments
from unit_tests.compaction.keyed import COMPACTED, HOUR_MS, MEMORY_BYTES, Keyed, fill
from unit_tests.storage.batches import FIRST_TIMESTAMP


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_cleaned_log_replays_into_the_same_table(tmp_path: Path, seed: int) -> None:
    """Random keys, tombstones, producers and transactions are cleaned again and again, also with
    memory for few keys, and also after a restart. A consumer that reads from any offset on reads a
    subset of what it would have read before, in order."""
    rng = random.Random(seed)
    keyed = Keyed(tmp_path)
    for _ in range(6):
        fill(keyed, rng, 25)
        before = keyed.committed()
        sequences = last_sequences(keyed)
        for _ in range(rng.randint(1, 3)):
            keyed.clean(memory=rng.choice([MEMORY_BYTES, 9 * ENTRY_BYTES]))
        if rng.random() < 0.5:
            keyed.bench.now_ms += 2 * HOUR_MS
        after = keyed.committed()
        assert set(after) <= set(before)
        assert after == sorted(after, key=lambda record: record.offset)
        assert keyed.replayed() == keyed.table
        if rng.random() < 0.5:
            keyed.bench.reopen()
        if rng.random() < 0.3:
            keyed.bench.crash(recovery_point=0, same_boot=True)
            assert keyed.bench.log.damage is None
        assert last_sequences(keyed) == sequences
        assert keyed.replayed() == keyed.table
    for producer in sorted(keyed.open):
        keyed.end(producer, commit=True)
    for _ in range(3):
        keyed.bench.now_ms += 2 * HOUR_MS
        keyed.put((b"k0", b"last"))
        keyed.clean_all()
    assert keyed.replayed() == keyed.table
    by_key = [record.key for record in keyed.committed()]
    assert len(by_key) <= len(set(by_key)) + 1, "the newest record of a key stays, and no other"


def last_sequences(keyed: Keyed) -> dict[int, tuple[int, int]]:
    """Return the epoch and the last sequence of each producer that the log knows."""
    entries = keyed.bench.log.producers.entries
    return {key: (entry.epoch, entry.last_sequence) for key, entry in entries.items()}


def test_only_the_last_record_of_a_key_stays_at_its_offset(keyed: Keyed) -> None:
    keyed.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    keyed.put((b"b", b"2"))
    keyed.put((b"c", b"1"))
    before = {record.offset: record for record in keyed.committed()}
    keyed.clean_all()
    assert keyed.committed() == [before[offset] for offset in (2, 3, 4)]


def test_records_without_a_key_are_removed(keyed: Keyed) -> None:
    keyed.bench.append(2)
    keyed.bench.put(batch_without_keys())
    keyed.clean_all()
    assert [record.key for _, records in keyed.batches() for record in records] == [b"key"]


def test_tombstone_stays_for_delete_retention_ms(keyed: Keyed) -> None:
    """The time counts from the first pass that finds the tombstone as the last record of its
    key."""
    keyed.put((b"a", b"1"))
    keyed.put((b"a", None))
    keyed.clean_all()
    (tombstone,) = keyed.committed()
    assert (tombstone.key, tombstone.value, tombstone.offset) == (b"a", None, 1)
    keyed.bench.now_ms += HOUR_MS - 1
    keyed.put((b"b", b"1"))
    keyed.clean_all()
    assert keyed.committed()[0] == tombstone, "its timestamp stays, too"
    keyed.bench.now_ms += 1
    keyed.put((b"c", b"1"))
    keyed.clean_all()
    assert [record.key for record in keyed.committed()] == [b"b", b"c"]


def test_tombstone_of_a_topic_without_retention_goes_in_the_second_pass(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, replace(COMPACTED, delete_retention_ms=0))
    keyed.put((b"a", None))
    keyed.clean_all()
    assert len(keyed.committed()) == 1
    keyed.put((b"b", b"1"))
    keyed.clean_all()
    assert [record.key for record in keyed.committed()] == [b"b"]


@pytest.mark.parametrize("commit", [True, False])
def test_marker_stays_until_the_records_of_its_transaction_are_gone(
    keyed: Keyed, commit: bool
) -> None:
    """A pass without records of the transaction gives the marker a delete horizon, a pass after
    that time removes it."""
    keyed.put((b"a", b"1"), producer=1, transactional=True)
    keyed.put((b"a", b"2"), producer=1, transactional=True)
    keyed.end(1, commit=commit)
    keyed.put((b"a", b"3"))

    def markers() -> list[bool]:
        return [header.has_delete_horizon for header, _ in keyed.batches() if header.is_control]

    keyed.clean_all()
    assert markers() == [False]
    aborted = keyed.bench.log.aborted_transactions(0, keyed.bench.log.log_end_offset)
    assert bool(aborted) == (not commit), "the index keeps the transaction of a kept marker"
    # Another transaction of the producer, so that its last sequence is no longer in the first one.
    keyed.put((b"b", b"1"), producer=1, transactional=True)
    keyed.end(1, commit=True)
    for passes in range(2):  # the first one removes the batch that was kept for its sequence
        assert markers() == [False, False]
        keyed.put((b"d", b"%d" % passes))
        keyed.clean_all()
    assert markers() == [True, False]
    keyed.bench.now_ms += HOUR_MS
    keyed.put((b"c", b"1"))
    keyed.clean_all()
    assert markers() == [False]
    assert keyed.replayed() == {b"a": b"3", b"b": b"1", b"c": b"1", b"d": b"1"}


def test_last_batch_of_a_producer_stays_without_records(keyed: Keyed) -> None:
    keyed.put((b"a", b"1"), producer=7)
    keyed.put((b"a", b"2"), producer=7)
    keyed.put((b"a", b"3"))
    keyed.clean_all()
    (first, records), *_ = keyed.batches()
    assert (first.producer_id, first.base_sequence, first.last_offset, records) == (7, 1, 1, [])
    keyed.bench.crash(recovery_point=0, same_boot=True)
    assert keyed.bench.log.producers.entries[7].last_sequence == 1


def test_uncommitted_and_undecided_records_are_not_cleaned(keyed: Keyed) -> None:
    for number in range(20):
        keyed.put((b"a", b"%d" % number))
    keyed.bench.log.roll(0)
    keyed.clean(high_watermark=10)
    kept = [record.offset for record in keyed.committed()]
    assert kept[-10:] == list(range(10, 20))
    assert len(kept) < 20
    keyed.put((b"b", b"1"), producer=1, transactional=True)
    keyed.put((b"a", b"last"))
    keyed.bench.log.roll(0)
    keyed.clean()
    assert keyed.cleaned_to is not None
    assert keyed.cleaned_to <= 20, "the open transaction begins at offset 20"


def test_young_records_are_not_cleaned(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, replace(COMPACTED, min_compaction_lag_ms=HOUR_MS))
    keyed.put((b"a", b"1"))
    keyed.put((b"a", b"2"))
    keyed.bench.log.roll(0)
    assert not keyed.clean()
    keyed.bench.now_ms += HOUR_MS + 2
    assert keyed.clean()


def test_old_records_are_cleaned_below_the_dirty_ratio(tmp_path: Path) -> None:
    config = replace(COMPACTED, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR_MS)
    keyed = Keyed(tmp_path, config)
    keyed.put((b"a", b"1"))
    keyed.put((b"a", b"2"))
    keyed.bench.log.roll(0)
    assert not keyed.clean()
    keyed.bench.now_ms += HOUR_MS + 2
    assert keyed.clean()
    assert len(keyed.committed()) == 1


def test_log_of_a_topic_that_is_not_compacted_has_no_plan(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, replace(COMPACTED, cleanup_policy=("delete",)))
    keyed.put((b"a", b"1"))
    keyed.bench.log.roll(0)
    assert not keyed.clean()


def test_small_segments_are_merged(keyed: Keyed) -> None:
    for number in range(60):
        keyed.put((b"a%d" % (number % 3), b"%d" % number))
    keyed.clean_all()
    assert keyed.bench.log.segment_count > 5, "they were full before the pass"
    keyed.put((b"b", b"1"))
    keyed.clean_all()
    assert keyed.bench.log.segment_count == 2
    names = sorted(path.suffix for path in keyed.bench.path.iterdir())
    assert not {".cleaned", ".swap", ".deleted"} & set(names)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_cleaner_compresses_with_the_level_of_the_topic(tmp_path: Path, codec: Codec) -> None:
    value = b" ".join(b"%x" % (number * number) for number in range(3000))
    low = replace(
        COMPACTED, compression_gzip_level=1, compression_lz4_level=9, compression_zstd_level=1
    )
    high = replace(
        COMPACTED, compression_gzip_level=9, compression_lz4_level=12, compression_zstd_level=9
    )
    sizes = []
    for number, config in enumerate((low, high)):
        keyed = Keyed(tmp_path / str(number), config)
        keyed.put((b"a", b"old"), (b"b", value), codec=codec)
        keyed.put((b"a", b"new"))
        keyed.clean_all()
        ((header, _), _) = keyed.batches()
        assert header.codec == codec
        sizes.append(header.size)
        assert keyed.replayed() == keyed.table
    assert sizes[1] < sizes[0]


def test_batch_with_more_keys_than_memory_is_reported(keyed: Keyed) -> None:
    keyed.put(*[(b"k%d" % number, b"v") for number in range(5)])
    keyed.bench.log.roll(0)
    with pytest.raises(CannotClean, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        keyed.clean(memory=4 * ENTRY_BYTES)


def test_corrupt_batch_ends_the_pass_and_changes_nothing(keyed: Keyed) -> None:
    keyed.put((b"a", b"1"))
    keyed.put((b"a", b"2"))
    keyed.bench.log.roll(0)
    keyed.bench.log.flush()
    keyed.bench.flip_bit(1, at=64)
    files = {path.name: path.read_bytes() for path in keyed.bench.path.glob("*.log*")}
    with pytest.raises(CorruptionError, match="checksum of the batch at offset 1 is wrong"):
        keyed.clean()
    assert {path.name: path.read_bytes() for path in keyed.bench.path.glob("*.log*")} == files


def test_truncation_during_a_pass_ends_it(keyed: Keyed) -> None:
    for number in range(30):
        keyed.put((b"a", b"%d" % number))
    log = keyed.bench.log
    log.roll(0)
    log.flush()
    log.producers.decide(30)
    chosen = plan(log, None, 30, keyed.bench.now_ms)
    assert chosen is not None
    steps = clean(chosen, keyed.bench.disk, MEMORY_BYTES, keyed.bench.now_ms)
    next(steps)
    log.truncate_to(12)
    before = keyed.bench.offsets()
    with pytest.raises(StorageError):
        list(steps)
    assert keyed.bench.offsets() == before == list(range(12))
    assert not list(keyed.bench.path.glob("*.cleaned"))


def test_deletion_of_the_topic_during_a_pass_ends_it(keyed: Keyed) -> None:
    """Otherwise the pass would remove files of a new topic with the same name."""
    for number in range(5):
        keyed.put((b"a", b"%d" % number))
    log = keyed.bench.log
    log.roll(0)
    log.flush()
    chosen = plan(log, None, 5, keyed.bench.now_ms)
    assert chosen is not None
    steps = clean(chosen, keyed.bench.disk, MEMORY_BYTES, keyed.bench.now_ms)
    next(steps)
    log.release()
    before = sorted(path.name for path in keyed.bench.path.iterdir())
    with pytest.raises(StorageError, match="truncated or closed during its cleaning"):
        list(steps)
    assert sorted(path.name for path in keyed.bench.path.iterdir()) == before


def test_log_that_was_closed_for_a_move_is_cleaned(keyed: Keyed) -> None:
    """The copy of a moved replica is closed while its directory gets the final name."""
    keyed.put((b"a", b"1"))
    keyed.bench.log.close()
    keyed.put((b"a", b"2"))
    keyed.clean_all()
    assert [record.value for record in keyed.committed()] == [b"2"]


def test_reader_of_a_replaced_segment_continues_in_the_new_one(keyed: Keyed) -> None:
    for number in range(30):
        keyed.put((b"a%d" % (number % 4), b"%d" % number))
    old = keyed.bench.log.segments.first
    keyed.clean_all()
    with pytest.raises((StorageError, CorruptionError)):
        old.read(0, 100, 30, at_least_one_batch=True, cached_only=False)
    assert keyed.replayed() == keyed.table


@pytest.mark.parametrize("search", [lookup.offset_for_timestamp, lookup.offset_of_max_timestamp])
def test_search_by_time_continues_in_the_new_segment(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, search: Callable[..., Any]
) -> None:
    for number in range(30):
        keyed.put((b"a%d" % (number % 4), b"%d" % number))
    segments = keyed.bench.log.segments
    old, from_offset = segments.all, Segments.from_offset

    def replaced_after_the_choice(self: Segments, offset: int) -> tuple[Segment, ...]:
        monkeypatch.undo()
        chosen = from_offset(self, offset)
        keyed.clean_all()
        return chosen

    wanted = [0] if search is lookup.offset_for_timestamp else []
    expected = search(segments, *wanted, 0, 30)
    monkeypatch.setattr(Segments, "from_offset", replaced_after_the_choice)
    found = search(segments, *wanted, 0, 30)
    assert segments.all != old
    if search is lookup.offset_of_max_timestamp:
        assert found == expected
    else:
        assert found[0] == keyed.committed()[0].offset > expected[0]


def test_each_read_and_each_write_of_a_pass_is_short(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long read or write of the cleaner may delay the event loop."""
    keyed.bench.log.set_config(replace(COMPACTED, segment_bytes=4 * BLOCK_BYTES))
    while keyed.bench.log.segment_count < 2:
        end = keyed.bench.log.log_end_offset
        keyed.put(*((b"%d" % offset, b"v" * 1000) for offset in range(end, end + 10)))
    pread, append = SystemFile.pread, SystemFile.append
    sizes: list[int] = []

    def noted_pread(self: SystemFile, position: int, length: int) -> bytes:
        sizes.append(length)
        return pread(self, position, length)

    def noted_append(self: SystemFile, data: Buffer) -> None:
        sizes.append(len(data))
        append(self, data)

    monkeypatch.setattr(SystemFile, "pread", noted_pread)
    monkeypatch.setattr(SystemFile, "append", noted_append)
    assert keyed.clean()
    assert sum(sizes) > 3 * 3 * BLOCK_BYTES
    assert max(sizes) <= 2 * BLOCK_BYTES


def batch_without_keys() -> bytearray:
    builder = BatchBuilder()
    builder.append(FIRST_TIMESTAMP, None, b"v")
    return bytearray(builder.build())
