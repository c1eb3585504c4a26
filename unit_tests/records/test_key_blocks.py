"""The compiled loops of the log cleaner over whole batches: they copy what `Table.select` retains,
and stop before each batch that they cannot handle."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import crc32c
import pytest

import pybroker.records
from pybroker.records.batch import HEADER_SIZE, crc_matches, iter_headers, read_header
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.record import decode_records
from unit_tests.records.vocabulary import changed
from unit_tests.storage.batches import marker

SECRET: Final = bytes(16)
ROOM_BYTES: Final = 100_000
Pair = tuple[bytes | None, bytes | None]


@pytest.fixture
def compiled() -> ModuleType:
    """Skip the test if there is no compiled module, or if it is older than its source."""
    source = Path(pybroker.records.__file__).with_name("_key_blocks.pxi")
    try:
        found = importlib.import_module("pybroker.records._speedups")
    except ImportError:
        pytest.skip("needs the compiled module: python setup.py build_ext --inplace")
    assert found.__file__ is not None
    is_older = source.exists() and Path(found.__file__).stat().st_mtime < source.stat().st_mtime
    if is_older and not hasattr(found, "put_batches"):
        pytest.skip("the compiled module is older than its source: build it again")
    return found


def batch(base_offset: int, *pairs: Pair, codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    """Return a batch with these keys and values, and with these fields in its header."""
    builder = BatchBuilder(codec)
    for number, (key, value) in enumerate(pairs):
        builder.append(1000 + number, key, value)
    return bytes(changed(builder.build(), base_offset=base_offset, **fields))


def table_of(compiled: ModuleType, *batches: bytes, keys: int = 1000) -> Any:
    """Return a table with the keys of all `batches`, of which the loops handle every one."""
    made = compiled.KeyTable(2 * keys * compiled.KeyTable.ENTRY_BYTES, 0.5, SECRET)
    data = b"".join(batches)
    position, end = compiled.put_batches(made, data, 0, 0)
    assert position == len(data)
    assert end == (read_header(batches[-1]).next_offset if batches else 0)
    return made


def select(
    compiled: ModuleType, table: Any, data: bytes, *, now_ms: int = 0, room: int = ROOM_BYTES
) -> tuple[int, bytes, Sequence[tuple[int, int, int, int]]]:
    """Return the position where the loop stopped, the output, and its batches."""
    output = bytearray(room)
    position, length, copied = compiled.select_batches(table, data, 0, now_ms, output, 0)
    return position, bytes(output[:length]), copied


@pytest.mark.parametrize("by_table", [False, True])
def test_checksum_is_that_of_the_library(compiled: ModuleType, by_table: bool) -> None:
    data = random.Random(1).randbytes(300)
    for begin in range(9):
        for end in range(begin + 1, len(data)):
            part = data[begin:end]
            assert compiled.block_checksum(part, by_table) == crc32c.crc32c(part)


def test_batches_are_copied_with_their_retained_records(compiled: ModuleType) -> None:
    first = batch(10, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    gone = batch(20, (b"c", b"1"), (None, b"no key"))
    whole = batch(30, (b"c", b"2"), (b"b", b"2"), producer_id=7, base_sequence=3)
    table = table_of(compiled, first, gone, whole)
    position, output, copied = select(compiled, table, first + gone + whole)
    assert position == len(first + gone + whole)
    found = [(place, header) for place, header in iter_headers(output)]
    assert copied == [
        (place, header.size, header.last_offset, header.max_timestamp) for place, header in found
    ]
    (_, shorter), (place, same) = found
    assert output[place:] == whole
    assert same == read_header(whole)
    assert crc_matches(output, 0, shorter.size)
    (record,) = decode_records(output, decompressed_bytes_max=ROOM_BYTES)
    assert (record.offset, record.timestamp, record.key, record.value) == (12, 1002, b"a", b"2")
    expected = read_header(first)._replace(
        batch_length=shorter.batch_length, crc=shorter.crc, record_count=1, max_timestamp=1002
    )
    assert shorter == expected


def test_append_time_of_a_shortened_batch_stays(compiled: ModuleType) -> None:
    attributes = 0x08
    data = batch(0, (b"a", b"1"), (b"b", b"1"), attributes=attributes, max_timestamp=5000)
    later = batch(2, (b"b", b"2"))
    table = table_of(compiled, data, later)
    _, output, copied = select(compiled, table, data)
    assert read_header(output).max_timestamp == 5000
    assert copied[0][3] == 5000


def test_tombstones_go_after_the_delete_horizon(compiled: ModuleType) -> None:
    data = batch(0, (b"a", None), (b"b", b"1"), attributes=0x40, base_timestamp=5000)
    table = table_of(compiled, data)
    assert select(compiled, table, data, now_ms=4999)[1] == data
    position, output, _ = select(compiled, table, data, now_ms=5000)
    assert position == len(data)
    (record,) = decode_records(output, decompressed_bytes_max=ROOM_BYTES)
    assert record.key == b"b"


PLAIN: Final = batch(0, (b"k", b"v"))
STOPS: Final = {
    "a compressed batch": batch(5, (b"a", b"1"), codec=Codec.LZ4),
    "a transactional batch": batch(5, (b"a", b"1"), attributes=0x10, producer_id=3),
    "a marker": bytes(marker(3, commit=True)),
    "an empty batch": batch(5, (b"a", b"1"), record_count=0),
    "a wrong checksum": batch(5, (b"a", b"1"))[:-1] + b"?",
    "more records than counted": batch(5, (b"a", b"1"), (b"b", b"1"), record_count=1),
    "fewer records than counted": batch(5, (b"a", b"1" * 20), record_count=2),
    "a negative base offset": batch(-5, (b"a", b"1")),
    "a base offset at the limit": batch(2**63 - 1, (b"a", b"1")),
    "a negative last offset": batch(5, (b"a", b"1"), last_offset_delta=-1),
    "another magic": batch(5, (b"a", b"1"), magic=1),
    "half a batch": PLAIN[:-1],
    "half a header": PLAIN[: HEADER_SIZE - 1],
    "nothing": b"",
}


@pytest.mark.parametrize("case", STOPS)
def test_loops_stop_before_a_batch_of_another_kind(compiled: ModuleType, case: str) -> None:
    made = table_of(compiled)
    data = PLAIN + STOPS[case]
    assert compiled.put_batches(made, data, 0, 0) == (len(PLAIN), 1)
    assert select(compiled, made, data)[:2] == (len(PLAIN), PLAIN)
    assert compiled.put_batches(made, data, len(PLAIN), 0) == (len(PLAIN), 0)


SELECTED_STOPS: Final = {
    "a tombstone without a delete horizon": batch(5, (b"a", None)),
    "the last batch of a producer": batch(5, (None, b"no key"), producer_id=3),
    "a timestamp beyond 64 bits": batch(5, (None, b""), (b"a", b"1"), base_timestamp=2**63 - 1),
}


@pytest.mark.parametrize("case", SELECTED_STOPS)
def test_copying_stops_before_a_batch_that_needs_more(compiled: ModuleType, case: str) -> None:
    data = SELECTED_STOPS[case]
    table = table_of(compiled, PLAIN, data)
    assert select(compiled, table, PLAIN + data)[:2] == (len(PLAIN), PLAIN)


def test_copying_stops_without_room(compiled: ModuleType) -> None:
    batches = [batch(n, (b"%d" % n, b"v")) for n in range(3)]
    data = b"".join(batches)
    table = table_of(compiled, *batches)
    size = len(batches[0])
    for room in range(3 * size):
        position, output, copied = select(compiled, table, data, room=room)
        assert position == len(output) == room // size * size
        assert len(copied) == room // size


def test_full_table_stops_the_loop(compiled: ModuleType) -> None:
    batches = [batch(n, (b"%d" % n, b"v")) for n in range(3)]
    table = compiled.KeyTable(4 * compiled.KeyTable.ENTRY_BYTES, 0.5, SECRET)
    assert compiled.put_batches(table, b"".join(batches), 0, 0) == (2 * len(batches[0]), 2)


def test_batches_below_the_first_offset_are_skipped(compiled: ModuleType) -> None:
    batches = [batch(n, (b"%d" % n, b"v")) for n in range(3)]
    table = table_of(compiled)
    assert compiled.put_batches(table, b"".join(batches), 0, 2) == (3 * len(batches[0]), 3)
    assert len(table) == 1


def test_any_damaged_block_is_read_within_its_bounds(compiled: ModuleType) -> None:
    """Each call ends with a position inside the block, also if checksums hide the damage."""
    rng = random.Random(5)
    for _ in range(3000):
        rows = [(rng.choice([None, b"a", b"b"]), rng.randbytes(rng.randrange(9))) for _ in "123"]
        data = bytearray(batch(rng.randrange(9), *rows))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with_crc = data[:17] + crc32c.crc32c(data[21:]).to_bytes(4, "big") + data[21:]
        block = bytes(with_crc) + PLAIN
        table = table_of(compiled)
        position, _ = compiled.put_batches(table, block, 0, 0)
        assert 0 <= position <= len(block)
        position, output, copied = select(compiled, table, block)
        assert 0 <= position <= len(block)
        assert len(output) == sum(size for _, size, _, _ in copied) <= position


def test_position_outside_the_block_is_refused(compiled: ModuleType) -> None:
    table = table_of(compiled)
    for position in (-1, len(PLAIN) + 1):
        with pytest.raises(ValueError, match="position"):
            compiled.put_batches(table, PLAIN, position, 0)
        with pytest.raises(ValueError, match="position"):
            compiled.select_batches(table, PLAIN, position, 0, bytearray(9), 0)
        with pytest.raises(ValueError, match="position"):
            compiled.select_batches(table, PLAIN, 0, 0, bytearray(len(PLAIN)), position)
