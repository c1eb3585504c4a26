"""Tests of controlled shutdown: the requests of a stopping broker, its retries, and the cases in
which it does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import pytest

from pybroker.broker.controlled_shutdown import ControlledShutdown
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.events import Election, ElectionType
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import (
    NO_TOPIC_ID,
    Broker,
    Endpoint,
    PartitionFacts,
    PartitionState,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.ports import SessionEvent
from unit_tests.idle_loop import idle
from unit_tests.patience import until

ME, OTHER, THIRD = 1, 2, 3
EPOCH = 77
ORDERS = TopicPartition("orders", 0)
NEVER_S = 3600.0


class Cluster:
    """The broker's view of its cluster, and a scripted controller. Each attempt uses one of
    `answers`: an exception, or the partitions that the broker still leads. After the last one the
    controller does not answer."""

    def __init__(self) -> None:
        self.metadata = MetadataView()
        self.answers: list[Exception | list[TopicPartition]] = []
        self.asked: list[tuple[str, int, int]] = []
        self.is_active = False
        self.controller_id: int | None = OTHER
        self.leads(ME)

    def leads(
        self,
        leader: int,
        *,
        replicas: tuple[int, ...] = (ME, OTHER),
        offline: tuple[int, ...] = (),
        brokers: tuple[int, ...] = (ME, OTHER),
    ) -> None:
        state = PartitionState(leader, 0, replicas, controller_epoch=1)
        facts = PartitionFacts(ORDERS, NO_TOPIC_ID, state, 0, replicas, offline_replicas=offline)
        known = tuple(Broker(each, (Endpoint("PLAINTEXT", "host", each),)) for each in brokers)
        self.metadata.apply(UpdateMetadata(OTHER, 1, -1, (facts,), known))

    async def elect_leaders(
        self, election_type: ElectionType, topic_partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, Election]:
        raise AssertionError

    async def controlled_shutdown(
        self, broker_id: int, broker_epoch: int
    ) -> tuple[TopicPartition, ...]:
        return tuple(await self._answer("myself", broker_id, broker_epoch))

    async def ask(self, controller: Broker, broker_id: int, epoch: int) -> list[TopicPartition]:
        return await self._answer(f"broker-{controller.id}", broker_id, epoch)

    async def _answer(self, who: str, broker_id: int, epoch: int) -> list[TopicPartition]:
        self.asked.append((who, broker_id, epoch))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def shutdown(
        self, *, enable: bool = True, attempts: int = 3, backoff_s: float = 0.0
    ) -> ControlledShutdown:
        return ControlledShutdown(
            broker_id=ME,
            broker_epoch=lambda: EPOCH,
            controller=self,
            metadata=self.metadata,
            ask=self.ask,
            config=BrokerConfig(
                controlled_shutdown_enable=enable,
                controlled_shutdown_max_retries=attempts,
                controlled_shutdown_retry_backoff_ms=int(backoff_s * 1000),
                controller_socket_timeout_ms=int(NEVER_S * 1000),
            ),
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_a_stopping_broker_waits_until_the_controller_has_moved_its_leaders(
    cluster: Cluster,
) -> None:
    cluster.answers = [[]]
    stopping = asyncio.ensure_future(cluster.shutdown().run())
    await until(lambda: cluster.asked)
    await idle()
    assert not stopping.done()
    cluster.leads(OTHER)
    await stopping
    assert cluster.asked == [("broker-2", ME, EPOCH)]


async def test_a_stopping_controller_moves_its_own_leaders(cluster: Cluster) -> None:
    cluster.is_active, cluster.controller_id = True, ME
    cluster.answers = [[]]
    stopping = asyncio.ensure_future(cluster.shutdown().run())
    await until(lambda: cluster.asked)
    cluster.leads(OTHER)
    await stopping
    assert cluster.asked == [("myself", ME, EPOCH)]


async def test_controlled_shutdown_is_attempted_up_to_its_maximum(cluster: Cluster) -> None:
    cluster.answers = [BrokerError(ErrorCode.NOT_CONTROLLER), OSError("gone"), [ORDERS], []]
    await cluster.shutdown().run()
    assert len(cluster.asked) == 3


async def test_a_successful_second_attempt_is_the_last_one(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.answers = [[ORDERS], []]
    stopping = asyncio.ensure_future(cluster.shutdown().run())
    await until(lambda: len(cluster.asked) == 2)
    cluster.leads(OTHER)
    await stopping
    assert "not complete" not in caplog.text


async def test_no_controller_is_a_failed_attempt(cluster: Cluster) -> None:
    cluster.controller_id = None
    await cluster.shutdown().run()
    cluster.controller_id = THIRD
    await cluster.shutdown().run()
    assert cluster.asked == []


@pytest.mark.parametrize("attempts", [0, -1])
async def test_controlled_shutdown_without_attempts_asks_nothing(
    cluster: Cluster, attempts: int
) -> None:
    await cluster.shutdown(attempts=attempts).run()
    assert cluster.asked == []


async def test_disabled_controlled_shutdown_asks_nothing(cluster: Cluster) -> None:
    await cluster.shutdown(enable=False).run()
    assert cluster.asked == []


async def test_a_single_broker_skips_controlled_shutdown(cluster: Cluster) -> None:
    cluster.leads(ME, brokers=(ME,))
    await cluster.shutdown().run()
    assert cluster.asked == []


async def test_a_broker_with_nothing_to_hand_over_asks_once(cluster: Cluster) -> None:
    for leader, replicas in ((ME, (ME,)), (OTHER, (OTHER, THIRD))):
        cluster.leads(leader, replicas=replicas)
        cluster.asked, cluster.answers = [], [OSError()] * 3
        await cluster.shutdown(backoff_s=NEVER_S).run()
        assert len(cluster.asked) == 1


async def test_a_stopping_broker_does_not_wait_for_other_stopping_brokers(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.answers = [[ORDERS]]
    stopping = asyncio.ensure_future(cluster.shutdown(backoff_s=NEVER_S).run())
    await until(lambda: cluster.asked)
    await idle()
    assert not stopping.done()
    cluster.leads(ME, offline=(OTHER,))
    await stopping
    assert len(cluster.asked) == 1
    assert "not complete leads=1 zookeeper=connected" in caplog.text


async def test_a_broker_cut_off_from_zookeeper_does_not_wait(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    shutdown = cluster.shutdown(backoff_s=NEVER_S)
    stopping = asyncio.ensure_future(shutdown.run())
    await until(lambda: cluster.asked)
    shutdown.session_changed(SessionEvent.SUSPENDED)
    await stopping
    assert "zookeeper=not connected" in caplog.text
    await shutdown.run()
    assert len(cluster.asked) == 1
    shutdown.session_changed(SessionEvent.RECONNECTED)
    cluster.answers = [OSError()] * 3
    cluster.leads(ME, offline=(OTHER,))
    await shutdown.run()
    assert len(cluster.asked) == 2


async def test_a_missing_answer_of_the_controller_times_out(cluster: Cluster) -> None:
    config = BrokerConfig(
        controlled_shutdown_max_retries=2,
        controlled_shutdown_retry_backoff_ms=0,
        controller_socket_timeout_ms=10,
    )
    shutdown = ControlledShutdown(
        broker_id=ME,
        broker_epoch=lambda: EPOCH,
        controller=cluster,
        metadata=cluster.metadata,
        ask=cluster.ask,
        config=config,
    )
    await shutdown.run()
    assert len(cluster.asked) == 2


async def test_a_cancelled_stop_sends_no_more_requests(cluster: Cluster) -> None:
    stopping = asyncio.ensure_future(cluster.shutdown().run())
    await until(lambda: cluster.asked)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert len(asyncio.all_tasks()) == 1
