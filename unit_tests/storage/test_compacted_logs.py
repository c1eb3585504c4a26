"""Tests of gaps in a log: those that compaction may have left, and those that are damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.records.batch import stamp
from pybroker.storage.log_config import LogConfig
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import Bench

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def test_a_gap_between_segments_of_a_compacted_log_is_no_damage(tmp_path: Path) -> None:
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    bench.append(*[1] * 30)
    first = bench.segment(0)
    first.write_bytes(first.read_bytes()[: -len(batch(1))])
    bench.crash()
    assert bench.log.damage is None
    assert bench.log.log_end_offset == 30


@pytest.mark.parametrize("is_durable", [False, True])
def test_records_of_a_compacted_log_lost_in_a_power_loss_are_damage(
    tmp_path: Path, is_durable: bool
) -> None:
    """The power loss removes whole batches from the end of a segment, although the next segment is
    on the disk."""
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    bench.append(*[1] * 30)
    first, second = bench.segment(0), int(bench.segment(1).stem)
    first.write_bytes(first.read_bytes()[: -len(batch(1))])
    bench.open(recovery_point=second if is_durable else second - 2, lost_power=True)
    damage = bench.log.damage
    assert (damage.offset if damage else None) == (None if is_durable else second - 1)
    assert bench.log.log_end_offset == (30 if is_durable else second - 1)


def copy(bench: Bench, *offsets: int) -> None:
    """Append a batch of one record at each of these offsets, as a follower gets it from a leader
    whose log is compacted."""
    for offset in offsets:
        copied = batch()
        stamp(copied, 0, offset, 0)
        bench.log.append_replicated(copied, now_ms=bench.now_ms)


@pytest.mark.parametrize("first", [[], [0]])
def test_batch_far_above_an_empty_segment_begins_a_new_segment(
    tmp_path: Path, first: list[int]
) -> None:
    """The entries of an index have 32 bits for the distance to the segment's base offset."""
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    offsets = [*first, 2**31 + 5, 2**31 + 6, 2**33]
    copy(bench, *offsets)
    assert [int(path.stem) for path in sorted(bench.path.glob("*.log"))] == [0, 2**31 + 5, 2**33]
    assert bench.offsets() == offsets
    bench.reopen()
    assert bench.offsets() == offsets
    bench.crash()
    assert bench.offsets() == offsets
    assert bench.log.damage is None


@pytest.mark.parametrize(("offset", "end"), [(3, 3), (5, 5), (7, 7), (9, 9), (12, 10)])
def test_truncation_in_a_gap_sets_the_log_end(tmp_path: Path, offset: int, end: int) -> None:
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    copy(bench, 0, 2, 5, 9)
    bench.log.truncate_to(offset)
    assert bench.log.log_end_offset == end
    copy(bench, 10)
    assert bench.offsets() == [each for each in (0, 2, 5, 9) if each < offset] + [10]


@pytest.mark.parametrize("how", ["clean stop", "kill", "power loss"])
@pytest.mark.parametrize(("first", "offset", "end"), [(0, 3, 3), (0, 7, 7), (0, 10, 10), (2, 2, 2)])
def test_log_end_in_a_gap_of_the_active_segment_survives_a_restart(
    tmp_path: Path, how: str, first: int, offset: int, end: int
) -> None:
    """The last batch of the log ends below the log end, so the batches do not show it."""
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    offsets = [each for each in (0, 3, 5, 10) if each >= first]
    copy(bench, *offsets)
    bench.log.flush()
    bench.log.truncate_to(offset)
    assert bench.log.log_end_offset == end
    if how == "clean stop":
        bench.reopen()
    else:
        lost = how == "power loss"
        bench.open(recovery_point=end, floor=end, same_boot=not lost, lost_power=lost)
    assert bench.log.log_end_offset == end
    assert bench.log.damage is None
    bench.append(1)
    kept = [each for each in offsets if each < end]
    assert bench.offsets() == [*kept, end]
    bench.log.truncate_to(end)
    assert bench.log.log_end_offset == end
    assert bench.offsets() == kept


@pytest.mark.parametrize("is_clean", [False, True])
def test_truncation_to_an_empty_segment_keeps_the_log_end_at_a_restart(
    tmp_path: Path, is_clean: bool
) -> None:
    """Compaction has removed the last batches before the segment. The log end would fall below the
    high watermark, and a new leader would use offsets of committed records again."""
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    bench.append(*[1] * 30)
    before, end = bench.segment(-2), int(bench.segment().stem)
    before.write_bytes(before.read_bytes()[: -len(batch(1))])
    bench.reopen()
    bench.log.truncate_to(end)
    assert bench.log.log_end_offset == end
    if is_clean:
        bench.reopen()
    else:
        bench.crash(recovery_point=end, floor=end)
    assert bench.log.log_end_offset == end
    assert bench.log.damage is None
    bench.append(1)
    assert bench.offsets() == [*range(end - 1), end]


def test_truncation_removes_a_segment_that_begins_at_the_new_end(tmp_path: Path) -> None:
    """Its name may be durable before the records below it, and would then look like a gap."""
    bench = Bench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    bench.append(*[1] * 30)
    end = int(bench.segment().stem)
    bench.log.truncate_to(end)
    assert bench.log.log_end_offset == end
    assert int(bench.segment().stem) < end
