"""Tests that the producer state of a log survives restarts, truncations and retention."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.errors import ErrorCode
from pybroker.storage.log_config import LogConfig
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import Bench, refused

RESTARTS = ["none", "reopen", "crash"]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, LogConfig(segment_bytes=1000))


def restart(bench: Bench, how: str) -> None:
    if how != "none":
        getattr(bench, how)()


@pytest.mark.parametrize("how", RESTARTS)
def test_a_retry_of_one_of_the_last_five_batches_gets_the_first_response(
    bench: Bench, how: str
) -> None:
    for sequence in range(0, 40, 4):
        bench.put(batch(4, producer=9, sequence=sequence))
    restart(bench, how)
    for sequence in range(20, 40, 4):
        result = bench.put(batch(4, producer=9, sequence=sequence))
        assert result.duplicate
        assert (result.first_offset, result.last_offset) == (sequence, sequence + 3)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        bench.put(batch(4, producer=9, sequence=16))
    assert bench.log.log_end_offset == 40


@pytest.mark.parametrize("how", RESTARTS)
def test_a_gap_is_refused(bench: Bench, how: str) -> None:
    bench.put(batch(4, producer=9, sequence=0))
    restart(bench, how)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        bench.put(batch(producer=9, sequence=5))
    assert bench.put(batch(producer=9, sequence=4)).first_offset == 4


@pytest.mark.parametrize("how", RESTARTS)
def test_an_old_epoch_is_refused(bench: Bench, how: str) -> None:
    bench.put(batch(producer=9, producer_epoch=2, sequence=0))
    restart(bench, how)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        bench.put(batch(producer=9, producer_epoch=1, sequence=1))


@pytest.mark.parametrize("lost", ["one", "all"])
def test_without_a_snapshot_producers_are_read_from_the_log(bench: Bench, lost: str) -> None:
    for sequence in range(30):
        bench.put(batch(producer=9, sequence=sequence))
    bench.close()
    snapshots = sorted(bench.path.glob("*.snapshot"))
    assert len(snapshots) >= 3
    for path in snapshots[-1:] if lost == "one" else snapshots:
        path.write_bytes(b"\x00\x01garbled")
    bench.open(clean=True, recovery_point=30)
    assert bench.put(batch(producer=9, sequence=29)).duplicate
    assert not bench.put(batch(producer=9, sequence=30)).duplicate


def test_the_producer_state_outlives_its_records(bench: Bench) -> None:
    bench.put(batch(producer=9, sequence=0))
    bench.log.roll()
    bench.append(1)
    bench.log.advance_log_start(1)
    bench.log.delete_expired(0, 2)
    bench.reopen()
    assert bench.put(batch(producer=9, sequence=0)).duplicate


def test_old_snapshots_are_removed(bench: Bench) -> None:
    bench.append(*[1] * 100)
    segments = bench.log.segment_count
    bench.close()
    assert len(list(bench.path.glob("*.snapshot"))) <= segments + 2


def test_producers_do_not_expire_by_record_timestamps(bench: Bench) -> None:
    bench.put(batch(producer=9, sequence=0, timestamp=1000))
    assert bench.log.producers.expire(bench.now_ms + 1000, 86_400_000) == 0
    assert bench.log.producers.expire(bench.now_ms + 86_400_000, 86_400_000) == 1


@pytest.mark.parametrize("how", RESTARTS)
def test_producers_do_not_expire_because_of_a_truncation(bench: Bench, how: str) -> None:
    """After a restart and a truncation the log had no time of the last append, so all producers
    expired. A later retry was then appended again."""
    bench.put(batch(producer=9, sequence=0))
    bench.append(1)
    restart(bench, how)
    bench.log.truncate_to(1)
    assert bench.log.producers.expire(bench.now_ms, 86_400_000) == 0
    assert bench.put(batch(producer=9, sequence=0)).duplicate
