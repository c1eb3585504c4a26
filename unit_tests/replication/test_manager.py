"""Tests of the controller's commands to a broker: the effects of each, and the commands that it
refuses."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import BrokerError, ConnectionLoss, ErrorCode, StorageError
from pybroker.model import NO_TOPIC_ID, Extent, LeaderAndIsr, TopicPartition
from pybroker.storage.log import Log
from pybroker.storage.manager import LogManager
from unit_tests.idle_loop import idle
from unit_tests.replication.vocabulary import ME, T0, T1, Replicas, facts

OTHER_TOPIC = uuid.UUID(int=11)
FOREVER_S = 3600.0


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    opened = Replicas(tmp_path)
    yield opened
    opened.logs.shutdown({})


async def test_replicas_take_the_roles_in_the_command(replicas: Replicas) -> None:
    answers = await replicas.told(facts(T0), facts(T1, leader=2, isr=(2, ME)))
    assert answers == [ErrorCode.NONE, ErrorCode.NONE]
    assert replicas.partition(T0).is_leader
    assert not replicas.partition(T1).is_leader
    assert replicas.refusal(key=T1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert replicas.directories() == ["t-0", "t-1"]
    assert replicas.config_reads == ["t"]


async def test_a_partition_without_a_replica_here_is_refused(replicas: Replicas) -> None:
    answers = await replicas.told(facts(T0, leader=2, isr=(2,)), facts(T1))
    assert answers == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert replicas.refusal(key=T0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replicas.directories() == ["t-1"]


@pytest.mark.parametrize(
    "key",
    [
        TopicPartition("../../outside", 0),
        TopicPartition("..", 0),
        TopicPartition("", 0),
        TopicPartition("a b", 0),
        TopicPartition("x" * 250, 0),
        TopicPartition("t", -4),
    ],
)
async def test_an_invalid_partition_name_gets_no_directory(
    replicas: Replicas, key: TopicPartition
) -> None:
    answers = await replicas.told(facts(key), facts(T1))
    assert answers == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]
    assert replicas.directories() == ["t-1"]


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch", "expected"),
    [
        (4, -1, ErrorCode.STALE_CONTROLLER_EPOCH),
        (5, 99, ErrorCode.STALE_BROKER_EPOCH),
        (9, 99, ErrorCode.STALE_BROKER_EPOCH),
    ],
)
async def test_all_partitions_of_a_stale_command_are_refused(
    replicas: Replicas, controller_epoch: int, broker_epoch: int, expected: ErrorCode
) -> None:
    replicas.manager.broker_epoch = 100
    await replicas.told(facts(T0), controller_epoch=5, broker_epoch=100)
    with pytest.raises(BrokerError) as caught:
        await replicas.told(
            facts(T0, epoch=7),
            facts(T1),
            controller_epoch=controller_epoch,
            broker_epoch=broker_epoch,
        )
    assert caught.value.code is expected
    with pytest.raises(BrokerError) as caught:
        await replicas.stopped(
            delete=True, controller_epoch=controller_epoch, broker_epoch=broker_epoch
        )
    assert caught.value.code is expected
    assert replicas.partition(T0).leader_epoch == 0
    assert replicas.directories() == ["t-0"]
    # The controller epoch of a refused command is not adopted either.
    assert await replicas.told(facts(T1), controller_epoch=5) == [ErrorCode.NONE]


@pytest.mark.parametrize("broker_epoch", [-1, 100, 101])
async def test_an_unknown_or_later_broker_epoch_is_accepted(
    replicas: Replicas, broker_epoch: int
) -> None:
    replicas.manager.broker_epoch = 100
    assert await replicas.told(facts(), broker_epoch=broker_epoch) == [ErrorCode.NONE]


async def test_a_yielding_leader_leads_on_and_answers_storage_error(replicas: Replicas) -> None:
    await replicas.told(facts(isr=(ME, 2)), facts(T1, isr=(ME, 2)))
    replicas.manager.leadership_yield.add(T0, "its disk is full")
    storage = ErrorCode.KAFKA_STORAGE_ERROR
    again = [facts(isr=(ME, 2)), facts(T1, isr=(ME, 2))]
    assert await replicas.told(*again) == [storage, ErrorCode.NONE]
    assert await replicas.told(facts(epoch=1)) == [storage]
    assert replicas.partition().is_leader
    assert replicas.refusal() is ErrorCode.NONE
    assert await replicas.told(facts(leader=2, epoch=2, isr=(2,), replicas=(ME, 2))) == [0]
    assert await replicas.told(facts(epoch=3)) == [storage]
    replicas.manager.leadership_yield.remove(T0)
    assert await replicas.told(facts(epoch=3)) == [ErrorCode.NONE]


async def test_an_older_leader_epoch_is_refused_for_that_partition_only(replicas: Replicas) -> None:
    await replicas.told(facts(T0, epoch=3))
    answers = await replicas.told(facts(T0, epoch=2, leader=2, isr=(2, ME)), facts(T1))
    assert answers == [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.NONE]
    assert replicas.refusal(3) is ErrorCode.NONE


async def test_a_repeated_command_changes_nothing(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=3))
    replicas.append()
    before = replicas.partition()
    waiter = asyncio.create_task(
        replicas.manager.fetches.wait([T0], missing_bytes=1, timeout_s=FOREVER_S)
    )
    await idle()
    assert await replicas.told(facts(epoch=3), controller_epoch=2) == [ErrorCode.NONE]
    await idle()
    assert replicas.partition() is before and not waiter.done()
    assert replicas.partition().log.epoch_end_offset(3) == (3, 1)
    waiter.cancel()


async def test_the_same_epoch_with_another_leader_is_refused(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=3, isr=(ME, 2)))
    answers = await replicas.told(facts(epoch=3, leader=2, isr=(ME, 2)))
    assert answers == [ErrorCode.STALE_CONTROLLER_EPOCH]
    assert replicas.refusal() is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [0, 5])
async def test_an_open_log_of_a_deleted_topic_is_renamed_to_stray(
    replicas: Replicas, epoch: int
) -> None:
    await replicas.told(facts(epoch=0))
    replicas.append(b"of the earlier topic")
    replicas.logs.write_checkpoints(replicas.manager.high_watermarks())
    assert await replicas.told(facts(epoch=epoch, topic_id=OTHER_TOPIC)) == [ErrorCode.NONE]
    assert replicas.partition().log.log_end_offset == 0
    assert replicas.partition().high_watermark == 0
    assert replicas.append().first_offset == 0
    aside = [name for name in replicas.directories() if name != "t-0"]
    assert len(aside) == 1 and aside[0].endswith("-stray")


async def test_a_log_of_a_deleted_topic_on_disk_is_renamed_to_stray(
    replicas: Replicas,
) -> None:
    await replicas.told(facts(epoch=4))
    replicas.append()
    replicas.logs.shutdown(replicas.manager.high_watermarks())
    replicas.open()
    assert await replicas.told(facts(epoch=0, topic_id=OTHER_TOPIC)) == [ErrorCode.NONE]
    assert replicas.partition().log.log_end_offset == 0


async def test_a_command_without_topic_ids_keeps_the_log(
    replicas: Replicas,
) -> None:
    await replicas.told(facts(epoch=0))
    replicas.append()
    answers = await replicas.told(facts(epoch=1, topic_id=NO_TOPIC_ID))
    assert answers == [ErrorCode.NONE]
    assert replicas.partition().log.log_end_offset == 1
    assert replicas.directories() == ["t-0"]


async def test_a_command_with_all_roles_renames_other_logs_to_stray(
    replicas: Replicas,
) -> None:
    await replicas.told(facts(T0), facts(T1))
    replicas.append(key=T1)
    replicas.logs.shutdown(replicas.manager.high_watermarks())
    replicas.open()
    command = LeaderAndIsr(1, 2, -1, (facts(T0, epoch=1),), Extent.ALL)
    assert await replicas.manager.leader_and_isr(command) == {T0: ErrorCode.NONE}
    assert replicas.partition(T0).is_leader
    aside = [name for name in replicas.directories() if name != "t-0"]
    assert len(aside) == 1 and aside[0].startswith("t-1.") and aside[0].endswith("-stray")


async def test_an_open_replica_that_is_missing_in_a_command_with_all_roles_is_closed(
    replicas: Replicas,
) -> None:
    await replicas.told(facts(T0), facts(T1))
    await replicas.manager.leader_and_isr(LeaderAndIsr(1, 2, -1, (facts(T0),), Extent.ALL))
    assert replicas.refusal(key=T0) is ErrorCode.NONE
    assert replicas.refusal(key=T1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(replicas.manager.high_watermarks()) == [T0]


async def test_stopping_keeps_the_data_unless_told_to_delete(replicas: Replicas) -> None:
    await replicas.told(facts(T0), facts(T1))
    replicas.append()
    assert await replicas.stopped(T0) is ErrorCode.NONE
    assert replicas.refusal(key=T0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replicas.directories() == ["t-0", "t-1"]
    await replicas.told(facts(T0, epoch=1))
    assert replicas.partition().log.log_end_offset == 1
    assert await replicas.stopped(T0, delete=True) is ErrorCode.NONE
    assert [name for name in replicas.directories() if name in ("t-0", "t-1")] == ["t-1"]
    assert T0 not in replicas.manager.high_watermarks()


async def test_a_missing_replica_can_be_stopped_and_deleted(replicas: Replicas) -> None:
    assert await replicas.stopped(T0, delete=True) is ErrorCode.NONE
    await replicas.told(facts(T0))
    await replicas.stopped(T0)
    assert await replicas.stopped(T0, delete=True) is ErrorCode.NONE
    assert "t-0" not in replicas.directories()


async def test_a_stop_with_an_older_leader_epoch_is_fenced(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=3))
    assert await replicas.stopped(epoch=2, delete=True) is ErrorCode.FENCED_LEADER_EPOCH
    assert replicas.refusal() is ErrorCode.NONE
    assert await replicas.stopped(epoch=3) is ErrorCode.NONE


@pytest.mark.parametrize("what", ["deposed", "stopped", "led again"])
async def test_changes_of_a_role_wake_waiting_requests(replicas: Replicas, what: str) -> None:
    await replicas.told(facts(T0), facts(T1))
    manager = replicas.manager
    waiters = [
        asyncio.create_task(purgatory.wait([key], missing_bytes=10**6, timeout_s=FOREVER_S))
        for purgatory in (manager.fetches, manager.produces)
        for key in (T0, T1)
    ]
    await idle()
    if what == "deposed":
        await replicas.told(facts(T0, epoch=1, leader=2, isr=(ME, 2)))
    elif what == "led again":
        await replicas.told(facts(T0, epoch=1))
    else:
        await replicas.stopped(T0)
    await idle()
    assert [waiter.done() for waiter in waiters] == [True, False, True, False]
    for waiter in waiters:
        waiter.cancel()


async def test_a_new_leader_waits_for_no_write_of_its_epoch(replicas: Replicas) -> None:
    """The first append writes the epoch; see `test_an_epoch_is_durable_before_its_first_append`."""
    await replicas.told(facts(epoch=0))
    replicas.append()
    await replicas.told(facts(epoch=6))
    checkpoint = replicas.home / "t-0" / "leader-epoch-checkpoint"
    assert checkpoint.read_text() == "0\n1\n0 0\n"
    assert replicas.partition().log.epoch_end_offset(0) == (0, 1)
    replicas.append()
    assert checkpoint.read_text() == "0\n2\n0 0\n6 1\n"


async def test_the_epoch_of_an_internal_topic_is_durable_before_the_answer(
    replicas: Replicas,
) -> None:
    """Coordinators append on the event loop, where no append may wait for a sync."""
    key = TopicPartition("__consumer_offsets", 0)
    await replicas.told(facts(key, epoch=6))
    checkpoint = replicas.home / str(key) / "leader-epoch-checkpoint"
    assert checkpoint.read_text() == "0\n1\n6 0\n"


async def test_a_partition_that_cannot_be_opened_does_not_delay_others(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = LogManager.create

    def failing(self: LogManager, key: TopicPartition, *rest: Any, **options: Any) -> Log:
        if key == T0:
            raise StorageError("create t-0: no such luck")
        return create(self, key, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LogManager, "create", failing)
        for epoch in range(3):  # the controller repeats its command
            answers = await replicas.told(facts(T0, epoch=epoch), facts(T1, epoch=epoch))
            assert answers == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
    assert replicas.refusal(key=T0) is ErrorCode.KAFKA_STORAGE_ERROR
    assert replicas.partition(T1).leader_epoch == 2
    assert [r.message for r in caplog.records if "cannot be opened" in r.message] == [
        "partition cannot be opened partition=t-0 error=create t-0: no such luck"
    ]
    assert await replicas.told(facts(T0, epoch=3)) == [ErrorCode.NONE]
    assert replicas.partition(T0).is_leader


async def test_a_replica_whose_directory_failed_is_not_found_by_its_topic(
    replicas: Replicas,
) -> None:
    await replicas.told(facts())
    assert set(replicas.manager.by_topic) == {b"t"}
    replicas.manager.directory_failed(str(replicas.home), StorageError("broken"))
    assert replicas.manager.by_topic == {}
    assert replicas.refusal() is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_partition_that_could_not_be_opened_is_forgotten_with_its_topic(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: LogManager, *rest: Any, **options: Any) -> Log:
        raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, "the directory is missing")

    with monkeypatch.context() as patched:
        patched.setattr(LogManager, "create", failing)
        await replicas.told(facts(T0))
    assert replicas.refusal(key=T0) is ErrorCode.KAFKA_STORAGE_ERROR
    await replicas.stopped(delete=True)
    assert replicas.refusal(key=T0) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_many_partitions_of_one_command_are_opened_each_once(replicas: Replicas) -> None:
    keys = [TopicPartition("many", number) for number in range(23)]
    assert await replicas.told(*map(facts, keys)) == [ErrorCode.NONE] * 23
    assert sorted(replicas.directories()) == sorted(map(str, keys))
    assert all(replicas.partition(key).is_leader for key in keys)
    assert replicas.config_reads == ["many"]


async def test_a_deposed_leader_obeys_without_zookeeper(replicas: Replicas) -> None:
    """Only a partition that is not open yet needs its topic's configuration from ZooKeeper."""
    await replicas.told(facts(T0, isr=(ME, 2)))
    replicas.config_failure = ConnectionLoss("the service is silent")
    lost = facts(T0, epoch=1, leader=2, isr=(2,), replicas=(ME, 2))
    assert await replicas.told(lost) == [ErrorCode.NONE]
    assert replicas.refusal() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    elsewhere = facts(TopicPartition("fresh", 0))
    with pytest.raises(BrokerError) as refused:
        await replicas.told(elsewhere)
    assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
    replicas.config_failure = None
    assert await replicas.told(elsewhere) == [ErrorCode.NONE]
    assert replicas.config_reads == ["t", "fresh", "fresh"]


async def test_roles_are_complete_after_the_last_command_of_a_series(
    replicas: Replicas,
) -> None:
    manager = replicas.manager
    for key, extent, told in (
        (T0, Extent.BEGINS, -1),
        (T1, Extent.GOES_ON, -1),
        (T0, Extent.ENDS, 7),
    ):
        await manager.leader_and_isr(LeaderAndIsr(1, 1, 7, (facts(key),), extent))
        assert manager.roles_epoch == told
