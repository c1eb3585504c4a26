"""Tests of the files' bytes, which are those that Apache Kafka writes and reads."""

from __future__ import annotations

import struct
import uuid
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import CorruptionError
from pybroker.model import TopicPartition
from pybroker.records.batch import iter_headers
from pybroker.storage import filename, meta
from pybroker.storage.checkpoints import (
    decode_epochs,
    decode_offsets,
    encode_epochs,
    encode_offsets,
)
from pybroker.storage.epochs import EpochStart
from pybroker.storage.files import SystemDisk
from pybroker.storage.index_table import TAIL_BYTES
from pybroker.storage.log_config import LogConfig
from pybroker.storage.offset_index import OffsetEntry, OffsetIndex
from pybroker.storage.time_index import TimeEntry, TimeIndex
from pybroker.storage.txn_index import AbortedTransaction, TxnIndex, decode
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import Bench

ONE = len(batch())


# names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("__consumer_offsets-49", TopicPartition("__consumer_offsets", 49)),
        ("orders", None),
        ("orders-", None),
        ("orders-01", None),
        ("-1", None),
        ("or ders-1", None),
        (f"orders-0.{'0a' * 16}-delete", None),
        (f"orders-0.{'0a' * 16}-future", None),
        (f"orders-0.{'0a' * 16}-stray", None),
    ],
)
def test_directories_of_partitions(name: str, expected: TopicPartition | None) -> None:
    assert filename.parse_partition_directory(name) == expected


def test_a_deleted_directory_has_at_most_255_characters() -> None:
    partition = TopicPartition("t" * 249, 12)
    name = filename.marked_directory(partition, uuid.UUID(int=10), filename.DELETED_DIRECTORY)
    assert len(name) == 255
    assert filename.is_deleted_directory(name)


@pytest.mark.parametrize("kind", filename.SegmentFile)
def test_segment_files(kind: filename.SegmentFile) -> None:
    name = filename.segment_file(4711, kind)
    assert name == f"00000000000000004711.{kind.value}"
    assert filename.parse_segment_file(name) == (4711, kind)


@pytest.mark.parametrize("name", ["1.log", "00000000000000004711.log.deleted", "x" * 20 + ".log"])
def test_other_files(name: str) -> None:
    assert filename.parse_segment_file(name) is None


# checkpoints


def test_checkpoints() -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a", 10): 2**62}
    assert encode_offsets(offsets) == b"0\n2\na 10 4611686018427387904\nb 1 7\n"
    assert decode_offsets(encode_offsets(offsets), "f") == offsets
    epochs = [EpochStart(0, 0), EpochStart(5, 120)]
    assert encode_epochs(epochs) == b"0\n2\n0 0\n5 120\n"
    assert decode_epochs(encode_epochs(epochs), "f") == epochs


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na b 1\n",
        b"0\n1\na 0 1",
        b"0\n1\na 0 -1\n",
        b"\xff\xfe",
        b"0\n1\na 0 1\nb 0 1\n",
        bytes(30),
    ],
)
def test_damaged_checkpoints_are_refused(content: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_offsets(content, "f")
    with pytest.raises(CorruptionError):
        decode_epochs(content, "f")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_checkpoint_or_refused(content: bytes) -> None:
    for decoder in (decode_offsets, decode_epochs, meta.decode_meta):
        try:
            decoder(content, "f")
        except CorruptionError:
            pass
    meta.decode_boot(content)


def test_epochs_that_do_not_rise_are_refused() -> None:
    for content in (b"0\n2\n5 0\n5 9\n", b"0\n2\n5 9\n6 0\n"):
        with pytest.raises(CorruptionError):
            decode_epochs(content, "f")


def test_meta_properties() -> None:
    text = b"#\n#Sat Mar 01 12:00:00 UTC 2025\nbroker.id=3\nversion=0\ncluster.id=a\\=b\nx=y\n"
    found = meta.decode_meta(text, "f")
    assert found == meta.Meta(3, "a=b", 0, {"x": "y"})
    assert meta.decode_meta(meta.encode_meta(found), "f") == found


@pytest.mark.parametrize("text", [b"", b"#\n", b"#\nversi", b"broker.id=1\n", b"\0\1garbage"])
def test_a_torn_meta_properties_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptionError, match="f: the file is incomplete"):
        meta.decode_meta(text, "f")


@pytest.mark.parametrize("text", [b"version: 1\ntopic_id: x", b"topic_id", b"version: 0\n"])
def test_damaged_partition_metadata_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptionError):
        meta.decode_partition_metadata(text, "f")


# indexes


def test_index_entries_point_at_the_batch_that_they_name(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(index_interval_bytes=3 * ONE))
    bench.append(*[1] * 12)
    bench.close()
    positions = {h.last_offset: place for place, h in iter_headers(bench.segment().read_bytes())}
    entries = list(struct.iter_unpack(">ii", bench.segment(kind="index").read_bytes()))
    assert [offset for offset, _ in entries] == [4, 8]
    assert all(positions[offset] == place for offset, place in entries)


def test_the_time_index_ends_with_the_largest_timestamp(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(index_interval_bytes=2 * ONE))
    for time in (5, 9, 3, 7, 8, 20, 1):
        bench.put(batch(timestamp=time))
    bench.close()
    entries = list(struct.iter_unpack(">qi", bench.segment(kind="timeindex").read_bytes()))
    assert entries == [(9, 1), (20, 5)]
    bench.open(clean=True, recovery_point=7)
    bench.close()
    assert list(struct.iter_unpack(">qi", bench.segment(kind="timeindex").read_bytes())) == entries


Steps = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=1500)


@settings(max_examples=15, deadline=None)
@given(Steps, st.data())
def test_an_offset_index_is_a_sorted_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    path = str(tmp_path_factory.mktemp("index") / "i")
    index = OffsetIndex(path, 1000, SystemDisk())
    model: list[OffsetEntry] = []
    offset, position = 1000, 0
    for more, further in steps:
        offset, position = offset + more, position + further
        index.append(offset, position)
        model.append(OffsetEntry(offset, position))
        if index.table.tail_is_full:
            index.table.spill()
    cut = data.draw(st.integers(1000, offset + 2))
    index.truncate(cut)
    model = [entry for entry in model if entry.last_offset < cut]
    for _ in range(2):
        assert len(index.table) == len(model)
        for wanted in {*range(1000, offset + 2, max(1, (offset - 1000) // 40)), cut}:
            expected = [entry for entry in model if entry.last_offset <= wanted]
            assert index.floor(wanted) == (expected[-1] if expected else None)
            at = wanted - 1000
            expected = [entry for entry in model if entry.position <= at]
            assert index.floor_position(at) == (expected[-1] if expected else None)
        index.table.spill()
        index = OffsetIndex(path, 1000, SystemDisk())


def test_large_indexes_are_searched_on_the_file(tmp_path: Path) -> None:
    index = TimeIndex(str(tmp_path / "i"), 0, SystemDisk())
    count = 20 * TAIL_BYTES
    for number in range(count):
        index.append(number * 10, number)
        if index.table.tail_is_full:
            index.table.spill()
    for number in range(0, count, 997):
        assert index.floor(number * 10 + 9) == TimeEntry(number * 10, number)
    assert index.floor(-1) is None


def test_aborted_transactions(tmp_path: Path) -> None:
    index = TxnIndex(str(tmp_path / "i"), SystemDisk())
    entries = [AbortedTransaction(9, 0, 5, 6), AbortedTransaction(8, 3, 9, 10)]
    for entry in entries:
        index.append(entry)
    content = (tmp_path / "i").read_bytes()
    assert content[:34] == struct.pack(">hqqqq", 0, 9, 0, 5, 6)
    assert decode(content, "i") == index.entries() == entries
    index.truncate(9)
    assert index.entries() == entries[:1]
    index.append(entries[1])
    assert index.entries() == entries
    index.truncate(0)
    assert not (tmp_path / "i").exists()
    with pytest.raises(CorruptionError):
        decode(content[:-1], "i")


def test_aborted_transactions_are_searched_on_the_file(tmp_path: Path) -> None:
    index = TxnIndex(str(tmp_path / "i"), SystemDisk())
    assert list(index.overlapping(0)) == []
    assert index.is_missing
    entries = [AbortedTransaction(n, 10 * n, 10 * n + 7, 10 * n + 8) for n in range(500)]
    for entry in entries:
        index.add(entry)
        index.add(entry)
    assert index.entries() == entries
    again = TxnIndex(index.path, SystemDisk())
    again.add(entries[-1])
    for found in (index, again):
        for offset in (0, 7, 8, 17, 18, 3333, 4997):
            expected = [entry for entry in entries if entry.last_offset >= offset]
            assert list(found.overlapping(offset, cached_only=True)) == expected
        assert list(found.overlapping(4998)) == []
    again.truncate(2000)
    assert list(again.overlapping(0)) == entries[:200]


@pytest.mark.parametrize("damage", ["torn", "version"])
def test_damaged_transaction_index_is_removed_as_a_whole(tmp_path: Path, damage: str) -> None:
    index = TxnIndex(str(tmp_path / "i"), SystemDisk())
    for number in range(3):
        index.append(AbortedTransaction(number, number, number + 5, number + 6))
    content = bytearray((tmp_path / "i").read_bytes())
    if damage == "torn":
        content = content[:-3]
    else:
        content[35] = 9
    (tmp_path / "i").write_bytes(content)
    index = TxnIndex(str(tmp_path / "i"), SystemDisk())
    index.truncate(100)
    assert index.is_in_doubt
    assert index.entries() == []
