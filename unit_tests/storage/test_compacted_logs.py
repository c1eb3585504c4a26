"""Tests of gaps in a log: those that compaction may have left, and those that are damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

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
