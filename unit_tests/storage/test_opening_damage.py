"""Damage that an opening log comes upon where nothing is checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.storage.log_config import LogConfig
from unit_tests.storage.bench import Bench


@pytest.mark.parametrize("number", (0, 1))
@pytest.mark.parametrize("how", ("killed", "without power", "closed"))
def test_a_damaged_header_below_the_recovery_point_stops_no_start(
    tmp_path: Path, how: str, number: int
) -> None:
    """Recovery does not look there, but who has to walk from header to header comes upon it: to
    make indexes again, or the leader epochs."""
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
