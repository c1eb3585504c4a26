"""Tests that a whole broker starts and stops in order, also if one of its components fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from pybroker.background import cancel_and_wait
from pybroker.broker import app
from pybroker.broker.lifecycle import Lifecycle, Step
from pybroker.coordinator.zookeeper import paths
from pybroker.storage.filename import CLEAN_MARK
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, values_of

COMPONENTS = (
    *("log-directories", "logs", "offsets-session", "producer-ids", "transaction-verifier"),
    "group-commit",
    *("configuration", "connections", "registration", "membership", "controller-journal"),
    *(
        "controller",
        "discovery",
        "zookeeper-lease",
        "directory-failures",
        "unhealthy-replicas",
        "full-disks",
    ),
    *("housekeeping", "scrubber", "log-end-reports", "isr-changes", "mover", "fetchers"),
    *("requests", "groups", "transactions", "controlled-shutdown"),
)
"""The components in the order of their start."""
ALREADY_THERE = COMPONENTS[:2]
THE_MARK = COMPONENTS[0]
BEGUN_LATER = (
    *("offsets-session", "producer-ids", "transaction-verifier"),
    *("registration", "fetchers", "controlled-shutdown"),
)
STARTED = [name for name in COMPONENTS if name not in (*ALREADY_THERE, *BEGUN_LATER)]


class Stage:
    """Records the starts and stops of components; one component may fail."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.failing_start = self.failing_stop = ""

    def lifecycle(self) -> Lifecycle:
        stage = self

        class Watched(Lifecycle):
            async def start(self, name: str, start: Step, stop: Step) -> None:
                failing = name == stage.failing_start
                await super().start(name, partial(fail, name) if failing else start, stop)

            def push(self, name: str, stop: Step) -> None:
                stage.started.append(name)
                super().push(name, partial(stage.stop, name, stop))

        return Watched()

    def stop(self, name: str, stop: Step) -> Awaitable[object] | None:
        """Stop a component, unless it is the one that fails."""
        self.stopped.append(name)
        return fail(name) if name == self.failing_stop else stop()

    def forget(self) -> None:
        """Clear the record before the broker starts again."""
        self.started.clear()
        self.stopped.clear()
        self.failing_start = self.failing_stop = ""


def fail(name: str) -> NoReturn:
    raise RuntimeError(name)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    watched = Stage()
    monkeypatch.setattr(app, "Lifecycle", watched.lifecycle)
    before = asyncio.all_tasks()
    yield watched
    await cancel_and_wait(*asyncio.all_tasks() - before)  # tasks of components whose stop failed


async def filled(home: Path) -> Bench:
    """Return a running broker with records that no clean shutdown covers."""
    bench = Bench(home)
    await bench.start()
    await bench.create("t")
    await bench.produce("t", batch(b"a", b"b"))
    assert not (home / CLEAN_MARK).exists()
    return bench


async def assert_nothing_to_recover(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    assert (bench.home / CLEAN_MARK).exists()
    caplog.clear()
    caplog.set_level(logging.INFO, "pybroker.storage")
    async with bench.again() as following:
        assert "logs opened partitions=1 recovered=0" in caplog.messages
        assert values_of(await following.fetch("t", 0)) == [b"a", b"b"]


async def test_broker_stops_in_the_reverse_order_of_its_start(stage: Stage, tmp_path: Path) -> None:
    bench = await filled(tmp_path)
    await bench.stop()
    assert tuple(stage.started) == COMPONENTS
    assert stage.stopped == stage.started[::-1]


async def test_second_stop_does_nothing(stage: Stage, tmp_path: Path) -> None:
    bench = await filled(tmp_path)
    await bench.stop()
    stage.forget()
    await bench.app.stop()
    assert stage.stopped == []


@pytest.mark.parametrize("name", COMPONENTS)
async def test_component_whose_stop_fails_keeps_no_other_from_stopping(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    bench = await filled(tmp_path)
    stage.failing_stop = name
    await bench.stop()
    assert stage.stopped == stage.started[::-1]
    line = f"component failed to stop, stopping the others component={name} error="
    assert line + f"RuntimeError('{name}')" in caplog.messages
    stage.forget()
    if name == THE_MARK:
        assert not (tmp_path / CLEAN_MARK).exists()
        bench.logs.unlock()
    else:
        await assert_nothing_to_recover(bench, caplog)


@pytest.mark.parametrize("name", STARTED)
async def test_start_that_fails_stops_what_had_been_started(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    first = await filled(tmp_path)
    await first.stop()
    stage.forget()
    stage.failing_start = name
    bench, before = first.again(), asyncio.all_tasks()
    with pytest.raises(RuntimeError, match=name):
        await bench.start()
    assert stage.started == list(COMPONENTS[: COMPONENTS.index(name) + 1])
    await bench.stop()
    assert stage.stopped == stage.started[::-1]
    assert asyncio.all_tasks() == before
    assert bench.tree.node(paths.broker(BROKER_ID)) is None
    stage.forget()
    await assert_nothing_to_recover(bench, caplog)
