"""Tests of a broker and its ZooKeeper session: the expiry, a new session, and a broker id that
another broker has registered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from pybroker.broker.app import BrokerApp
from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ConnectionLoss, ErrorCode, StartupError
from pybroker.model import Broker, LeaderAndIsr, TopicPartition
from unit_tests.coordinator.memory_coord import MemoryCoord
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, code, values_of
from unit_tests.idle_loop import idle, loop_turns
from unit_tests.patience import in_time, until

T0 = TopicPartition("t", 0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, properties={"zookeeper.session.timeout.ms": "1000"}) as started:
        await started.create("t")
        yield started


def registration_epoch(bench: Bench) -> int:
    found = bench.tree.node(paths.broker(BROKER_ID))
    return -1 if found is None else found[1].czxid


async def renewed(bench: Bench, epoch_before: int) -> None:
    """Wait until the broker is registered again, is the controller again, and leads its partitions
    again."""
    replicas = bench.app.replicas
    await until(lambda: replicas.broker_epoch > epoch_before)
    await until(lambda: bench.app.controller.is_active)
    await until(lambda: replicas.roles_epoch >= replicas.broker_epoch)


async def test_after_session_expiry_the_broker_registers_and_is_elected_again(
    bench: Bench,
) -> None:
    epoch, term = bench.app.replicas.broker_epoch, bench.app.controller.epoch
    assert registration_epoch(bench) == epoch
    bench.coord.expire()
    assert registration_epoch(bench) == -1
    await renewed(bench, epoch)
    assert registration_epoch(bench) == bench.app.replicas.broker_epoch
    assert bench.app.controller.epoch > term
    assert bench.lost == []
    assert code(await bench.produce("t", batch(b"a"))) is ErrorCode.NONE
    await bench.create("more")


async def test_the_controller_resigns_at_once_when_its_session_expires(bench: Bench) -> None:
    bench.coord.expire()
    await until(lambda: not bench.app.controller.is_active)
    assert bench.app.controller.controller_id is None or not bench.app.controller.is_active


async def test_records_are_read_and_written_while_the_session_is_expired(bench: Bench) -> None:
    await bench.produce("t", batch(b"before"))
    epoch = bench.app.replicas.broker_epoch
    bench.coord.expire()
    assert (await bench.produce("t", batch(b"meanwhile"))).base_offset == 1
    assert values_of(await bench.fetch("t", 0)) == [b"before", b"meanwhile"]
    await renewed(bench, epoch)
    assert (await bench.produce("t", batch(b"after"))).base_offset == 2


async def test_a_broker_recovers_from_many_expired_sessions(bench: Bench) -> None:
    for _ in range(5):
        epoch = bench.app.replicas.broker_epoch
        bench.coord.expire()
        await renewed(bench, epoch)
    for _ in range(5):
        bench.coord.expire()
        await loop_turns(1)
    await renewed(bench, epoch)
    await until(lambda: registration_epoch(bench) == bench.app.replicas.broker_epoch)
    await bench.create("more")
    assert bench.lost == []


async def test_a_suspended_session_that_survives_changes_nothing(bench: Bench) -> None:
    epoch = bench.app.replicas.broker_epoch
    bench.coord.suspend()
    await idle()
    assert code(await bench.produce("t", batch())) is ErrorCode.NONE
    bench.coord.resume()
    await bench.create("more")
    assert bench.app.replicas.broker_epoch == epoch == registration_epoch(bench)


async def test_an_unnoticed_expiry_is_handled_after_the_reconnect(bench: Bench) -> None:
    epoch = bench.app.replicas.broker_epoch
    bench.coord.suspend()
    bench.coord.expire()
    await idle()
    assert bench.app.replicas.broker_epoch == epoch
    bench.coord.resume()
    await renewed(bench, epoch)
    await bench.create("more")


async def test_a_registration_that_fails_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.broker.membership._RETRY_S", 0)
    epoch = bench.app.replicas.broker_epoch
    bench.coord.expire()
    for _ in range(3):
        bench.coord.lose_reply(applied=False)
    await renewed(bench, epoch)


@pytest.mark.parametrize("data", [None, b"{}", b"garbage"])
async def test_a_broker_whose_id_is_taken_is_lost(bench: Bench, data: bytes | None) -> None:
    stranger = MemoryCoord(bench.tree, name="stranger")
    await stranger.start()
    registration = bench.tree.node(paths.broker(BROKER_ID))
    assert registration is not None
    # The stranger registers before the broker does.
    bench.coord.suspend()
    bench.tree.end_session(bench.coord.session_id)
    await stranger.create(paths.broker(BROKER_ID), data or registration[0], ephemeral=True)
    bench.coord.resume()
    await in_time(bench.has_lost.wait())
    assert str(BROKER_ID) in bench.lost[0]
    assert not bench.app.controller.is_active
    await stranger.close()


async def test_an_expiry_after_the_stop_does_not_register_again(bench: Bench) -> None:
    await bench.app.stop()
    bench.coord.expire()
    await idle()
    assert registration_epoch(bench) == -1
    await bench.app.stop()


async def test_a_session_that_ends_while_the_broker_joins_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session expires before the membership listens to it. The broker must not continue
    unregistered."""
    bench, register = Bench(tmp_path), BrokerApp._register
    ended: list[int] = []

    async def ends(app: BrokerApp) -> Broker:
        broker = await register(app)
        if not ended:
            ended.append(bench.coord.session_id)
            bench.coord.expire()
            await until(lambda: bench.coord.session_id not in (0, *ended))
        return broker

    monkeypatch.setattr(BrokerApp, "_register", ends)
    async with bench:
        assert registration_epoch(bench) == bench.app.replicas.broker_epoch


async def test_a_connection_that_breaks_while_the_broker_registers_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench, register = Bench(tmp_path), BrokerApp._register
    attempts = 0

    async def breaks(app: BrokerApp) -> Broker:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            bench.coord.suspend()
        elif attempts == 3:
            bench.coord.resume()
        return await register(app)

    monkeypatch.setattr(BrokerApp, "_register", breaks)
    async with bench:
        assert registration_epoch(bench) == bench.app.replicas.broker_epoch
    assert attempts == 3
    told = [line for line in caplog.messages if "zookeeper connection lost at start" in line]
    assert len(told) == 1 and "step=registration" in told[0]


async def test_a_start_waits_for_zookeeper_up_to_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(0)
    limit_s = 5
    properties = {"zookeeper.connection.timeout.ms": str(limit_s * 1000)}
    bench = Bench(tmp_path, clock=clock, properties=properties)
    begun = clock.monotonic()

    async def breaks(app: BrokerApp) -> Broker:
        clock.advance(1)
        raise ConnectionLoss("the connection broke")

    monkeypatch.setattr(BrokerApp, "_register", breaks)
    with pytest.raises(StartupError, match="cannot register in ZooKeeper"):
        await bench.start()
    assert clock.monotonic() - begun == 1 + limit_s, "from the first loss on"
    await bench.app.stop()


async def test_a_registration_whose_session_has_expired_does_not_count(bench: Bench) -> None:
    """A slow disk delays recording the registration until its session has expired."""
    membership, stored, noted = bench.app._membership, asyncio.Event(), asyncio.Event()
    register = membership._register

    async def slowly() -> Broker:
        broker = await register()
        stored.set()
        await noted.wait()
        return broker

    membership._register = slowly
    bench.coord.expire()
    await in_time(stored.wait())
    ended = registration_epoch(bench)
    bench.coord.expire()
    noted.set()

    def is_registered_anew() -> bool:
        is_over = registration_epoch(bench) not in (-1, ended)
        assert is_over or not membership.is_registered
        return is_over

    await until(is_registered_anew)
    await renewed(bench, ended)


async def test_a_follower_counts_for_nothing_until_it_knows_its_roles_again(bench: Bench) -> None:
    """A topic may be recreated while the broker has no session. Until the broker has received its
    roles, it still fetches for the deleted topic. These fetches must not count for the recreated
    topic."""
    follower = bench.app._incarnation
    before = follower()
    assert before >= 0
    epoch = registration_epoch(bench)
    told = asyncio.Event()
    channel = bench.app._commands
    tell = channel.leader_and_isr

    async def tell_later(command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        await told.wait()
        return await tell(command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel, "leader_and_isr", tell_later)
        bench.coord.expire()
        await until(lambda: bench.app.replicas.broker_epoch > epoch)
        assert follower() == -1
        told.set()
        await until(lambda: follower() > before)
