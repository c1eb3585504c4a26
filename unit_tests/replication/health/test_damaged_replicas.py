"""Tests of damaged and incomplete replicas: when they step aside, and when their files are
replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Sequence
from pathlib import Path

import pytest

from pybroker.broker.log_directory_failures import read_accepted_losses
from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.coordinator.zookeeper.loss_receipts import ACCEPTED_LOSS, decode_receipts
from pybroker.coordinator.zookeeper.registry import create_parents, ensure
from pybroker.coordinator.zookeeper.schemas import TopicAssignment
from pybroker.errors import ConnectionLoss, ErrorCode, MultiFailed, StorageError
from pybroker.model import NO_LEADER, PartitionState
from pybroker.ports import CheckOp, CoordOp, OpResult
from pybroker.replication.health.power_loss import Left, PowerLoss
from pybroker.replication.health.unhealthy_replicas import UnhealthyReplicas, stepped_aside
from pybroker.replication.scrubber import Scrubber
from pybroker.storage.log import Log
from pybroker.storage.log_parts import Damage
from pybroker.storage.replica_health import Health
from pybroker.testing.simulation.memory_tree import MemoryTree
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.idle_loop import idle
from unit_tests.patience import until
from unit_tests.replication.vocabulary import ME, T0, Replicas, facts

EVERYBODY = (1, 2, 3)


def state(
    leader: int, isr: tuple[int, ...], eligible: tuple[int, ...] = (), epoch: int = 4
) -> PartitionState:
    return PartitionState(leader, epoch, isr, 2, eligible)


@pytest.mark.parametrize(
    ("before", "live", "after"),
    [
        (state(1, (1, 2)), EVERYBODY, state(NO_LEADER, (2,), epoch=5)),
        (state(2, (1, 2)), EVERYBODY, state(2, (2,))),
        (state(2, (2,), (1,)), EVERYBODY, state(2, (2,))),
        (state(1, (1,), (2,)), EVERYBODY, state(NO_LEADER, (), (2,), epoch=5)),
        (state(2, (2,)), EVERYBODY, state(2, (2,))),
        (state(1, (1,)), EVERYBODY, None),
        (state(NO_LEADER, (1,)), EVERYBODY, None),
        (state(NO_LEADER, ()), EVERYBODY, None),
        (state(1, (1, 2)), (1, 3), None),
    ],
)
def test_a_replica_steps_aside_only_if_another_can_lead(
    before: PartitionState, live: Container[int], after: PartitionState | None
) -> None:
    assert stepped_aside(before, ME, live) == after


class Broker:
    """Broker ME, with a log of three batches; `flip` damages the second one."""

    def __init__(self, home: Path) -> None:
        self.tree = MemoryTree(ManualClock())
        self.coord = MemoryCoord(self.tree)
        self.replicas = Replicas(home)
        self.live: tuple[int, ...] = EVERYBODY
        self.told = 0
        self.incarnations: list[int] = []
        self.was_used: list[bool] = []
        """Whether the replica was in use when the broker took that incarnation."""
        self._make()

    def _make(self) -> None:
        self.damaged = UnhealthyReplicas(
            coord=self.coord,
            broker_id=ME,
            logs=self.replicas.logs,
            replicas=self.replicas.manager,
            live=lambda: self.live,
            changed=self._changed,
            raised=self._raised,
        )
        self.scrubber = Scrubber(
            logs=self.replicas.logs,
            replicas=self.replicas.manager,
            blocking=self.replicas.manager._blocking,
            clock=self.replicas.clock,
            bytes_per_second=2**40,
            interval_s=1.0,
            found=self.damaged.found,
        )

    def _changed(self) -> None:
        self.told += 1

    def _raised(self, incarnation: int) -> None:
        self.incarnations.append(incarnation)
        self.was_used.append(T0 in self.replicas.manager.partitions)

    async def begin(self, stored: PartitionState) -> None:
        await self.coord.start()
        await create_parents(self.coord)
        await ensure(self.coord, paths.partition(T0))
        await ensure(self.coord, paths.incarnation(ME))
        await self.coord.create(paths.partition_state(T0), schemas.encode_state(stored))
        await self.replicas.told(facts(isr=(ME, 2)))
        for value in (b"a", b"b", b"c"):
            self.replicas.append(value)

    @property
    def path(self) -> Path:
        (found,) = (self.replicas.home / "t-0").glob("*.log")
        return found

    def flip(self) -> bytes:
        data = bytearray(self.path.read_bytes())
        data[len(data) // 2] ^= 1
        self.path.write_bytes(data)
        return bytes(data)

    def killed(self) -> None:
        """Kill the broker, and start a new one with its data."""
        self.replicas.logs.unlock()
        self.replicas.open()
        self._make()

    async def stored(self) -> tuple[PartitionState, int]:
        path = paths.partition_state(T0)
        data, stat = await self.coord.get(path)
        return schemas.decode_state(path, data), stat.version

    async def looks(self) -> bool:
        """Return whether the replica leaves the ISR in one attempt."""
        told = self.told
        await self.damaged._look()
        return self.told > told

    def has_raised(self) -> bool:
        self.damaged.loop.wake()
        return bool(self.incarnations)

    def health(self) -> Health:
        return self.replicas.logs.health[T0]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    made = Broker(tmp_path)
    yield made
    await made.scrubber.stop()
    await made.damaged.loop.stop()
    made.replicas.logs.unlock()
    await made.coord.close()


async def test_damage_found_at_the_start_is_settled_before_the_registration(broker: Broker) -> None:
    await broker.begin(state(ME, (ME, 2)))
    broker.killed()
    damaged = broker.flip()
    broker.killed()
    await ensure(broker.coord, paths.incarnation(ME))
    await broker.damaged.settle()
    assert (await broker.stored())[0] == state(NO_LEADER, (2,), epoch=5)
    of_earlier_life = CheckOp(paths.incarnation(ME), 0)
    with pytest.raises(MultiFailed):
        await broker.coord.multi([of_earlier_life])
    assert broker.path.read_bytes() == damaged, (
        "renamed to stray only when there is a leader to copy from"
    )
    storage = [ErrorCode.KAFKA_STORAGE_ERROR]
    assert await broker.replicas.told(facts(epoch=5, replicas=(ME, 2))) == storage
    other = facts(leader=2, epoch=6, isr=(2,), replicas=(ME, 2))
    assert await broker.replicas.told(other) == [ErrorCode.NONE]
    aside = [name for name in broker.replicas.directories() if name.endswith("-damaged-stray")]
    assert len(aside) == 1
    (kept,) = (broker.replicas.home / aside[0]).glob("*.log")
    assert kept.read_bytes() == damaged
    assert broker.replicas.partition().log.log_end_offset == 0
    assert broker.health() is Health.COPYING
    assert await broker.replicas.told(facts(epoch=7, replicas=(ME, 2))) == storage


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_replica_that_steps_aside_in_use_raises_the_incarnation(
    broker: Broker, is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch sent before, with the old incarnation, must not add the replica to the ISR again.
    After a lost reply the broker must read the new incarnation: with the old one no leader adds its
    replicas to the ISR."""
    await broker.begin(state(2, (2, ME)))
    await broker.replicas.told(facts(leader=2, epoch=4, isr=(2, ME)))
    write = broker.coord.multi

    async def write_and_lose(ops: Sequence[CoordOp]) -> list[OpResult]:
        await write(ops)
        monkeypatch.undo()
        raise ConnectionLoss("the reply is lost")

    if is_lost:
        monkeypatch.setattr(broker.coord, "multi", write_and_lose)
    broker.damaged.loop.start()
    broker.damaged.found(T0, Damage(0, str(broker.path), 0, "the checksum is wrong"))
    await until(lambda: T0 in broker.damaged.waiting or broker.told)
    if is_lost:
        await until(lambda: broker.coord.multi == write)
        broker.damaged.loop.wake()
    await until(lambda: broker.told)
    _, stat = await broker.coord.get(paths.incarnation(ME))
    assert stat.version == 1 + is_lost
    assert broker.incarnations[-1] == stat.version
    assert not broker.was_used[-1], "a fetch for the old log could add it to the ISR"
    assert (await broker.stored())[0] == state(2, (2,))


async def test_a_failed_disk_does_not_keep_other_replicas_out_of_the_isr(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetches with an older incarnation than the stored one add no replica of this broker to an
    ISR."""
    await broker.begin(state(2, (2, ME)))
    await broker.replicas.told(facts(leader=2, epoch=4, isr=(2, ME)))

    def breaks(log: Log, damage: Damage) -> None:
        error = StorageError("Input/output error")
        log.fail(error)
        raise error

    monkeypatch.setattr(broker.replicas.logs.health, "give_up", breaks)
    broker.damaged.loop.start()
    broker.damaged.found(T0, Damage(0, str(broker.path), 0, "the checksum is wrong"))

    await until(broker.has_raised)
    _, stat = await broker.coord.get(paths.incarnation(ME))
    assert stat.version == 1
    assert broker.incarnations[-1] == stat.version


async def test_a_failed_disk_after_a_lost_reply_leaves_the_incarnation_known(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an outdated incarnation no other replica of this broker could join an ISR, and the
    controller would ignore its log end reports."""
    await broker.begin(state(2, (2, ME)))
    await broker.replicas.told(facts(leader=2, epoch=4, isr=(2, ME)))
    write = broker.coord.multi

    opened = broker.replicas.logs.log(T0)
    assert opened is not None

    async def write_and_lose(ops: Sequence[CoordOp]) -> list[OpResult]:
        if opened.failure is None:
            await write(ops)
            opened.fail(StorageError("Input/output error"))
        raise ConnectionLoss("the reply is lost")

    monkeypatch.setattr("pybroker.coordinator.zookeeper.repeating._RETRY_S", 0)
    monkeypatch.setattr(broker.coord, "multi", write_and_lose)
    broker.damaged.loop.start()
    broker.damaged.found(T0, Damage(0, str(broker.path), 0, "the checksum is wrong"))

    await until(broker.has_raised)
    _, stat = await broker.coord.get(paths.incarnation(ME))
    assert stat.version == 1
    assert broker.incarnations[-1] == stat.version


async def test_an_incomplete_replica_that_is_the_only_electable_one_leaves_the_isr(
    broker: Broker,
) -> None:
    """The replica leaves once another assigned replica is on a live broker. A replica that is
    neither in sync nor eligible has nothing to leave."""
    await broker.begin(state(ME, (ME, 2)))
    topic = schemas.encode_topic(TopicAssignment({0: (ME, 2)}))
    await broker.coord.set(paths.topic("t"), topic)
    broker.killed()
    broker.flip()
    broker.killed()
    await broker.damaged.settle()
    await broker.replicas.told(facts(leader=2, epoch=6, isr=(2,), replicas=(ME, 2)))
    broker.live = (ME, 3)
    stored = state(2, (2,))
    await broker.coord.set(paths.partition_state(T0), schemas.encode_state(stored))
    await broker.replicas.told(facts(epoch=9, replicas=(ME, 2)))
    assert broker.damaged._refused
    assert not await broker.looks()
    assert not broker.damaged._refused, "the replica is neither in sync nor eligible"
    assert (await broker.stored())[0] == stored
    await broker.coord.set(paths.partition_state(T0), schemas.encode_state(state(ME, (ME,))))
    await broker.replicas.told(facts(epoch=10, isr=(ME,), replicas=(ME, 2)))
    assert not await broker.looks()
    assert broker.damaged._refused, "no other broker is live"
    broker.live = EVERYBODY
    assert await broker.looks()
    assert (await broker.stored())[0] == state(NO_LEADER, (), epoch=5)
    assert broker.health() is Health.RESIGNED
    assert await broker.replicas.told(
        facts(leader=NO_LEADER, epoch=11, isr=(), replicas=(ME, 2))
    ) == [ErrorCode.NONE]
    assert broker.health() is Health.WHOLE


@pytest.mark.parametrize(
    ("stored", "left"),
    [
        (state(ME, (ME, 2)), state(NO_LEADER, (2,), epoch=5)),
        (state(ME, (ME,), (2,)), state(NO_LEADER, (), (2,), epoch=5)),
        (state(2, (2,), (ME,)), state(2, (2,))),
    ],
)
async def test_an_incomplete_replica_leaves_the_isr_to_other_in_sync_replicas(
    broker: Broker, stored: PartitionState, left: PartitionState
) -> None:
    """The replica leaves once one of them is on a live broker, even if that one leads already."""
    await broker.begin(state(2, (ME, 2)))
    broker.killed()
    broker.flip()
    broker.killed()
    await broker.damaged.settle()
    await broker.replicas.told(facts(leader=2, epoch=6, isr=(2,), replicas=(ME, 2)))
    await broker.replicas.told(facts(epoch=7, replicas=(ME, 2)))
    await broker.coord.set(paths.partition_state(T0), schemas.encode_state(stored))
    broker.live = (ME, 3)
    assert not await broker.looks()
    assert broker.damaged._refused
    assert (await broker.stored())[0] == stored
    broker.live = EVERYBODY
    assert await broker.looks()
    assert not broker.damaged._refused
    assert (await broker.stored())[0] == left


async def test_an_incomplete_copy_of_a_lost_log_leaves_only_to_electable_replicas(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost directory may return with the records. If no other replica is electable, the
    operator decides."""
    await broker.begin(state(2, (ME, 2)))
    topic = schemas.encode_topic(TopicAssignment({0: (ME, 2)}))
    await broker.coord.set(paths.topic("t"), topic)
    broker.killed()
    broker.flip()
    broker.killed()
    await broker.damaged.settle()
    await broker.replicas.told(facts(leader=2, epoch=6, isr=(2,), replicas=(ME, 2)))
    monkeypatch.setattr(type(broker.replicas.logs), "lost_directories", ["/gone"])
    broker.live = EVERYBODY
    left = state(NO_LEADER, (), (2,), epoch=5)
    for epoch, (before, after) in enumerate(
        ((state(ME, (ME,), (2,)), left), (state(ME, (ME,)), state(ME, (ME,)))), 7
    ):
        await broker.coord.set(paths.partition_state(T0), schemas.encode_state(before))
        await broker.replicas.told(facts(epoch=epoch, isr=before.isr, replicas=(ME, 2)))
        assert broker.damaged._refused
        assert await broker.looks() is (before != after)
        assert not broker.damaged._refused
        assert (await broker.stored())[0] == after


async def test_the_only_electable_replica_keeps_its_role_despite_damage(broker: Broker) -> None:
    await broker.begin(state(ME, (ME,)))
    broker.killed()
    damaged = broker.flip()
    broker.killed()
    await broker.damaged.settle()
    assert await broker.stored() == (state(ME, (ME,)), 0)
    assert await broker.replicas.told(facts(isr=(ME,), replicas=(ME, 2))) == [
        ErrorCode.KAFKA_STORAGE_ERROR
    ]
    assert "pybroker.accept-loss" in broker.replicas.manager.not_opened[T0]
    assert broker.path.read_bytes() == damaged


async def test_a_damaged_replica_found_at_the_start_is_tried_again(broker: Broker) -> None:
    """Another replica may be in sync again, or the topic may be deleted."""
    await broker.begin(state(ME, (ME,)))
    broker.killed()
    broker.flip()
    broker.killed()
    await broker.damaged.settle()
    assert T0 in broker.damaged.waiting
    whole = schemas.encode_state(state(ME, (ME, 2)))
    await broker.coord.set(paths.partition_state(T0), whole)
    broker.damaged.loop.start()
    await until(lambda: broker.told)
    assert (await broker.stored())[0] == state(NO_LEADER, (2,), epoch=5)
    assert not broker.damaged.waiting


async def test_the_operator_accepts_the_loss_of_records_after_a_corrupt_range(
    broker: Broker,
) -> None:
    """The loss is accepted once. The broker saves the bytes that it cuts off, and its replica is no
    longer electable."""
    await broker.begin(state(ME, (ME,)))
    broker.replicas.logs.write_checkpoints({T0: 3})
    broker.killed()
    broker.flip()
    broker.killed()
    assert broker.replicas.logs.health.damage.keys() == {T0}
    consent = broker.replicas.home / "pybroker.accept-loss"
    consent.write_text("t-0\n")
    for _ in range(2):  # a start that did not come to its end is no end of it
        broker.killed()
        logs = broker.replicas.logs
        assert logs.accepted_losses == {T0}
        assert not logs.health.damage
    topic = schemas.encode_topic(TopicAssignment({0: (ME,)}))
    await broker.coord.set(paths.topic("t"), topic)
    lost = await read_accepted_losses(broker.coord, ME, logs)
    assert lost == {T0: Left(1, 1)}
    await PowerLoss(broker.coord, ME, ManualClock()).step_aside(lost, ACCEPTED_LOSS)
    receipt, _ = await broker.coord.get(paths.loss(T0))
    assert decode_receipts("", receipt)[0].log_end == 1
    logs.record_incarnation(7)
    assert not consent.exists()
    broker.killed()
    assert not broker.replicas.logs.health.damage
    assert await broker.replicas.told(facts()) == [ErrorCode.NONE]
    assert broker.replicas.append(b"d").first_offset == 1
    assert list((broker.replicas.home / "t-0").glob("*.corrupt"))


async def test_a_leader_with_damage_resigns_and_copies_anew(broker: Broker) -> None:
    await broker.begin(state(ME, (ME, 2)))
    broker.damaged.loop.start()
    broker.flip()
    broker.scrubber.start()
    await until(lambda: broker.told)
    assert (await broker.stored())[0] == state(NO_LEADER, (2,), epoch=5)
    assert broker.replicas.refusal() is ErrorCode.KAFKA_STORAGE_ERROR
    other = facts(leader=2, epoch=6, isr=(2,), replicas=(ME, 2))
    assert await broker.replicas.told(other) == [ErrorCode.NONE]
    assert broker.health() is Health.COPYING


async def test_a_damaged_log_stays_marked_after_a_restart(broker: Broker) -> None:
    await broker.begin(state(ME, (ME, 2)))
    broker.replicas.logs.write_checkpoints({T0: 3})
    broker.damaged.loop.start()
    broker.flip()
    broker.scrubber.start()
    await until(lambda: broker.told)
    await broker.damaged.loop.stop()
    await broker.scrubber.stop()
    broker.killed()
    assert broker.replicas.logs.health.damage.keys() == {T0}


async def test_a_damaged_leader_without_a_substitute_stays_leader(broker: Broker) -> None:
    """The leader steps aside once another replica can lead."""
    await broker.begin(state(ME, (ME, 2)))
    broker.live = (ME, 3)
    broker.damaged.loop.start()
    broker.flip()
    broker.scrubber.start()
    await until(lambda: broker.damaged.waiting)
    await idle()
    assert broker.replicas.refusal() is ErrorCode.NONE
    assert broker.replicas.append(b"d").first_offset == 3
    assert await broker.stored() == (state(ME, (ME, 2)), 0)
    broker.live = EVERYBODY
    broker.damaged.loop.wake()
    await until(lambda: broker.told)
    assert broker.replicas.refusal() is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_damaged_follower_does_not_join_by_an_earlier_proposal(broker: Broker) -> None:
    """The state is written again, so that the leader's request for an older version fails."""
    await broker.begin(state(2, (2,)))
    broker.damaged.loop.start()
    broker.flip()
    broker.scrubber.start()
    await until(lambda: broker.told)
    assert await broker.stored() == (state(2, (2,)), 1)


async def test_an_undamaged_replica_keeps_its_role(broker: Broker) -> None:
    await broker.begin(state(ME, (ME, 2)))
    broker.damaged.loop.start()
    broker.scrubber.start()
    await until(lambda: broker.scrubber._looked_at)
    assert not broker.damaged.waiting
    assert not broker.told


async def test_a_read_through_a_wrong_index_entry_reports_no_damage(broker: Broker) -> None:
    await broker.begin(state(ME, (ME, 2)))
    broker.damaged.loop.start()
    broker.scrubber._bytes_per_second = 0
    broker.scrubber.start()
    broker.replicas.manager.on_suspicion(T0, 1)
    await until(lambda: not broker.scrubber._suspects)
    await idle()
    assert not broker.damaged.waiting and not broker.told
    broker.flip()
    broker.replicas.manager.on_suspicion(T0, 1)
    await until(lambda: broker.told)
