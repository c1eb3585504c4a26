"""The key table of the log cleaner, on both implementations: it finds the last record of each key
in bounded memory, and reports damage."""

from __future__ import annotations

import importlib
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pybroker.records
from pybroker.errors import CorruptionError
from pybroker.records import key_table
from pybroker.records._pure import append_record
from unit_tests.records.vocabulary import TRICKY, record_bytes

INT64_MAX: Final = 2**63 - 1
NAMES: Final = ("_pure_key_table", "_speedups")
SECRET: Final = bytes(range(16))
Row = tuple[int, int, bytes | None, bytes | None]
"""Timestamp delta, offset delta, key and value of a record."""

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c", b"\xff" * 100])
rows = st.lists(
    st.tuples(
        st.integers(-(2**62), 2**62),
        st.integers(0, 2**31 - 1),
        keys,
        st.none() | st.binary(max_size=20),
    ),
    max_size=30,
)


def implementation(name: str) -> ModuleType:
    """Return the module of an implementation. Skips the test if it is not compiled, or if the
    compiled module is older than its source."""
    folder = Path(pybroker.records.__file__).parent
    try:
        found = importlib.import_module(f"pybroker.records.{name}")
    except ImportError:
        return pytest.skip("needs the compiled module: python setup.py build_ext --inplace")
    source = folder / "_key_table.pxi"
    if not hasattr(found, "KeyTable") and source.exists():
        assert found.__file__ is not None
        if Path(found.__file__).stat().st_mtime < source.stat().st_mtime:
            pytest.skip("the compiled module is older than its source: build it again")
    return found


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return implementation(request.param)


def payload_of(*records: Row) -> bytes:
    data = bytearray()
    for time, offset, key, value in records:
        append_record(data, time, offset, key, value, [("h", b"1")])
    return bytes(data)


def table(module: ModuleType, capacity: int = 1000, load: float = 0.5) -> key_table.Table:
    """Return a table for `capacity` keys."""
    made: key_table.Table = module.KeyTable(
        int(capacity / load) * module.KeyTable.ENTRY_BYTES, load, SECRET
    )
    assert made.capacity == capacity
    return made


def test_compiled_table_exists_if_a_compiler_exists() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc: without it the installation goes on without the compiled module")
    if not (Path(pybroker.records.__file__).parent / "_key_table.pxi").exists():
        pytest.skip("needs a checkout or an installation from source")
    assert implementation("_speedups").KeyTable is key_table.KeyTable


@pytest.mark.parametrize(
    ("length", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (16, "6ee2a4ca67b054bbfd3315bf85230577"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
        (300, "ce005a406d14b36d5386b5f7a7e1b311"),
    ],
)
def test_digests_are_those_of_siphash(length: int, digest: str) -> None:
    """The digests come from OpenSSL: openssl mac -macopt hexkey:... -macopt size:16 SIPHASH."""
    compiled = implementation("_speedups")
    assert compiled.sip_digest(bytes(n % 256 for n in range(length)), SECRET).hex() == (digest)


def test_last_record_of_each_key_stays(module: ModuleType) -> None:
    made = table(module)
    first = payload_of((5, 0, b"a", b"1"), (3, 1, b"b", b"1"), (9, 2, b"a", b"2"))
    second = payload_of((0, 0, b"b", None), (0, 1, None, b"no key"))
    assert made.put(first, 0, 3, 100) == len(first)
    assert made.put(second, 0, 2, 200) == len(second)
    assert len(made) == 2
    found = made.select(first, 0, 3, 100, drops_tombstones=False)
    assert found == (len(first), 1, False, 9, payload_of((9, 2, b"a", b"2")))
    found = made.select(second, 0, 2, 200, drops_tombstones=False)
    assert found == (len(second), 1, True, 0, payload_of((0, 0, b"b", None)))
    assert made.select(second, 0, 2, 200, drops_tombstones=True) == (len(second), 0, False, 0, b"")
    assert made.select(second, 0, 2, 199, drops_tombstones=False)[1] == 0


def test_records_of_unknown_keys_stay_without_a_copy(module: ModuleType) -> None:
    payload = payload_of((-7, 0, b"x", b"1"), (-8, 1, b"y", None))
    found = table(module).select(payload, 0, 2, 0, drops_tombstones=False)
    assert found == (len(payload), 2, True, -7, None)


def test_batch_is_taken_in_slices(module: ModuleType) -> None:
    rows = [(n, n, b"k%d" % (n % 3), b"v") for n in range(10)]
    payload = payload_of(*rows)
    made = table(module)
    position = made.put(payload, 0, 4, 50)
    assert position == len(payload_of(*rows[:4]))
    assert made.put(payload, position, 6, 50) == len(payload)
    after, kept, _, latest, records = made.select(payload, position, 6, 50, False)
    assert (after, kept, latest, records) == (len(payload), 3, 9, payload_of(*rows[7:]))


def test_full_table_takes_no_further_key(module: ModuleType) -> None:
    made = table(module, capacity=2)
    payload = payload_of(*((0, n, b"%d" % n, b"") for n in range(2)))
    assert made.put(payload, 0, 2, 0) == len(payload)
    assert made.put(payload, 0, 2, 10) == len(payload), "known keys need no room"
    third = payload_of((0, 0, b"2", b""))
    assert made.put(third, 0, 1, 20) == -1
    assert len(made) == 2
    assert made.select(third, 0, 1, 20, False)[1] == 1


@pytest.mark.parametrize("memory", [-1, 0, 1, 50, 400])
@pytest.mark.parametrize("load", [0.0, 0.9, 1.0, 7.0])
def test_smallest_tables_have_room_for_a_key(module: ModuleType, memory: int, load: float) -> None:
    made = module.KeyTable(memory, load, SECRET)
    assert made.capacity >= 1
    for number in range(30):
        made.put(payload_of((0, 0, b"%d" % number, b"")), 0, 1, number)
    assert len(made) == min(made.capacity, 30)
    assert made.select(payload_of((0, 0, b"0", b"")), 0, 1, 0, False)[1] == 1


def test_large_table_keeps_all_keys_while_it_grows(module: ModuleType) -> None:
    rng = random.Random(3)
    made = table(module, capacity=36_000, load=0.9)
    expected: dict[bytes, int] = {}
    for batch in range(60):
        rows = [(0, n, b"key-%d" % rng.randrange(60_000), b"v") for n in range(1000)]
        payload = payload_of(*rows)
        if made.put(payload, 0, 1000, 1 + batch * 1000) < 0:
            break
        expected |= {key: 1 + batch * 1000 + n for _, n, key, _ in rows}
        assert len(made) == len(expected)
        assert made.size_bytes <= 36_000 / 0.9 * made.ENTRY_BYTES
    else:
        pytest.fail("60,000 keys fit")
    assert len(made) == 36_000
    for key, offset in expected.items():
        record = payload_of((0, 0, key, b"v"))
        assert made.select(record, 0, 1, offset, False)[1] == 1
        later = made.select(record, 0, 1, offset - 1, False)[1]
        assert later == 0, "the table has the key's last offset"


@given(batches=st.lists(rows, max_size=4), drops=st.booleans(), shift=st.integers(-100, 2**40))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("name", NAMES)
def test_any_records_are_selected_as_by_a_dictionary(
    name: str, batches: list[list[Row]], drops: bool, shift: int
) -> None:
    module = implementation(name)
    made = table(module)
    last: dict[bytes, int] = {}
    for number, batch in enumerate(batches):
        payload = payload_of(*batch)
        assert made.put(payload, 0, len(batch), number * 2**32) == len(payload)
        last |= {key: number * 2**32 + delta for _, delta, key, _ in batch if key is not None}
    assert len(made) == len(last)
    for number, batch in enumerate(batches):
        payload = payload_of(*batch)
        kept = [
            row
            for row in batch
            if row[2] is not None
            and number * 2**32 + row[1] >= last[row[2]]
            and not (drops and row[3] is None)
        ]
        position, count, tombstone, latest, records = made.select(
            memoryview(payload), 0, len(batch), number * 2**32, drops
        )
        assert (position, count) == (len(payload), len(kept))
        assert tombstone == any(row[3] is None for row in kept)
        assert latest == max((row[0] for row in kept), default=0)
        assert (records is None) == (len(kept) == len(batch))
        assert (payload if records is None else records) == payload_of(*kept)
        moved = [(row[0] + shift, *row[1:]) for row in batch]
        assert module.shift_times(payload, len(batch), shift) == payload_of(*moved)


PLAIN: Final = record_bytes(0, 0, 1, b"k", 1, b"v", 0)
MALFORMED: Final = {
    "no records where one is counted": (b"", 1),
    "fewer records than counted": (PLAIN, 2),
    "a negative count": (PLAIN, -1),
    "a count far beyond the content": (PLAIN, 2**31 - 1),
    "a record length beyond the data": (record_bytes(0, 0, -1, -1, 0, b"..", length=100), 1),
    "a record length below the fixed fields": (record_bytes(0, 0, -1, -1, 0, length=5), 1),
    "a negative record length": (record_bytes(0, 0, -1, -1, 0, b"..", length=-1), 1),
    "a key beyond the record": (record_bytes(0, 0, 50, b"k", -1, 0), 1),
    "a huge key": (record_bytes(0, 0, 2**31 - 1, b"k", -1, 0), 1),
    "a key of length -2": (record_bytes(0, 0, -2, b"k", -1, 0), 1),
    "a value beyond the record": (record_bytes(0, 0, -1, 3, b"v", 0), 1),
    "a value length in the next record": (
        record_bytes(0, 0, 3, b"kkk", length=7) + record_bytes(1, 1, -1, -1, 0),
        2,
    ),
    "a value of length -3": (record_bytes(0, 0, -1, -3, 0, 0), 1),
    "a delta of 33 bits": (record_bytes(0, b"\xff\xff\xff\xff\x1f", -1, -1, 0), 1),
    "a time of 65 bits": (record_bytes(b"\xff" * 9 + b"\x03", 0, -1, -1, 0), 1),
    "a number without an end": (record_bytes(0, 0, -1, b"\x80\x80"), 1),
    "an offset below 0": (record_bytes(0, -1, -1, -1, 0), 1),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_records_are_rejected(module: ModuleType, case: str) -> None:
    payload, count = MALFORMED[case]
    made = table(module)
    with pytest.raises(CorruptionError):
        made.put(payload, 0, count, 0)
    with pytest.raises(CorruptionError):
        made.select(payload, 0, count, 0, False)
    with pytest.raises(CorruptionError):
        module.shift_times(payload, count, 1)


def test_offset_beyond_64_bits_is_rejected(module: ModuleType) -> None:
    payload = payload_of((0, 1, b"k", b"v"))
    made = table(module)
    assert made.put(payload, 0, 1, INT64_MAX - 1) == len(payload)
    assert made.select(payload, 0, 1, INT64_MAX - 1, False)[1] == 1
    for base in (INT64_MAX, -1, -(2**63)):
        with pytest.raises(CorruptionError):
            made.put(payload, 0, 1, base)
        with pytest.raises(CorruptionError):
            made.select(payload, 0, 1, base, False)


@pytest.mark.parametrize(
    ("delta", "shift"), [(INT64_MAX, 1), (1, INT64_MAX), (-(2**63), -1), (-2, -INT64_MAX)]
)
def test_timestamp_delta_beyond_64_bits_is_rejected(
    module: ModuleType, delta: int, shift: int
) -> None:
    with pytest.raises(CorruptionError):
        module.shift_times(payload_of((delta, 0, b"k", b"v")), 1, shift)


def test_position_outside_the_payload_is_refused(module: ModuleType) -> None:
    made = table(module)
    for position in (-1, len(PLAIN) + 1):
        with pytest.raises(ValueError, match="position"):
            made.put(PLAIN, position, 0, 0)
        with pytest.raises(ValueError, match="position"):
            made.select(PLAIN, position, 0, 0, False)
    assert made.put(PLAIN, len(PLAIN), 0, 0) == len(PLAIN)


def outcome(call: Callable[..., object], *args: object) -> object:
    """Return the result of a call, or the type of the raised error."""
    try:
        return call(*args)
    except (CorruptionError, ValueError) as error:
        return type(error)


@st.composite
def damaged_payloads(draw: st.DrawFn) -> bytes:
    """Random bytes, or valid records with a few changed bytes, which reach later checks."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=80))
    fields = draw(st.lists(st.sampled_from(TRICKY[:6]), min_size=1, max_size=4))
    payload = bytearray(payload_of(*((7, n, f[1], f[2]) for n, f in enumerate(fields))))
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload)


@given(
    payload=damaged_payloads(),
    position=st.just(0) | st.integers(-1, 90),
    count=st.integers(-1, 6),
    base=st.sampled_from([0, 7, INT64_MAX - 1, INT64_MAX, -1]),
    shift=st.sampled_from([0, -1, 2**40, INT64_MAX, -(2**63)]),
    capacity=st.integers(1, 4),
)
@settings(max_examples=600, deadline=None)
def test_both_implementations_agree_on_any_bytes(
    payload: bytes, position: int, count: int, base: int, shift: int, capacity: int
) -> None:
    modules = [implementation(name) for name in NAMES]
    tables = [table(each, capacity) for each in modules]
    known = payload_of((0, 3, b"key", b"v"), (0, 4, b"", b"v"))
    steps: list[list[object]] = []
    for each, made in zip(modules, tables, strict=True):
        steps.append(
            [
                outcome(made.put, known, 0, 2, 0),
                outcome(made.put, payload, position, count, base),
                len(made),
                outcome(made.select, payload, position, count, base, False),
                outcome(made.select, payload, position, count, base, True),
                outcome(each.shift_times, payload, count, shift),
            ]
        )
    assert steps[0] == steps[1]
