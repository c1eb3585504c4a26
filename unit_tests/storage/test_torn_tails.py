"""Tests of the distinction between a torn tail of a killed broker and damage at the end of a
log."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from unit_tests.storage.batches import batch, stamped
from unit_tests.storage.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("at", [0, 6, 7, 8, 9, 10, 11, 16])
@pytest.mark.parametrize("torn_bytes", [0, 5, 8, 30, 65])
def test_a_flipped_bit_outside_the_checksum_of_the_last_batch_is_damage(
    bench: Bench, at: int, torn_bytes: int
) -> None:
    """Within one boot, the batch is damaged even if a torn tail follows."""
    bench.append(1, 1)
    bench.flip_bit(1, at)
    bench.add_tail(stamped(batch(1), 2)[:torn_bytes])
    bench.crash(same_boot=True)
    assert bench.log.damage is not None
    assert bench.log.damage.offset == 1
    assert bench.offsets_before_the_damage() == [0]


def test_any_prefix_of_a_batch_is_a_torn_tail(bench: Bench) -> None:
    whole = batch(3, value=b"many values" * 3)
    for length in range(1, len(whole)):
        bench.append(1)
        end = bench.log.log_end_offset
        bench.add_tail(stamped(whole, end)[:length])
        bench.crash(same_boot=True)
        assert (bench.log.damage, bench.cut_bytes) == (None, length)
        assert bench.log.log_end_offset == end


def test_a_gap_before_the_last_batch_may_come_from_compaction(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(cleanup_policy=("compact",)))
    bench.append(1)
    bench.add_tail(stamped(batch(1), 2))
    bench.crash(same_boot=True)
    assert bench.log.damage is None
