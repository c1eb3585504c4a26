"""Tests of finding the last row of each key, in memory and with files."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.spark import newest_rows
from pybroker.spark.newest_rows import NewestRows
from pybroker.spark.rows import BATCH_BYTES, BATCH_ROWS

LARGE = 2**30


def batch(keys: list[bytes], first: int, value_bytes: int = 10) -> pa.RecordBatch:
    rows = range(first, first + len(keys))
    columns: dict[str, Any] = {
        "key": pa.array(keys, pa.binary()),
        "offset": pa.array(rows, pa.int64()),
        "value": pa.array(
            [b"%d" % row * value_bytes if row % 3 else None for row in rows], pa.binary()
        ),
        "headers": pa.array(
            [[{"key": "h", "value": b"%d" % row}] if row % 2 else None for row in rows],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def newest(batches: list[pa.RecordBatch], bytes_max: int) -> tuple[list[pa.RecordBatch], bool]:
    with NewestRows(bytes_max) as rows:
        for each in batches:
            rows.add(each)
        found = list(rows.finish())
        return found, rows.has_spilled


def by_key(batches: list[pa.RecordBatch]) -> dict[bytes, dict[str, object]]:
    rows = [row for each in batches for row in each.to_pylist()]
    found = {row["key"]: row for row in rows}
    assert len(found) == len(rows), "a key came twice"
    return found


def model(batches: list[pa.RecordBatch]) -> dict[bytes, dict[str, object]]:
    return {row["key"]: row for each in batches for row in each.to_pylist()}


def random_batches(seed: int, rows: int, keys: int, each: int) -> list[pa.RecordBatch]:
    dice = random.Random(seed)
    return [
        batch([b"k%d" % dice.randrange(keys) for _ in range(min(each, rows - first))], first)
        for first in range(0, rows, each)
    ]


@pytest.mark.parametrize(
    ("bytes_max", "rows", "keys", "spills"),
    [
        (LARGE, 20_000, 500, False),
        (LARGE, 20_000, 20_000, False),
        (200_000, 20_000, 20_000, True),
        (100_000, 20_000, 500, False),
        (40_000, 40_000, 30_000, True),
    ],
)
def test_last_row_of_each_key_remains(bytes_max: int, rows: int, keys: int, spills: bool) -> None:
    batches = random_batches(bytes_max, rows, keys, 700)
    found, has_spilled = newest(batches, bytes_max)
    assert by_key(found) == model(batches)
    assert has_spilled is spills


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=2), max_size=30), max_size=12),
    st.sampled_from([1, 500, 3_000, LARGE]),
)
def test_last_rows_of_random_keys_and_batches(keys: list[list[bytes]], bytes_max: int) -> None:
    batches, first = [], 0
    for some in keys:
        batches.append(batch(some, first))
        first += len(some)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newest_rows, "_ROWS_SPILLED_MIN", 5)
        found, _ = newest(batches, bytes_max)
    assert by_key(found) == model(batches)


def test_large_files_are_divided_again_by_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = random_batches(7, 20_000, 20_000, 1_000)
    levels = []
    made = newest_rows._Files.__init__

    def note(files: newest_rows._Files, schema: pa.Schema, level: int) -> None:
        levels.append(level)
        made(files, schema, level)

    monkeypatch.setattr(newest_rows._Files, "__init__", note)
    monkeypatch.setattr(newest_rows, "_ROWS_SPILLED_MIN", 50)
    found, _ = newest(batches, 20_000)
    assert by_key(found) == model(batches)
    assert set(levels) == {0, 1}


def test_memory_stays_below_the_limit() -> None:
    held = []
    with NewestRows(300_000) as rows:
        for each in random_batches(3, 60_000, 60_000, 500):
            rows.add(each)
            in_memory = rows._held.nbytes if rows._held is not None else 0
            held.append(in_memory + rows._waiting_bytes)
        assert sum(part.num_rows for part in rows.finish()) == len(
            model(random_batches(3, 60_000, 60_000, 500))
        )
    assert max(held) < 300_000


def test_rows_are_yielded_in_batches_of_limited_size() -> None:
    many = [batch([b"%d" % row for row in range(30_000)], 0, 1)]
    found, _ = newest(many, LARGE)
    assert max(part.num_rows for part in found) == BATCH_ROWS
    large = [batch([b"%d" % row for row in range(100)], 0, 2**16)]
    found, _ = newest(large, LARGE)
    assert all(part.nbytes < 2 * BATCH_BYTES for part in found)
    assert len(found) > 1


def test_no_rows_give_no_batches() -> None:
    assert newest([], 10) == ([], False)
    assert newest([batch([], 0)], 10) == ([], False)
