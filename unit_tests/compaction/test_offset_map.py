"""The map of the log cleaner: it takes batches in slices, with each implementation of its table."""

from __future__ import annotations

import random
from collections.abc import Generator
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

from pybroker.compaction import blocks, cleaning, offset_map
from pybroker.compaction.offset_map import OffsetMap
from pybroker.errors import CorruptionError
from pybroker.records import _pure_key_table
from pybroker.records.batch import HEADER_SIZE, BatchHeader, read_header
from pybroker.records.compression import Codec
from pybroker.records.record import Record
from unit_tests.compaction.keyed import HOUR_MS, Keyed, fill
from unit_tests.records.test_key_table import NAMES, implementation
from unit_tests.records.vocabulary import batch_of, changed

T = TypeVar("T")


def run(steps: Generator[int, None, T]) -> tuple[int, T]:
    """Return the number of pauses, and the result."""
    pauses = 0
    while True:
        try:
            assert next(steps) == 0
        except StopIteration as stop:
            return pauses, stop.value
        pauses += 1


def keyed_batch(records: int) -> tuple[bytes, BatchHeader]:
    """Return the payload and the header of a batch in which each key occurs twice."""
    rows = [(1000 + n, b"k%d" % (n % (records // 2)), b"%d" % n, ()) for n in range(records)]
    data = batch_of(*rows)
    return bytes(data[HEADER_SIZE:]), read_header(data)


def test_pure_table_takes_a_batch_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "KeyTable", _pure_key_table.KeyTable)
    payload, header = keyed_batch(1000)
    keys = OffsetMap(1_000_000, 0.9, 0)
    assert run(keys.put(payload, header)) == (3, True)
    pauses, kept = run(keys.select(payload, header, drops_tombstones=False))
    assert pauses == 3
    assert (kept.number, kept.has_tombstone, kept.latest_delta) == (500, False, 999)
    expected = batch_of(*[(1000 + n, b"k%d" % (n % 500), b"%d" % n, ()) for n in range(1000)])
    assert kept.records == expected[-len(kept.records) :]


@pytest.mark.parametrize("name", NAMES)
def test_bytes_after_the_last_record_are_reported(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_map, "KeyTable", implementation(name).KeyTable)
    payload, header = keyed_batch(4)
    keys = OffsetMap(1_000_000, 0.9, 0)
    for data, count in ((payload + b"?", 4), (payload, 3), (payload, 0)):
        damaged = header._replace(record_count=count)
        with pytest.raises(CorruptionError):
            run(keys.put(data, damaged))
        with pytest.raises(CorruptionError):
            run(keys.select(data, damaged, drops_tombstones=False))


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType, per_slice: int) -> None:
    """Let the cleaner use an implementation, with slices of `per_slice` records."""
    small = type("KeyTable", (module.KeyTable,), {"RECORDS_PER_SLICE": per_slice})
    monkeypatch.setattr(offset_map, "KeyTable", small)
    monkeypatch.setattr(offset_map, "put_batches", module.put_batches)
    monkeypatch.setattr(offset_map, "select_batches", module.select_batches)
    monkeypatch.setattr("pybroker.compaction.rewriting.shift_times", module.shift_times)


@pytest.mark.parametrize("seed", range(4))
def test_both_tables_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each pass decides by the same rules, whatever the implementation and its slices are."""
    logs: list[list[object]] = []
    for number, name in enumerate(NAMES):
        module = implementation(name)
        use(monkeypatch, module, per_slice=number + 2)
        rng = random.Random(seed)
        keyed = Keyed(tmp_path / name)
        for _ in range(4):
            fill(keyed, rng, 25)
            keyed.bench.log.roll(0)
            keyed.clean()
            keyed.bench.now_ms += HOUR_MS // 2
        logs.append(
            [header._replace(crc=0) for header, _ in keyed.batches()]
            + [records for _, records in keyed.batches()]
        )
    assert logs[0] == logs[1]


@pytest.mark.parametrize("seed", range(4))
def test_pass_with_small_blocks_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Batches lie across the ends of blocks, and some are longer than a block."""
    logs: list[list[tuple[BatchHeader, list[Record]]]] = []
    for block_bytes in (1024**2, 150):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(cleaning, "BLOCK_BYTES", block_bytes)
        monkeypatch.setattr(cleaning, "_BUFFER_BYTES", 2 * block_bytes)
        rng = random.Random(seed)
        keyed = Keyed(tmp_path / str(block_bytes))
        for _ in range(4):
            fill(keyed, rng, 25)
            keyed.put(*((b"key %d" % n, rng.randbytes(30)) for n in range(12)))
            keyed.clean_all()
            keyed.bench.now_ms += HOUR_MS // 2
        logs.append(keyed.batches())
        assert keyed.replayed() == keyed.table
    assert logs[0] == logs[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_timestamp_beyond_64_bits_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, codec: Codec
) -> None:
    """A producer may write such a batch to a topic without limits of timestamps."""
    use(monkeypatch, implementation(name), per_slice=2)
    keyed = Keyed(tmp_path)
    rows = [(2**40 + n, b"k%d" % (n // 2), b"v", ()) for n in range(4)]
    data = changed(batch_of(*rows, codec=codec), base_timestamp=2**63 - 2)
    keyed.bench.put(data)
    with pytest.raises(CorruptionError, match="exceeds 64 bits"):
        keyed.clean_all()
    tombstone = changed(batch_of((2**40, b"k", None, ())), base_timestamp=-(2**63))
    other = Keyed(tmp_path / "other")
    other.bench.put(tombstone)
    with pytest.raises(CorruptionError, match="from the delete horizon"):
        other.clean_all()
