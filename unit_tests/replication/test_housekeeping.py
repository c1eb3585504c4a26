"""The chores of the logs come again and again, survive a failing disk, and end with the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from pybroker.clock import SystemClock
from pybroker.errors import StorageError
from pybroker.replication.housekeeping import Housekeeping, Intervals
from pybroker.storage.manager import LogManager
from unit_tests.handlers.bench import ImmediateBlocking
from unit_tests.replication.vocabulary import Replicas, facts

OFTEN = Intervals(**{field.name: 1 for field in fields(Intervals)})


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
        clock=SystemClock(),
        intervals=OFTEN,
    )


async def test_the_high_watermarks_are_written_down(replicas: Replicas) -> None:
    await replicas.told(facts())
    replicas.append()
    blocking = ImmediateBlocking()
    housekeeping = keeping(replicas, blocking)
    gate = blocking.hold()
    housekeeping.start()
    await asyncio.wait_for(gate.reached.wait(), 30)
    gate.open.set()
    checkpoint = replicas.home / "replication-offset-checkpoint"
    async with asyncio.timeout(30):
        while "t 0 1" not in (checkpoint.read_text() if checkpoint.exists() else ""):
            await asyncio.wait_for(blocking.hold_and_pass(), 30)
    await housekeeping.stop()


async def test_a_chore_that_fails_is_done_again(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = asyncio.Semaphore(0)

    def fail(self: LogManager, high_watermarks: object) -> None:
        calls.release()
        raise StorageError("the disk is on fire")

    monkeypatch.setattr(LogManager, "write_checkpoints", fail)
    housekeeping = keeping(replicas, ImmediateBlocking())
    housekeeping.start()
    for _ in range(3):
        await asyncio.wait_for(calls.acquire(), 30)
    await housekeeping.stop()
    monkeypatch.undo()
    assert "the disk is on fire" in caplog.text


async def test_the_end_waits_for_a_chore_that_is_under_way(replicas: Replicas) -> None:
    blocking = ImmediateBlocking()
    housekeeping = keeping(replicas, blocking)
    gate = blocking.hold()
    housekeeping.start()
    await asyncio.wait_for(gate.reached.wait(), 30)
    stopping = asyncio.create_task(housekeeping.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    gate.open.set()
    await asyncio.wait_for(stopping, 30)
    await housekeeping.stop()
