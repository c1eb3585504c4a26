"""Tests of transactions in a log: the last stable offset, and the index of aborted transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from unit_tests.storage.batches import batch, marker
from unit_tests.storage.bench import EVERYTHING, Bench

SMALL = LogConfig(segment_bytes=1000)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_last_stable_offset_waits_for_the_marker_to_be_committed(bench: Bench) -> None:
    bench.append(2)
    bench.put(batch(2, producer=9, sequence=0, transactional=True))
    bench.append(1)
    assert bench.log.producers.last_stable_offset(5) == 2
    bench.put(marker(9, commit=True))
    assert not bench.log.producers.decide(5)
    assert bench.log.producers.last_stable_offset(5) == 2
    assert bench.log.producers.decide(6)
    assert bench.log.producers.last_stable_offset(6) == 6


def test_aborted_transactions_are_found_where_they_overlap(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SMALL)
    for producer, commit in [(1, False), (2, True), (3, False)]:
        bench.put(batch(5, producer=producer, sequence=0, transactional=True))
        bench.append(*[1] * 10)
        bench.put(marker(producer, commit=commit))
    for _ in range(2):
        first, third = bench.log.aborted_transactions(0, EVERYTHING)
        assert (first.producer_id, first.first_offset, first.last_offset) == (1, 0, 15)
        assert (third.producer_id, third.first_offset, third.last_offset) == (3, 32, 47)
        assert bench.log.aborted_transactions(0, 10) == [first]
        assert bench.log.aborted_transactions(16, 32) == []
        assert bench.log.aborted_transactions(40, 41) == [third]
        bench.reopen()
    for path in bench.path.glob("*.txnindex"):
        path.unlink()
    bench.crash()
    assert bench.log.aborted_transactions(0, EVERYTHING) == [first, third]


def test_an_open_transaction_survives_a_restart(bench: Bench) -> None:
    bench.put(batch(2, producer=9, sequence=0, transactional=True))
    bench.reopen()
    assert bench.log.producers.last_stable_offset(2) == 0
    bench.put(marker(9, commit=False))
    bench.crash()
    bench.log.producers.decide(3)
    assert bench.log.producers.last_stable_offset(3) == 3


def test_a_reader_that_found_no_aborted_transaction_finds_a_later_one(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.append(1)
    assert bench.log.aborted_transactions(0, EVERYTHING) == []
    bench.put(batch(1, producer=1, sequence=0, transactional=True))
    bench.put(marker(1, commit=False))
    assert [found.producer_id for found in bench.log.aborted_transactions(0, EVERYTHING)] == [1]


@pytest.mark.parametrize("damage", ["torn", "garbled"])
@pytest.mark.parametrize("recovery_point", [0, 6, 9])
def test_damaged_transaction_index_is_rebuilt_from_the_whole_segment(
    tmp_path: Path, damage: str, recovery_point: int
) -> None:
    """The batches below the recovery point count, too."""
    bench = Bench(tmp_path)
    for number in range(3):
        bench.put(batch(producer=7, sequence=number, transactional=True))
        bench.put(batch(producer=8, sequence=number, transactional=True))
        bench.put(marker(7, commit=False))
        if number == 1:
            bench.put(marker(8, commit=True))
    expected = bench.log.aborted_transactions(0, EVERYTHING)
    assert len(expected) == 3
    if damage == "torn":
        path = bench.segment(kind="txnindex")
        path.write_bytes(path.read_bytes()[:-1])
    else:
        bench.garble("txnindex")
    bench.crash(recovery_point=recovery_point)
    assert bench.log.aborted_transactions(0, EVERYTHING) == expected


@pytest.mark.parametrize("recovery_point", [0, 5, 9])
def test_flipped_bit_of_the_transaction_index_is_repaired_after_a_kill(
    tmp_path: Path, recovery_point: int
) -> None:
    """An entry has no checksum, so only the markers in the log show that it is wrong."""
    bench = Bench(tmp_path)
    for number in range(3):
        bench.put(batch(producer=7, sequence=number, transactional=True))
        bench.put(batch(producer=8, sequence=number, transactional=True))
        bench.put(marker(7, commit=False))
    expected = bench.log.aborted_transactions(0, EVERYTHING)
    path = bench.segment(kind="txnindex")
    whole = path.read_bytes()
    for place in range(0, 8 * len(whole), 5):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        bench.crash(recovery_point=recovery_point)
        assert path.read_bytes() == whole
        assert bench.log.aborted_transactions(0, EVERYTHING) == expected


def test_transaction_index_of_a_later_segment_is_repaired_with_transactions_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.put(batch(2, producer=7, sequence=0, transactional=True))
    bench.put(batch(2, producer=8, sequence=0, transactional=True))
    bench.log.roll()
    bench.put(marker(7, commit=False))
    bench.put(marker(8, commit=False))
    expected = bench.log.aborted_transactions(0, EVERYTHING)
    path = bench.segment(kind="txnindex")
    damaged = bytearray(path.read_bytes())
    damaged[9] ^= 1  # the producer id of the first entry
    path.write_bytes(damaged)
    bench.crash(recovery_point=5)
    assert bench.log.aborted_transactions(0, EVERYTHING) == expected


@pytest.mark.parametrize("how", ["reopen", "crash"])
def test_transaction_whose_marker_is_not_committed_stays_undecided_after_a_restart(
    bench: Bench, how: str
) -> None:
    bench.put(batch(2, producer=9, sequence=0, transactional=True))
    bench.put(marker(9, commit=True))
    bench.log.roll()
    bench.append(1)
    getattr(bench, how)()
    producers = bench.log.producers
    producers.decide(2)
    assert producers.last_stable_offset(2) == 0
    producers.decide(3)
    assert producers.last_stable_offset(3) == 3


def test_last_stable_offset_stands_still_anew_after_a_restart(bench: Bench) -> None:
    bench.put(batch(2, producer=9, sequence=0, transactional=True))
    bench.now_ms += 60_000
    assert bench.log.producers.stood_still_ms(bench.now_ms) == 60_000
    bench.reopen()
    assert bench.log.producers.stood_still_ms(bench.now_ms) == 0
