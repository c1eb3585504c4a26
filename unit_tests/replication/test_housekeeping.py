"""Tests of the periodic duties of the logs: they repeat, they continue after a disk failure, and
they end with the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pybroker.clock import SystemClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StorageError
from pybroker.model import TopicPartition
from pybroker.replication.housekeeping import Housekeeping
from pybroker.storage.manager import LogManager
from unit_tests.handlers.bench import ImmediateBlocking
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S, in_time
from unit_tests.replication.vocabulary import Replicas, facts

OFTEN = BrokerConfig(
    replica_high_watermark_checkpoint_interval_ms=1, log_retention_check_interval_ms=1
)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    opened = Replicas(tmp_path)
    yield opened
    opened.logs.shutdown({})


def keeping(replicas: Replicas, blocking: ImmediateBlocking) -> Housekeeping:
    return Housekeeping(
        logs=replicas.logs,
        replicas=replicas.manager,
        blocking=blocking,
        new_cleaner_thread=ImmediateBlocking,
        clock=SystemClock(),
        config=lambda: OFTEN,
        flush_check_ms=1,
    )


async def test_the_high_watermarks_are_checkpointed(replicas: Replicas) -> None:
    await replicas.told(facts())
    replicas.append()
    blocking = ImmediateBlocking()
    housekeeping = keeping(replicas, blocking)
    gate = blocking.hold()
    housekeeping.start()
    await in_time(gate.reached.wait())
    gate.open.set()
    checkpoint = replicas.home / "replication-offset-checkpoint"
    async with asyncio.timeout(PATIENCE_S):
        while "t 0 1" not in (checkpoint.read_text() if checkpoint.exists() else ""):
            await in_time(blocking.hold_and_pass())
    await housekeeping.stop()


async def test_the_duties_of_idle_logs_use_no_thread(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    retention_began = asyncio.Semaphore(0)
    high_watermarks = replicas.manager.high_watermarks

    def noted() -> Mapping[TopicPartition, int]:
        retention_began.release()
        return high_watermarks()

    monkeypatch.setattr(replicas.manager, "high_watermarks", noted)
    await replicas.told(facts())
    replicas.append()
    blocking = ImmediateBlocking()
    housekeeping = keeping(replicas, blocking)
    housekeeping.start()
    async with asyncio.timeout(PATIENCE_S):
        done = None
        while done != len(blocking.done):
            done = len(blocking.done)
            for _ in range(10):  # the other duties are due as often
                await retention_began.acquire()
    assert {"flush_idle", "write_checkpoints"} <= set(blocking.done)
    replicas.append()
    await in_time(blocking.hold_and_pass())
    await housekeeping.stop()


async def test_a_failed_duty_is_repeated(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await replicas.told(facts())
    replicas.append()
    calls = asyncio.Semaphore(0)

    def fail(self: LogManager, high_watermarks: object) -> None:
        calls.release()
        raise StorageError("the disk is on fire")

    monkeypatch.setattr(LogManager, "write_checkpoints", fail)
    housekeeping = keeping(replicas, ImmediateBlocking())
    housekeeping.start()
    for _ in range(3):
        await in_time(calls.acquire())
    await housekeeping.stop()
    monkeypatch.undo()
    assert "the disk is on fire" in caplog.text


async def test_stop_waits_for_a_running_duty(replicas: Replicas) -> None:
    await replicas.told(facts())
    replicas.append()
    blocking = ImmediateBlocking()
    housekeeping = keeping(replicas, blocking)
    gate = blocking.hold()
    housekeeping.start()
    await in_time(gate.reached.wait())
    stopping = asyncio.create_task(housekeeping.stop())
    await idle()
    assert not stopping.done()
    gate.open.set()
    await in_time(stopping)
    await housekeeping.stop()
