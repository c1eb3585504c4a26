"""Tests of the state of an assigned partition: what is decoded and taken, and where the position
then is."""

from __future__ import annotations

import pytest

from pybroker.client.errors import DamagedRecords
from pybroker.client.fetched import begin_data
from pybroker.client.subscription import BYTES_PER_TURN, PartitionReader, Rules, Turn
from pybroker.model import TopicPartition
from pybroker.records import columns, consumed
from pybroker.records.batch import stamp
from pybroker.records.compression import Codec
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from unit_tests.records.vocabulary import NOW_MS, batch_of

T0 = TopicPartition("t", 0)
RULES = Rules(check_crcs=True, committed_only=True)
ENDLESS = 2**62


def batches(*counts: int, codec: Codec = Codec.NONE) -> bytes:
    """Return batches with these numbers of records; each value is the offset, and the leader epoch
    is the number of the batch."""
    data = bytearray()
    offset = 0
    for epoch, count in enumerate(counts):
        numbers = range(offset, offset + count)
        batch = batch_of(*[(NOW_MS, None, b"%d" % n, ()) for n in numbers], codec=codec)
        stamp(batch, 0, offset, epoch)
        data += batch
        offset += count
    return bytes(data)


def reader_of(*fetched: bytes) -> PartitionReader:
    reader = PartitionReader(T0)
    reader.jump(0)
    for data in fetched:
        assert reader.add(begin_data(data, []))
    return reader


def decode(reader: PartitionReader, count: int) -> None:
    assert reader.decode(count, Turn(ENDLESS), RULES)


def take(reader: PartitionReader, count: int) -> list[int]:
    decode(reader, count)
    return [record.offset for record in reader.take(count)]


def take_columns(reader: PartitionReader, bytes_max: int = 1) -> int:
    assert reader.decode_columns(bytes_max, Turn(ENDLESS), RULES, headers=False)
    found = reader.take_columns()
    return 0 if found is None else found.rows


def test_the_position_follows_what_is_taken() -> None:
    reader = reader_of(batches(3, 3, 3))
    decode(reader, 5)
    assert (reader.position, reader.ready_count) == (0, 6)
    assert [record.offset for record in reader.take(4)] == [0, 1, 2, 3]
    assert (reader.position, reader.position_epoch) == (4, 1)
    assert reader.pop().value == b"4"
    assert reader.position == 5
    assert take(reader, 9) == [5, 6, 7, 8]
    assert (reader.position, reader.position_epoch) == (9, 2)
    assert not reader.ready
    assert not take(reader, 1)


def test_read_batches_do_not_count_as_buffered() -> None:
    reader = reader_of(batches(3, 3))
    full = reader.buffered_bytes
    take(reader, 3)
    assert reader.buffered_bytes == full // 2
    take(reader, 3)
    assert reader.buffered_bytes == 0


def test_a_marker_after_decoded_records_is_passed_when_they_are_taken() -> None:
    marker = bytearray(
        build_end_transaction(
            EndTransaction(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp_ms=1
        )
    )
    stamp(marker, 0, 2, 5)
    reader = reader_of(batches(2) + bytes(marker))
    decode(reader, 9)
    assert reader.position == 0
    assert [record.offset for record in reader.take(1)] == [0]
    assert reader.position == 1
    assert [record.offset for record in reader.take(9)] == [1]
    assert (reader.position, reader.position_epoch) == (3, 5)


def test_columns_continue_after_a_part_of_a_batch() -> None:
    reader = reader_of(batches(4, 4))
    assert take(reader, 1) == [0]
    assert take_columns(reader) == 3
    assert (reader.position, reader.position_epoch) == (4, 0)
    assert take(reader, 2) == [4, 5]
    assert take_columns(reader) == 2
    assert reader.position == 8


@pytest.mark.parametrize("first", ["records", "columns"])
def test_records_of_a_cancelled_call_are_fetched_again_in_another_form(first: str) -> None:
    reader = reader_of(batches(2, 2, 2))
    era = reader.era
    if first == "records":
        decode(reader, 6)
        assert take_columns(reader) == 0
    else:
        assert reader.decode_columns(ENDLESS, Turn(ENDLESS), RULES, headers=False)
        assert take(reader, 6) == []
    assert reader.era > era
    assert (reader.position, reader.fetch_offset) == (0, 0)
    assert not reader.buffered
    assert reader.add(begin_data(batches(2, 2, 2), []))
    assert take(reader, 6) == [0, 1, 2, 3, 4, 5]


def test_columns_with_and_without_headers_are_decoded_apart() -> None:
    reader = reader_of(batches(2))
    assert reader.decode_columns(1, Turn(ENDLESS), RULES, headers=True)
    assert reader.decode_columns(1, Turn(ENDLESS), RULES, headers=False)
    assert reader.take_columns() is None
    assert (reader.position, reader.fetch_offset) == (0, 0)


@pytest.mark.parametrize("implementation", ["_pure_consumed", "_speedups"])
@pytest.mark.parametrize("codec", Codec)
def test_a_large_batch_takes_several_turns(
    codec: Codec, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pytest.importorskip(f"pybroker.records.{implementation}")
    monkeypatch.setattr(consumed, "BatchReader", found.BatchReader)
    count = 40_000
    reader = reader_of(batches(count, codec=codec))
    turns = 0
    while not reader.decode(count, Turn(BYTES_PER_TURN // 16), RULES):
        turns += 1
        assert reader.position == 0
    assert turns >= 4
    assert [record.offset for record in reader.take(count)] == list(range(count))
    assert reader.position == count


@pytest.mark.parametrize("implementation", ["_numpy_columns", "_speedups"])
def test_columns_of_a_large_batch_take_several_turns(
    implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_IMPLEMENTATIONS", (f"pybroker.records.{implementation}",))
    count = 120_000
    reader = reader_of(batches(count, 3))
    turns = 0
    while not reader.decode_columns(1, Turn(BYTES_PER_TURN // 16), RULES, headers=False):
        turns += 1
        assert reader.position == 0
        assert reader.take_columns() is None
    assert turns >= 4
    found = reader.take_columns()
    assert found is not None
    assert found.rows == count
    assert list(memoryview(found.offsets).cast("q")) == list(range(count))
    assert reader.position == count
    assert take_columns(reader) == 3


def test_decoding_ends_before_a_damaged_batch() -> None:
    data = bytearray(batches(2, 2))
    data[-3] ^= 1
    reader = reader_of(bytes(data))
    decode(reader, 9)
    assert isinstance(reader.problem, DamagedRecords)
    assert reader.problem.offset == 2
    assert [record.offset for record in reader.take(9)] == [0, 1]
    assert reader.position == 2
    decode(reader, 9)
    assert not reader.ready
    reader.jump(0)
    assert reader.problem is None
