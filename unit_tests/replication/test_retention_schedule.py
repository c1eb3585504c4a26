"""Retention looks only at logs that changed, and at logs with a segment that may be too old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.config.broker_config import BrokerConfig
from pybroker.model import TopicPartition
from pybroker.replication.housekeeping import Housekeeping
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager
from pybroker.storage.retention_schedule import LOOK_MS_MAX
from unit_tests.handlers.bench import ImmediateBlocking
from unit_tests.replication.vocabulary import T0, T1, Replicas, facts

MANY = [TopicPartition("many", number) for number in range(40)]
AGE_S = 600.0
CONFIG = LogConfig(retention_ms=int(AGE_S * 1000))


class Retention:
    """The retention of one broker, and the logs at which its last run has looked."""

    def __init__(self, replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replicas = replicas
        self._looked_at: list[TopicPartition] = []
        run_retention = LogManager.run_retention

        def noting(logs: LogManager, now_ms: int, *arguments: object) -> int:
            keys = arguments[-1]
            assert isinstance(keys, list)
            self._looked_at += keys
            return run_retention(logs, now_ms, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(LogManager, "run_retention", noting)
        self._housekeeping = Housekeeping(
            logs=replicas.logs,
            replicas=replicas.manager,
            blocking=replicas.manager._blocking,
            new_cleaner_thread=ImmediateBlocking,
            clock=replicas.clock,
            config=BrokerConfig,
        )

    async def run(self) -> list[TopicPartition]:
        self._looked_at.clear()
        await self._housekeeping._retain()
        return sorted(self._looked_at)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    opened = Replicas(tmp_path, CONFIG)
    yield opened
    opened.logs.shutdown({})


@pytest.fixture
async def retention(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> Retention:
    await replicas.told(*(facts(key) for key in (T0, T1, *MANY)))
    replicas.append()
    found = Retention(replicas, monkeypatch)
    assert await found.run() == [*MANY, T0, T1]
    return found


async def test_retention_does_not_look_at_quiet_logs(retention: Retention) -> None:
    assert await retention.run() == []
    retention.replicas.append(key=MANY[7])
    assert await retention.run() == [MANY[7]]
    assert await retention.run() == []


async def test_a_segment_is_deleted_when_it_is_too_old(retention: Retention) -> None:
    clock, log = retention.replicas.clock, retention.replicas.partition().log
    clock.advance(AGE_S - 1)
    assert await retention.run() == []
    clock.advance(2)
    assert await retention.run() == [T0]
    assert log.log_start_offset == log.log_end_offset == 1


async def test_a_record_that_is_not_committed_yet_is_deleted_later(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replicas.told(facts(isr=(1, 2)))
    replicas.append()
    retention = Retention(replicas, monkeypatch)
    replicas.clock.advance(AGE_S + 1)
    for _ in range(3):
        assert await retention.run() == [T0]
        assert replicas.partition().log.log_start_offset == 0
    await replicas.told(facts(epoch=1))
    assert replicas.partition().high_watermark == 1
    await retention.run()
    assert replicas.partition().log.log_start_offset == 1


async def test_a_new_configuration_lets_retention_look_at_the_log(retention: Retention) -> None:
    retention.replicas.append()
    assert await retention.run() == [T0]
    retention.replicas.config = replace(CONFIG, retention_bytes=0)
    await retention.replicas.manager.reconfigure(["t"])
    assert await retention.run() == [T0, T1]
    assert retention.replicas.partition().log.log_start_offset == 2


async def test_a_log_that_the_cleaner_reads_is_looked_at_again(retention: Retention) -> None:
    log = retention.replicas.partition().log
    retention.replicas.clock.advance(AGE_S + 1)
    log.segments.are_pinned = True
    assert await retention.run() == [T0]
    log.segments.are_pinned = False
    assert await retention.run() == [T0]
    assert log.log_start_offset == 1


async def test_retention_looks_at_each_log_once_an_hour(retention: Retention) -> None:
    retention.replicas.clock.advance(LOOK_MS_MAX / 1000)
    assert await retention.run() == [*MANY, T0, T1]


async def test_a_deleted_log_is_forgotten(retention: Retention) -> None:
    await retention.replicas.stopped(T0, delete=True)
    retention.replicas.clock.advance(LOOK_MS_MAX / 1000)
    assert await retention.run() == [*MANY, T1]
