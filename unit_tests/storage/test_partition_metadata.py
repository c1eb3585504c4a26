"""Tests that the topic id of a log is durable before its records, so that a recreated topic does
not get the log of the deleted one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from pybroker.errors import ErrorCode
from pybroker.records.batch import read_header
from pybroker.storage.log import Log
from pybroker.storage.manager import LogManager
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from unit_tests.storage.batches import batch
from unit_tests.storage.bench import refused
from unit_tests.storage.test_manager import SMALL, TOPIC_ID, A, Host

OTHER_ID = uuid.UUID(int=7)


class SimulatedHost(Host):
    """A host that keeps only durable bytes."""

    def __init__(self) -> None:
        super().__init__(Path("/"))
        self.simulated = SimDisk(Environment("1"), "m")
        self.simulated.writes_back = False
        self.disk = self.view = DiskView(self.simulated)

    def die(self) -> LogManager:
        """Lose power, and start the host again."""
        self.view.end()
        self.disk = self.view = DiskView(self.simulated)
        return self.start()

    def lose_power(self) -> LogManager:
        self.simulated.lose_power()
        self.boot += "'"
        return self.die()


def put(log: Log) -> None:
    data = batch(1)
    log.append(data, read_header(data), leader_epoch=0, now_ms=0)


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("begins", [False, True])
def test_records_of_a_deleted_topic_are_not_served_for_a_recreated_one(
    is_killed: bool, begins: bool
) -> None:
    host = SimulatedHost()
    manager = host.start()
    log = manager.create(A, SMALL, TOPIC_ID)
    if is_killed:
        manager = host.die()
        log = manager.create(A, SMALL, TOPIC_ID)
    if begins:
        log.begin_epoch(0, 0)
        log.persist_epochs()
    put(log)
    log.flush()
    manager = host.lose_power()
    with refused(ErrorCode.INCONSISTENT_TOPIC_ID):
        manager.create(A, SMALL, OTHER_ID)
    assert manager.create(A, SMALL, TOPIC_ID).log_end_offset == 1


def test_the_topic_id_needs_no_second_sync() -> None:
    host = SimulatedHost()
    log = host.start().create(A, SMALL, TOPIC_ID)
    assert log.epoch_file.changed
    put(log)
    assert not log.epoch_file.changed
