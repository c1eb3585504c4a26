"""Tests that the broker notifies the controller of failed and lost log directories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from pybroker.broker.log_directory_failures import (
    DirectoryFailures,
    is_in_any_isr,
    read_accepted_losses,
)
from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.registry import create_parents, ensure
from pybroker.coordinator.zookeeper.schemas import LogDirEvent, TopicAssignment
from pybroker.errors import StorageError
from pybroker.model import PartitionState, TopicPartition
from pybroker.replication.leadership_yield import LeadershipYield
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.manager import LogManager
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.idle_loop import idle

BROKEN = StorageError("broken")
T0, ALONE = TopicPartition("t", 0), TopicPartition("alone", 0)


class Disks:
    """A stand-in for both LogManager and ReplicaManager, with their log directories."""

    def __init__(self) -> None:
        self.failed_directories: dict[str, StorageError] = {}
        self.lost_directories: list[str] = []
        self.usable_directories = ["/a"]
        self.out_of_service: list[str] = []
        self.fail: Callable[[str, StorageError], None] | None = None
        self.leadership_yield = LeadershipYield(1, ManualClock())

    def listen(self, listener: Callable[[str, StorageError], None]) -> None:
        self.fail = listener

    def directory_failed(self, path: str, error: StorageError) -> None:
        self.out_of_service.append(path)


class Broker:
    def __init__(self) -> None:
        self.disks = Disks()
        self.coord = MemoryCoord(MemoryTree(ManualClock()))
        self.reasons: list[str] = []
        self.failures = DirectoryFailures(
            coord=self.coord,
            broker_id=1,
            logs=cast(LogManager, self.disks),
            replicas=cast(ReplicaManager, self.disks),
            lost=self.reasons.append,
        )

    async def notifications(self) -> int:
        """Return the number of notifications of the controller so far."""
        await idle()
        return len(await self.coord.children(paths.LOG_DIR_EVENTS))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    made = Broker()
    await made.coord.start()
    await create_parents(made.coord)
    yield made
    await made.failures.stop()
    await made.coord.close()


async def test_healthy_directories_cause_no_notification(broker: Broker) -> None:
    broker.failures.start()
    broker.failures.registered()
    assert await broker.notifications() == 0


async def test_a_directory_missing_at_the_start_is_reported_to_the_controller(
    broker: Broker,
) -> None:
    broker.disks.lost_directories = ["/b"]
    broker.failures.start()
    assert await broker.notifications() == 1


@pytest.mark.parametrize(("usable", "ends"), [([], True), (["/a"], False)])
async def test_a_broker_whose_directories_all_failed_before_the_start_ends(
    broker: Broker, usable: list[str], ends: bool
) -> None:
    """The last directory fails during the registration. The broker must not serve without any
    directory."""
    broker.disks.failed_directories = {"/b": BROKEN}
    broker.disks.usable_directories = usable
    broker.failures.start()
    assert bool(broker.reasons) is ends


async def test_a_failed_directory_is_reported_at_once_and_after_each_registration(
    broker: Broker,
) -> None:
    broker.failures.start()
    assert broker.disks.fail is not None
    broker.disks.failed_directories["/b"] = BROKEN
    broker.disks.fail("/b", BROKEN)
    assert await broker.notifications() == 1
    assert broker.disks.out_of_service == ["/b"]
    broker.failures.registered()
    assert await broker.notifications() == 2


async def test_a_replica_that_should_not_lead_is_reported_at_once_and_after_each_registration(
    broker: Broker,
) -> None:
    broker.failures.start()
    broker.disks.leadership_yield.add(T0, "its disk is full")
    broker.disks.leadership_yield.add(T0, "its disk is full")
    assert await broker.notifications() == 1
    name = (await broker.coord.children(paths.LOG_DIR_EVENTS))[0]
    told, _ = await broker.coord.get(f"{paths.LOG_DIR_EVENTS}/{name}")
    assert schemas.decode_log_dir_event("", told) == (1, LogDirEvent.REPLICAS_CHANGED)
    broker.failures.registered()
    assert await broker.notifications() == 2
    broker.disks.leadership_yield.remove(T0)
    assert await broker.notifications() == 3
    broker.failures.registered()
    assert await broker.notifications() == 3


async def stored(coord: MemoryCoord, state: PartitionState) -> None:
    """Store topic t with three replicas, and this state of T0."""
    topic = schemas.encode_topic(TopicAssignment({0: (1, 2, 3)}))
    await coord.create(paths.topic(T0.topic), topic)
    await ensure(coord, paths.partition_state(T0))
    await coord.set(paths.partition_state(T0), schemas.encode_state(state))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (PartitionState(2, 5, (2, 1), 1), True),
        (PartitionState(2, 5, (2,), 1, eligible=(1,)), True),
        (PartitionState(2, 5, (2,), 1), False),
    ],
)
async def test_a_broker_in_the_isr_or_eligible_is_expected_to_have_data(
    broker: Broker, state: PartitionState, expected: bool
) -> None:
    await stored(broker.coord, state)
    assert await is_in_any_isr(broker.coord, 1) is expected


@dataclass
class LostLogs:
    """The logs of a broker after a loss; stands in for the LogManager."""

    gave_up: bool = True
    accepted_losses: frozenset[TopicPartition] = frozenset()
    here: frozenset[TopicPartition] = frozenset()
    failed_directories: dict[str, StorageError] = field(default_factory=dict)
    lost_directories: list[str] = field(default_factory=list)

    def log(self, key: TopicPartition) -> TopicPartition | None:
        return key if key in self.here else None


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (LostLogs(), {T0, ALONE}),
        (LostLogs(gave_up=False), set()),
        (LostLogs(here=frozenset({T0})), {ALONE}),
        (LostLogs(lost_directories=["/b"]), {T0}),
        (LostLogs(failed_directories={"/b": BROKEN}), {T0}),
    ],
)
async def test_an_accepted_loss_covers_the_partitions_without_a_log(
    broker: Broker, logs: LostLogs, expected: set[TopicPartition]
) -> None:
    await stored(broker.coord, PartitionState(1, 5, (1,), 1, eligible=(2,)))
    for name, replicas in (("alone", (1,)), ("others", (2, 3))):
        topic = schemas.encode_topic(TopicAssignment({0: replicas}))
        await broker.coord.create(paths.topic(name), topic)
    assert (await read_accepted_losses(broker.coord, 1, cast(LogManager, logs))).keys() == expected
