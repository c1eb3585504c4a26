"""Tests of the order in which the scrubber searches logs, and the cost of choosing them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.model import TopicPartition
from pybroker.replication import scrubber as scrubber_module
from pybroker.replication.scrubber import Scrubber
from pybroker.storage.log import Log
from pybroker.storage.manager import LogManager
from unit_tests.patience import until
from unit_tests.replication.vocabulary import T0, Replicas, facts

MANY = [TopicPartition("t", number) for number in range(40)]
EMPTY, NEW = TopicPartition("empty", 0), TopicPartition("z", 0)
INTERVAL_S = 0.1
WEEK_S = 7 * 86_400.0


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[Replicas]:
    opened = Replicas(tmp_path)
    await opened.told(*(facts(key) for key in (*MANY, EMPTY, NEW)))
    for key in MANY:
        opened.append(key=key)
    yield opened
    opened.logs.shutdown({})


def scrubbing(replicas: Replicas, interval_s: float = INTERVAL_S) -> Scrubber:
    return Scrubber(
        logs=replicas.logs,
        replicas=replicas.manager,
        blocking=replicas.manager._blocking,
        clock=replicas.clock,
        bytes_per_second=2**40,
        interval_s=interval_s,
        found=lambda key, damage: None,
    )


async def test_the_choice_looks_only_at_logs_that_changed_or_are_due(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: set[TopicPartition] = set()
    find = LogManager.log

    def noted(logs: LogManager, partition: TopicPartition) -> Log | None:
        looked_at.add(partition)
        return find(logs, partition)

    monkeypatch.setattr(LogManager, "log", noted)
    scrubber = scrubbing(replicas, WEEK_S)
    assert scrubber._due() == MANY
    for key in MANY:
        scrubber._checked(key)
    assert scrubber._due() == []  # takes the notes of the role changes and appends
    looked_at.clear()
    assert scrubber._due() == []
    assert looked_at == set()
    replicas.append(key=NEW)
    looked_at.clear()
    assert scrubber._due() == [NEW]
    assert looked_at == {NEW}
    scrubber._checked(NEW)
    replicas.clock.advance(WEEK_S)
    assert scrubber._due() == [*MANY, NEW]


async def test_a_log_that_was_emptied_is_checked_after_its_next_append(replicas: Replicas) -> None:
    scrubber = scrubbing(replicas)
    for key in scrubber._due():
        scrubber._checked(key)
    await replicas.told(facts(T0, leader=2, epoch=1))
    replicas.partition(T0).start_over(7)
    replicas.clock.advance(INTERVAL_S)
    assert scrubber._due() == MANY[1:]
    await replicas.told(facts(T0, epoch=2))
    replicas.append(key=T0)
    assert scrubber._due()[0] == T0


async def test_the_first_check_of_all_logs_after_a_start_has_no_pauses(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the scrubber paused between the logs, it would check the last of 40 logs half a week after
    the start. The test would then fail by the time limit of `until`."""
    monkeypatch.setattr(scrubber_module, "_PAUSE_S", WEEK_S)
    scrubber = scrubbing(replicas, WEEK_S)
    scrubber.start()
    await until(lambda: len(scrubber._looked_at) == len(MANY))
    replicas.clock.advance(WEEK_S)
    assert len(scrubber._due()) == len(MANY)
    await scrubber.stop()


async def test_logs_come_in_the_order_of_their_last_search(replicas: Replicas) -> None:
    scrubber = scrubbing(replicas)
    assert scrubber._due() == MANY
    for key in reversed(MANY):
        scrubber._checked(key)
        replicas.clock.advance(1.0)
    assert scrubber._due() == list(reversed(MANY))
    scrubber._checked(T0)
    assert scrubber._due() == list(reversed(MANY))[:-1]
    replicas.append(key=NEW)
    assert scrubber._due()[0] == NEW


async def test_a_deleted_log_is_forgotten(replicas: Replicas) -> None:
    scrubber = scrubbing(replicas)
    scrubber._looked_at = dict.fromkeys(MANY, replicas.clock.monotonic())
    await replicas.stopped(T0, delete=True)
    assert scrubber._due() == []
    assert T0 not in scrubber._looked_at
