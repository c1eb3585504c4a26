"""What is left where two things that belong together are done one after the other: a process that
ends in between, power that is lost, another thread."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.model import TopicPartition
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from unit_tests.storage.bench import Bench
from unit_tests.storage.test_manager import A, Host, existing, fill, make

TINY = LogConfig(segment_bytes=400, index_interval_bytes=0, retention_ms=1000)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.release()


def restarted(log: Log) -> None:
    log.truncate_fully_and_start_at(0)


def cut(log: Log) -> None:
    log.truncate_to(5)


@pytest.mark.parametrize("change", [restarted, cut])
def test_the_log_start_of_what_is_cut_does_not_come_back(
    host: Host, change: Callable[[Log], None]
) -> None:
    """A leader that was elected uncleanly has less than what was deleted here. The next checkpoint
    may be far: the disk is full, or the process ends."""
    manager = host.start()
    log = make(manager, count=20)
    log.advance_log_start(15)
    manager.write_checkpoints({A: 20})
    change(log)
    start = log.log_start_offset
    fill(log, 20)
    assert existing(host.kill()).log_start_offset == start


def test_what_was_known_of_a_longer_log_is_forgotten_at_the_start(host: Host) -> None:
    """Its end was lost with the power. The next one to look may come before a checkpoint."""
    manager = host.start()
    log = make(manager, count=5)
    log.flush()
    manager.write_checkpoints({A: 5})
    size = log.segments.active.size
    fill(log, 15)
    log.advance_log_start(15)
    manager._directories.all[0].log_starts.write({A: 15})
    manager._directories.all[0].high_watermarks.write({A: 15})
    path = Path(log.segments.active.path)
    assert log.segment_count > 1
    for later in sorted(path.parent.glob("*.log"))[1:]:
        later.unlink()
    first = sorted(path.parent.glob("*.log"))[0]
    first.write_bytes(first.read_bytes()[:size])
    manager = host.lose_power()
    log = existing(manager)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    manager.record_incarnation(1)
    fill(log, 15)
    manager = host.kill()
    assert existing(manager).log_start_offset == 5
    assert manager.high_watermark_checkpoint(A) <= 5


@pytest.mark.parametrize("change", [restarted, cut])
def test_a_log_that_is_made_durable_while_it_is_cut_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Log], None]
) -> None:
    """A thread that flushes finds files renamed under its hands, or waits."""
    bench = Bench(tmp_path, TINY)
    bench.append(*[1] * 30)
    assert bench.log.segment_count > 3
    real = bench.disk.rename
    tried: list[str] = []

    def rename(old: str, new: str) -> None:
        real(old, new)
        if not tried:
            tried.append(old)
            thread = threading.Thread(target=bench.log.flush)
            thread.start()
            thread.join(0.2)
            threads.append(thread)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(bench.disk, "rename", rename)
    change(bench.log)
    threads[0].join()
    assert (tried != [], bench.failures, bench.log.failure) == (True, [], None)


@pytest.mark.parametrize("change", [restarted, cut])
def test_what_is_made_durable_right_before_a_cut_does_not_count(
    tmp_path: Path, change: Callable[[Log], None]
) -> None:
    """Checkpoints are taken in between: they told of records that were gone when the broker was
    killed, and the log was called damaged."""
    bench = Bench(tmp_path, TINY)
    bench.append(*[1] * 30)
    told: list[tuple[int, int]] = []

    def lowering(partition: TopicPartition, offset: int) -> None:
        bench.log.flush()
        told.append((offset, bench.log.recovery_point))

    bench.owner = dataclasses.replace(bench.owner, lowering=lowering)
    bench.crash()
    change(bench.log)
    assert told and all(point <= offset for offset, point in told)
    bench.log.flush()
    assert bench.log.recovery_point == bench.log.log_end_offset
