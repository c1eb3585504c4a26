"""Tests of the log cleaner of a broker: its choice of a log, logs that cannot be cleaned, and
its stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from pybroker.clock import SystemClock
from pybroker.compaction import choice, cleaner, offset_map
from pybroker.compaction.choice import Plan
from pybroker.compaction.cleaner import CleanerThread, LogCleaner
from pybroker.compaction.offset_map import ENTRY_BYTES
from pybroker.config.broker_config import BrokerConfig
from pybroker.metrics import CleanerCounters
from pybroker.model import TopicPartition
from pybroker.ports import Clock
from pybroker.records import _pure_key_table
from pybroker.records.batch import read_header
from pybroker.records.builder import BatchBuilder
from pybroker.storage.log import Log
from pybroker.storage.manager import LogManager
from unit_tests.compaction.keyed import COMPACTED
from unit_tests.handlers.bench import ImmediateBlocking
from unit_tests.idle_loop import idle
from unit_tests.patience import until
from unit_tests.storage.batches import FIRST_TIMESTAMP
from unit_tests.storage.test_manager import TOPIC_ID, A, B, Host

T = TypeVar("T")
CONFIG = BrokerConfig(log_cleaner_backoff_ms=1)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    host = Host(tmp_path)
    yield host.start()
    host.release()


def filled(logs: LogManager, partition: TopicPartition, batches: int) -> Log:
    """Return a durable log with this number of batches of one key. All batches but the last are in
    closed segments."""
    log = logs.create(partition, COMPACTED, TOPIC_ID)
    for number in range(batches):
        append(log, number)
    log.roll()
    log.flush()
    return log


def append(log: Log, number: int) -> None:
    builder = BatchBuilder()
    builder.append(FIRST_TIMESTAMP + number, b"key", b"%d" % number)
    data = bytearray(builder.build())
    log.append(data, read_header(data), leader_epoch=0, now_ms=FIRST_TIMESTAMP)


@asynccontextmanager
async def cleaning(
    logs: LogManager,
    config: BrokerConfig = CONFIG,
    *,
    new_thread: Callable[[], CleanerThread] = ImmediateBlocking,
    clock: Clock | None = None,
) -> AsyncIterator[LogCleaner]:
    made = LogCleaner(
        logs=logs,
        high_watermark=lambda partition: logs.all()[partition].log_end_offset,
        busy=lambda: frozenset({B}),
        new_thread=new_thread,
        clock=clock or SystemClock(),
        config=lambda: config,
        counters=CleanerCounters(),
    )
    made.start()
    try:
        yield made
    finally:
        await made.stop()


class PausedBlocking(ImmediateBlocking):
    """Runs no work until `gate` is set. `reached` is set when the first work arrives."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.gate = asyncio.Event(), asyncio.Event()

    async def run(self, function: Callable[..., T], *args: object) -> T:
        self.reached.set()
        await self.gate.wait()
        return await super().run(function, *args)


async def test_due_log_is_cleaned_and_its_checkpoint_written(logs: LogManager) -> None:
    log, busy = filled(logs, A, 30), filled(logs, B, 30)
    before = log.size_bytes
    async with cleaning(logs) as running:
        await until(lambda: logs.checkpoints.cleaned_to(A) == 30)
    assert log.size_bytes < before / 5
    assert busy.size_bytes == before, "the log is being truncated"
    counters = running._counters
    assert (counters.passes, counters.uncleanable) == (1, 0)
    assert counters.removed_bytes == before - log.size_bytes


class CountedThread(ImmediateBlocking):
    """A thread that adds itself to `opened`, and removes itself when it is closed."""

    def __init__(self, opened: list[CountedThread]) -> None:
        super().__init__()
        self._opened = opened
        self.given_way = 0
        opened.append(self)

    def give_way(self) -> None:
        self.given_way += 1

    def close(self) -> None:
        self._opened.remove(self)


async def test_each_task_has_one_thread_for_all_steps(logs: LogManager) -> None:
    filled(logs, A, 30)
    opened: list[CountedThread] = []
    config = replace(CONFIG, log_cleaner_threads=2)
    async with cleaning(logs, config, new_thread=lambda: CountedThread(opened)):
        await until(lambda: logs.checkpoints.cleaned_to(A) == 30)
        assert len(opened) == 2
        busy = [each for each in opened if each.done]
        assert len(busy) == 1, "all steps of a pass run in the thread of its task"
        assert {"_advance", "close", "write_cleaned_to"} == set(busy[0].done)
        assert busy[0].given_way > 1, "the thread gives way after each block of batches"
    assert not opened


async def test_counters_show_backlog_and_progress(logs: LogManager) -> None:
    """The first pass stops at its first step. Meanwhile one log is cleaned, and one waits."""
    other = TopicPartition("other", 0)
    sizes = [filled(logs, key, 30).size_bytes for key in (A, other)]
    paused = PausedBlocking()
    async with cleaning(logs, new_thread=lambda: paused) as running:
        counters = running._counters
        await paused.reached.wait()
        assert (counters.due_logs, counters.read_bytes) == (1, 0)
        assert counters.due_bytes == sizes[0] - logs.all()[A].segments.all[-1].size
        assert counters.running_bytes == counters.due_bytes
        paused.gate.set()
        await until(lambda: counters.passes == 2)
        await until(lambda: counters.running_bytes == 0)
    assert (counters.due_logs, counters.due_bytes) == (0, 0)
    assert counters.read_bytes == 2 * sum(sizes), "each dirty byte is read twice"


async def test_log_that_cannot_be_cleaned_rests_while_others_are_cleaned(
    logs: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(logs, A, 30)
    path = Path(log.segments.first.path)
    data = bytearray(path.read_bytes())
    data[64] ^= 1
    path.write_bytes(data)
    other = TopicPartition("other", 0)
    filled(logs, other, 30)
    async with cleaning(logs) as running:
        await until(lambda: logs.checkpoints.cleaned_to(other) == 30)
        await until(lambda: A in running.set_aside)
        assert running._counters.uncleanable == 1
    assert "checksum of the batch at offset 0" in running.set_aside[A].reason
    assert logs.checkpoints.cleaned_to(A) is None
    told = [record for record in caplog.records if "cannot be cleaned" in record.getMessage()]
    assert len(told) == 1


async def test_log_that_is_truncated_at_the_end_of_a_pass_does_not_rest(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(logs, A, 30)
    checkpoints, write = logs.checkpoints, logs.checkpoints.write_cleaned_to

    def truncated_before(log: Log, generation: int, offset: int) -> bool:
        if log.log_end_offset == 30:
            log.truncate_to(29)
        return write(log, generation, offset)

    monkeypatch.setattr(checkpoints, "write_cleaned_to", truncated_before)
    async with cleaning(logs) as running:
        await until(lambda: running._counters.passes or A in running.set_aside)
        assert A not in running.set_aside
    assert log.log_end_offset < 30
    assert (checkpoints.cleaned_to(A) or 0) < 30


async def test_memory_of_the_map_is_limited_by_the_option(logs: LogManager) -> None:
    filled(logs, A, 30)
    few = BrokerConfig(
        log_cleaner_backoff_ms=1,
        log_cleaner_dedupe_buffer_size=2 * ENTRY_BYTES,
        log_cleaner_io_buffer_load_factor=0.5,
    )
    async with cleaning(logs, few):
        await until(lambda: logs.checkpoints.cleaned_to(A) == 30)


class SteppingClock(SystemClock):
    """A clock that goes on by 3 ms at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 0.003
        return self.now_s


async def test_step_in_a_thread_ends_after_5_ms(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pure loops hold the GIL, so the event loop would wait for the end of the step."""
    monkeypatch.setattr(offset_map, "put_batches", _pure_key_table.put_batches)
    monkeypatch.setattr(offset_map, "select_batches", _pure_key_table.select_batches)
    filled(logs, A, 30)
    blocking = ImmediateBlocking()
    async with cleaning(logs, new_thread=lambda: blocking, clock=SteppingClock()):
        await until(lambda: logs.checkpoints.cleaned_to(A) == 30)
    assert blocking.done.count("_advance") >= 2 * 29 / 2


async def test_disabled_cleaner_cleans_nothing(logs: LogManager) -> None:
    log = filled(logs, A, 30)
    before = log.size_bytes
    disabled = BrokerConfig(log_cleaner_backoff_ms=1, log_cleaner_enable=False)
    async with cleaning(logs, disabled):
        await idle()
    assert log.size_bytes == before


async def test_stop_in_mid_pass_leaves_the_log_as_it_was(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "_STEP_BYTES", 1)
    log = filled(logs, A, 30)
    before = log.size_bytes
    slow = BrokerConfig(log_cleaner_backoff_ms=1, log_cleaner_io_max_bytes_per_second=1.0)
    async with cleaning(logs, slow):
        await until(lambda: log.segments.are_pinned)
    assert log.size_bytes == before
    assert not log.segments.are_pinned
    assert not list(Path(log.directory).glob("*.cleaned"))


async def test_choice_looks_only_at_logs_that_changed_or_become_due_with_time(
    logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[TopicPartition] = []
    plan = choice.plan

    def noting(log: Log, cleaned_to: int | None, high_watermark: int, now_ms: int) -> Plan | None:
        looked_at.append(log.topic_partition)
        return plan(log, cleaned_to, high_watermark, now_ms)

    log = filled(logs, A, 30)
    lagging = filled(logs, TopicPartition("lagging", 0), 30)
    logs.set_config(lagging.topic_partition, replace(COMPACTED, min_compaction_lag_ms=2**62))
    async with cleaning(logs) as running:
        await until(lambda: logs.checkpoints.cleaned_to(A) == 30)
        await until(lambda: not running._under_way)
    monkeypatch.setattr(cleaner, "plan", noting)
    assert running._choose() is None
    looked_at.clear()
    for _ in range(3):
        assert running._choose() is None
        assert looked_at == [lagging.topic_partition]
        looked_at.clear()
    append(log, 30)
    assert running._choose() is None
    assert sorted(looked_at) == [lagging.topic_partition, A]
    log.roll()
    log.flush()
    for _ in range(2):
        chosen = running._choose()
        assert chosen is not None and chosen.log is log
