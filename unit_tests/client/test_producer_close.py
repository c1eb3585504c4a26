"""Tests of the end of a producer: every accepted record gets an outcome, even if `close` is
cancelled."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from pybroker.client import Delivery, Producer
from pybroker.client.errors import Closed, DeliveryFailed
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest
from pybroker.wire.messages.produce import ProduceRequest
from unit_tests.client.fake_broker import BEHAVE, NEVER_ANSWER, FakeBroker, refuse
from unit_tests.client.test_producer import producer
from unit_tests.idle_loop import loop_turns
from unit_tests.patience import MOMENT_S, PATIENCE_S


async def refused(broker: FakeBroker) -> tuple[Producer, Delivery]:
    """Return a producer, and a record that it sends again and again."""
    target = producer(broker)
    await target.start()
    broker.will(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
    return target, await target.send("t", b"x")


async def test_close_delivers_accepted_records_and_accepts_no_more() -> None:
    async with FakeBroker({"t": 1}) as broker:
        target = producer(broker, linger_ms=60_000)
        await target.start()
        delivery = await target.send("t", b"x")
        await target.close()
        assert delivery.result().offset == 0
        with pytest.raises(Closed):
            await target.send("t", b"y")
        await target.close()


async def test_a_closing_producer_does_not_accept_a_record_that_waits_for_its_topic() -> None:
    async with FakeBroker({"t": 1}) as broker:
        target, delivery = await refused(broker)
        waiting = asyncio.ensure_future(target.send("u", b"y"))
        async with asyncio.timeout(PATIENCE_S):
            asked = len(broker.requests(MetadataRequest))
            await broker.until(lambda: len(broker.requests(MetadataRequest)) > asked + 1)
            closing = asyncio.ensure_future(target.close())
            await loop_turns(1)
            broker.topics["u"] = 1
            with pytest.raises(Closed):
                await waiting
            broker.faults.clear()
            await closing
        assert delivery.result().offset == 0


async def test_close_with_a_limit_fails_the_remaining_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        target = producer(broker)
        await target.start()
        broker.will(ApiKey.PRODUCE, NEVER_ANSWER)
        delivery = await target.send("t", b"x")
        await target.close(timeout_s=0.1)
        assert isinstance(delivery.exception(), DeliveryFailed)


async def test_a_cancelled_close_has_closed() -> None:
    async with FakeBroker({"t": 1}) as broker:
        tasks = asyncio.all_tasks()
        target, delivery = await refused(broker)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(target.close(), MOMENT_S)
        assert isinstance(delivery.exception(), DeliveryFailed)
        names = {task.get_name() for task in asyncio.all_tasks() - tasks}
        assert not names & {"producer sender", "metadata"}


async def test_a_second_close_does_not_cut_the_first_short() -> None:
    async with FakeBroker({"t": 1}) as broker:
        target, delivery = await refused(broker)
        closing = [asyncio.ensure_future(target.close()) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_S):
            asked = len(broker.requests(ProduceRequest))
            await broker.until(lambda: len(broker.requests(ProduceRequest)) > asked + 2)
            broker.faults.clear()
            await asyncio.gather(*closing)
        assert delivery.result().offset == 0


async def test_every_record_has_its_outcome_whenever_close_is_cancelled() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.will(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 100_000)
        for turns in range(1, 8):
            tasks = asyncio.all_tasks()
            target = producer(broker)
            await target.start()
            delivery = await target.send("t", b"x")
            closing = asyncio.ensure_future(target.close(0))
            await loop_turns(turns)
            closing.cancel()
            await asyncio.wait([closing])
            assert isinstance(delivery.exception(), DeliveryFailed)
            left = [task for task in asyncio.all_tasks() - tasks if "metadata" in task.get_name()]
            assert all(task.cancelling() for task in left)


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
async def test_an_exception_leaves_at_once_although_the_broker_is_silent(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """All time limits of the producer are two weeks here, so a producer that waits for one of them
    never ends."""
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    limits = {"request_timeout_ms": 1 << 30, "delivery_timeout_ms": (1 << 31) - 1}
    async with FakeBroker({"t": 1}) as broker, asyncio.timeout(PATIENCE_S):
        broker.will(ApiKey.PRODUCE, BEHAVE, *[NEVER_ANSWER] * 100)
        with pytest.raises(kind):
            async with producer(broker, batch_size=0, **limits) as target:
                assert (await (await target.send("t", b"0"))).offset == 0
                deliveries = [await target.send("t", b"x") for _ in range(20)]
                await broker.until(lambda: len(broker.requests(ProduceRequest)) > 1)
                raise kind
        errors = [delivery.exception() for delivery in deliveries]
        assert all(isinstance(error, DeliveryFailed) for error in errors)
        definite = [isinstance(error, DeliveryFailed) and error.definite for error in errors]
        assert not definite[0], "it was sent"
        assert definite[-1], "it never was: five requests are under way at most"
        assert caplog.text.count("producer aborted undelivered=20") == 1
        assert "producer was not closed" not in caplog.text
        with pytest.raises(Closed):
            await target.send("t", b"y")
        del deliveries, errors
    gc.collect()
    assert not unheard


async def test_leaving_without_an_exception_delivers_accepted_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, linger_ms=60_000) as target:
            await target.send("t", b"x")
        assert broker.partition().values() == [b"x"]


async def test_flush_before_an_exception_delivers_accepted_records() -> None:
    async with FakeBroker({"t": 1}) as broker:
        with pytest.raises(ValueError, match="oops"):
            async with producer(broker, linger_ms=60_000) as target:
                await target.send("t", b"x")
                await target.flush()
                raise ValueError("oops")
        assert broker.partition().values() == [b"x"]


def test_a_program_that_does_not_close_its_client_is_warned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with FakeBroker({"t": 1}) as broker:
            target = producer(broker, linger_ms=60_000)
            await target.start()
            for _ in range(3):
                await target.send("t", b"lost")

    asyncio.run(main())
    assert "client was not closed client_id=pybroker remedy=use async with" in caplog.text
    assert (
        "records not delivered records=3 reason=producer was not closed: call close()"
        in caplog.text
    )


def test_a_program_that_closes_its_client_is_not_warned(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with FakeBroker({"t": 1}) as broker:
            async with producer(broker) as target:
                await target.send("t", b"stored")
            target = producer(broker)
            await target.start()
            await target.close(0)

    asyncio.run(main())
    assert not caplog.messages
