"""Tests of damage that is found when a log is opened, in files that recovery does not check."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from unit_tests.storage.bench import Bench


@pytest.mark.parametrize("number", (0, 1))
@pytest.mark.parametrize("how", ("killed", "without power", "closed"))
def test_a_damaged_header_below_the_recovery_point_does_not_prevent_the_start(
    tmp_path: Path, how: str, number: int
) -> None:
    """Recovery does not check the header, but a rebuild of indexes or leader epochs reads it."""
    bench = Bench(tmp_path, LogConfig(segment_bytes=1000, index_interval_bytes=200))
    bench.append(*[1] * 30)
    if how == "closed":
        bench.close()
        (bench.path / "leader-epoch-checkpoint").unlink()
    damaged = bench.segment(number)
    damaged.with_suffix(".index").unlink()
    base = int(damaged.stem)
    bench.flip_bit(base, at=11)
    before = damaged.read_bytes()
    bench.open(clean=how == "closed", recovery_point=30, same_boot=how == "killed")
    assert bench.log.damage is not None
    assert bench.log.damage.offset == base
    assert damaged.read_bytes() == before


@pytest.mark.parametrize("same_boot", (False, True))
def test_a_corrupt_offset_of_the_last_batch_of_a_closed_log_is_damage(
    tmp_path: Path, same_boot: bool
) -> None:
    """The checkpoint of a clean stop has the log end."""
    bench = Bench(tmp_path)
    bench.append(1, 1, 1)
    bench.close()
    bench.flip_bit(2, at=6)
    before = bench.segment().read_bytes()
    bench.open(clean=True, recovery_point=3, same_boot=same_boot)
    assert bench.log.damage is not None
    assert bench.log.damage.offset == 2
    assert bench.segment().read_bytes() == before


def test_a_corrupt_offset_of_the_last_batch_of_a_segment_is_damage_there(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(segment_bytes=200))
    bench.append(*[1] * 5)
    bench.flip_bit(1, at=6)
    bench.crash()
    assert bench.log.damage is not None
    assert bench.log.damage.offset == 1


def test_a_gap_before_the_last_batch_of_a_compacted_log_is_no_damage(tmp_path: Path) -> None:
    bench = Bench(tmp_path, LogConfig(cleanup_policy=("compact",)))
    bench.append(1, 1, 1)
    bench.flip_bit(2, at=6)
    bench.crash()
    assert bench.log.damage is None
    assert bench.log.log_end_offset > 3
