"""Tests of the counted records of ranges: the count is compared with later logs of every shape, and
with a model of single offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.client.ranges import counts as counts_module
from pybroker.client.ranges.counts import CountCheck, Difference, Tally
from pybroker.client.ranges.model import DIGEST_END, Counted, PartitionRange
from pybroker.errors import BrokerError, CorruptionError
from pybroker.records.batch import read_header
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from unit_tests.client.compaction import compacted
from unit_tests.records.vocabulary import around, changed

Shape = tuple[int, int, frozenset[int]]
"""A batch: its first offset, its number of offsets, and which of them have records."""

codecs = st.sampled_from((Codec.NONE, Codec.GZIP))


def batch_of(shape: Shape, codec: Codec = Codec.NONE) -> bytes:
    first, size, records = shape
    builder = BatchBuilder()
    for offset in range(first, first + size):
        builder.append(0, b"%d" % offset, b"v")
    whole = bytes(changed(builder.build(), base_offset=first))
    if len(records) == size and codec == Codec.NONE:
        return whole
    return compacted(whole, records.__contains__, codec)


@st.composite
def logs(draw: st.DrawFn) -> list[Shape]:
    """Generate logs of whole batches, with gaps between some of them."""
    found: list[Shape] = []
    place = draw(st.sampled_from((0, 5, 70_000, 2**40)))
    for _ in range(draw(st.integers(1, 12))):
        place += draw(st.sampled_from((0, 0, 0, 3)))
        size = draw(st.integers(1, 6))
        found.append((place, size, frozenset(range(place, place + size))))
        place += size
    return found


@st.composite
def states(draw: st.DrawFn, log: list[Shape]) -> list[Shape]:
    """Generate the states of a log after compaction: with fewer records, and with empty batches
    removed or kept."""
    offsets = sorted(offset for _, _, records in log for offset in records)
    gone = draw(st.sets(st.sampled_from(offsets), max_size=5))
    left = [(first, size, records - gone) for first, size, records in log]
    keeps_empty = draw(st.booleans())
    return [shape for shape in left if keeps_empty or shape[2]]


def offsets_in(log: Iterable[Shape], first: int, beyond: int) -> set[int]:
    return {offset for _, _, records in log for offset in records if first <= offset < beyond}


def digest(offsets: Iterable[int]) -> int:
    return sum(pow(counts_module.BASE, offset, DIGEST_END) for offset in offsets) % DIGEST_END


def model(log: list[Shape], edges: list[int]) -> list[Counted]:
    return [
        Counted(first, beyond, len(found), digest(found))
        for first, beyond in pairwise(edges)
        for found in [offsets_in(log, first, beyond)]
    ]


@st.composite
def edges_of(draw: st.DrawFn, log: list[Shape]) -> list[int]:
    """Generate the edges of stretches, at any offset, even inside of batches."""
    low, high = log[0][0], log[-1][0] + log[-1][1]
    return sorted(draw(st.sets(st.integers(low, high), min_size=2, max_size=6)))


@given(st.data(), logs(), codecs)
def test_a_tally_knows_number_and_digest_of_all_offsets(
    data: st.DataObject, log: list[Shape], codec: Codec
) -> None:
    state = data.draw(states(log), "state")
    tally, edges = Tally(), data.draw(edges_of(log), "edges")
    for expected in model(state, edges):
        for shape in state:
            batch = batch_of(shape, codec)
            tally.add(read_header(batch), batch, expected.first, expected.beyond)
        assert tally.take() == (expected.records, expected.digest)


@given(st.data(), logs(), codecs)
def test_a_stretch_is_reported_if_and_only_if_its_offsets_differ(
    data: st.DataObject, log: list[Shape], codec: Codec
) -> None:
    """Neither of the two logs has to be a later state of the other, because another replica may
    lead."""
    before, now = data.draw(states(log), "before"), data.draw(states(log), "now")
    edges = data.draw(edges_of(log), "edges")
    counts = model(before, edges)
    check, told = CountCheck(counts), []
    for shape in now:
        if shape[0] >= edges[-1]:
            break
        if shape[0] + shape[1] > edges[0]:
            batch = batch_of(shape, codec)
            check.add(read_header(batch), batch, edges[0])
            told += check.passed(min(shape[0] + shape[1], edges[-1]))
    told += check.passed(edges[-1])
    expected = [
        Difference(counted, len(found))
        for counted in counts
        for found in [offsets_in(now, counted.first, counted.beyond)]
        if found != offsets_in(before, counted.first, counted.beyond)
    ]
    assert told == expected


def test_equal_numbers_sums_and_squares_are_not_enough() -> None:
    """The offsets {0, 4, 5} and {1, 2, 6} have the same number, the same sum and the same sum of
    squares."""
    (counted,) = model([(0, 7, frozenset({0, 4, 5}))], [0, 7])
    check = CountCheck([counted])
    batch = batch_of((0, 7, frozenset({1, 2, 6})))
    check.add(read_header(batch), batch, 0)
    assert check.passed(7) == [Difference(counted, 3)]


def test_records_far_apart_in_a_batch_are_counted() -> None:
    batch = compacted(bytes(changed(batch_of((0, 3, frozenset(range(3)))))), {0, 2}.__contains__)
    wide = bytes(changed(batch, last_offset_delta=200_000))
    tally = Tally()
    tally.add(read_header(wide), wide, 0, 300_000)
    assert tally.take() == (2, digest((0, 2)))
    assert counts_module._sum_of_powers((3, 200_000)) == digest((3,)) + digest((200_000,))


def without_columns(**_: bool) -> Iterator[ModuleType]:
    raise ImportError


def test_without_columns_records_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "ColumnBuilder", without_columns)
    batch = batch_of((10, 6, frozenset({11, 12, 15})))
    tally = Tally()
    tally.add(read_header(batch), batch, 12, 16)
    assert tally.take() == (2, digest((12, 15)))


def test_a_batch_that_cannot_be_decoded_is_not_counted() -> None:
    for batch in (
        around(b"\xff" * 9, 2, last_offset_delta=5),
        around(b"nothing", 2, last_offset_delta=5, attributes=int(Codec.GZIP)),
    ):
        with pytest.raises((CorruptionError, BrokerError)):
            Tally().add(read_header(batch), bytes(batch), 0, 6)


def test_a_part_of_a_range_has_the_stretches_inside() -> None:
    one, two, three = (Counted(place, place + 10, 5, place) for place in (0, 10, 20))
    whole = PartitionRange("t", 0, 0, 30, "", 7, 0, (one, two, three))
    assert whole.part(10, 30) == PartitionRange("t", 0, 10, 30, "", 7, 0, (two, three))
    assert whole.part(5, 25).counts == (two,)
