"""Tests of the producer with a broker that loses requests, refuses requests, and forgets
producers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.client.errors import (
    BufferExhausted,
    Closed,
    DeliveryFailed,
    NoBrokers,
    RecordTooLarge,
    ResponseError,
    TopicUnavailable,
)
from pybroker.client.producer import Producer
from pybroker.clock import ManualClock
from pybroker.errors import ErrorCode
from pybroker.records.batch import read_header
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.metadata import MetadataRequest
from pybroker.wire.messages.produce import ProduceRequest
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from pybroker.wire.schema import Message
from unit_tests.client.fake_broker import (
    BEHAVE,
    LOSE_ANSWER,
    LOSE_REQUEST,
    NEVER_ANSWER,
    FakeBroker,
    Fault,
    first_sequences,
    refuse,
)
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_S

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
}
ONE_RECORD_A_BATCH = {"batch_size": 0}
LARGER_THAN_SOCKETS = 15 * 2**20
"""More bytes than the system's buffers hold for a peer that does not read."""


def producer(broker: FakeBroker, **options: Any) -> Producer:
    return Producer(broker.address, **{**QUICK, **options})


async def send_all(target: Producer, values: list[bytes], **where: Any) -> list[int]:
    """Send all values and return their offsets."""
    deliveries = [await target.send("t", value, **where) for value in values]
    return [(await delivery).offset for delivery in deliveries]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % index for index in range(count)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_records_arrive_in_order_with_their_offsets(codec: str) -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, compression_type=codec, linger_ms=5) as target:
            assert await send_all(target, numbered(50)) == list(range(50))
        assert broker.partition().values() == numbered(50)
        assert len(broker.partition().batches) < 50


async def test_send_and_wait_returns_the_position_or_raises_the_failure() -> None:
    async with FakeBroker({"t": 2}) as broker, producer(broker) as target:
        for offset in range(2):
            stored = await target.send_and_wait(
                "t", b"v", key=b"k", headers={"h": b"1"}, partition=1, timestamp_ms=7
            )
            assert (stored.partition, stored.offset) == (1, offset)
        assert broker.partition("t", 1).values() == [b"v", b"v"]
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_TIMESTAMP))
        with pytest.raises(DeliveryFailed):
            await target.send_and_wait("t", b"w")


async def test_a_record_is_stored_as_given() -> None:
    async with FakeBroker({"t": 3}) as broker, producer(broker) as target:
        delivery = await target.send(
            "t", None, key=b"k", headers={"h": b"1", "n": None}, partition=2, timestamp_ms=5
        )
        done = await delivery
        assert (done.topic, done.partition, done.offset, done.timestamp) == ("t", 2, 0, 5)
        header = read_header(broker.partition("t", 2).batches[0])
        assert (header.base_timestamp, header.producer_id, header.base_sequence) == (5, 9, 0)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"timestamp_ms": -1}, ValueError, "timestamp_ms is -1, expected a time in ms"),
        ({"timestamp_ms": 2**63}, ValueError, "timestamp_ms is 9223372036854775808"),
        ({"timestamp_ms": 1.5}, TypeError, "float"),
        ({"headers": {"\ud800": b""}}, ValueError, "surrogates not allowed"),
        ({"headers": {1: b""}}, TypeError, "must be str, not int"),
        ({"key": "text"}, TypeError, "the key of a record must be bytes, not str"),
    ],
    ids=["before 1970", "beyond 64 bits", "no integer", "no text", "no name", "no bytes"],
)
async def test_an_invalid_record_is_refused_and_harms_no_other(
    given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=5) as target:
        others = [await target.send("t", b"a", timestamp_ms=0)]
        with pytest.raises(kind, match=text):
            await target.send("t", b"x", **given)
        others.append(await target.send("t", b"b", timestamp_ms=2**63 - 1))
        assert [(await each).offset for each in others] == [0, 1]


@pytest.mark.parametrize(
    "fault",
    [
        LOSE_REQUEST,
        LOSE_ANSWER,
        refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        refuse(ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(carried_out=True, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        Fault(carried_out=True, code=ErrorCode.REQUEST_TIMED_OUT),
    ],
    ids=["request lost", "answer lost", "6", "19", "20 after append", "7 after append"],
)
@pytest.mark.parametrize("healthy_before", [0, 2])
async def test_retries_neither_lose_nor_double_nor_reorder(
    fault: Fault, healthy_before: int
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, **ONE_RECORD_A_BATCH) as target:
            broker.will(ApiKey.PRODUCE, *[BEHAVE] * healthy_before, fault, fault)
            assert await send_all(target, numbered(20)) == list(range(20))
        assert broker.partition().values() == numbered(20)


async def test_a_batch_is_sent_again_with_the_same_sequence() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        broker.will(ApiKey.PRODUCE, LOSE_ANSWER, LOSE_REQUEST)
        await send_all(target, [b"x"])
        assert first_sequences(broker.seen) == [(0, 0)] * 3


async def test_numbers_start_anew_under_a_higher_epoch_when_the_broker_lost_them() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, **ONE_RECORD_A_BATCH) as target:
        await send_all(target, numbered(3))
        broker.partition().producers[9] = (0, 1)  # as after an unclean election
        broker.partition().stored.clear()
        await send_all(target, [b"a", b"b"])
        assert broker.partition().values()[-2:] == [b"a", b"b"]
        assert first_sequences(broker.seen)[-2:] == [(1, 0), (1, 1)]


async def test_after_a_gap_later_records_are_still_delivered_in_order() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, **ONE_RECORD_A_BATCH) as target:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_TIMESTAMP))
        deliveries = [await target.send("t", value) for value in numbered(6)]
        outcomes = await asyncio.gather(*deliveries, return_exceptions=True)
        failed = [value for value, o in zip(numbered(6), outcomes, strict=True)
                  if isinstance(o, Exception)]  # fmt: skip
        assert failed == [b"0"]
        assert broker.partition().values() == numbered(6)[1:]


async def test_a_batch_that_is_too_large_is_split() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=20) as target:
        too_large = refuse(ErrorCode.MESSAGE_TOO_LARGE)
        broker.will(ApiKey.PRODUCE, too_large, too_large)
        assert await send_all(target, numbered(8)) == list(range(8))
        assert broker.partition().values() == numbered(8)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(
    "first",
    [
        refuse(ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(carried_out=True, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
    ],
)
async def test_a_batch_that_is_too_large_stays_behind_one_that_is_sent_again(
    first: Fault, times: int
) -> None:
    """Both batches were in flight. The first batch keeps its sequence numbers, so that the broker
    recognises it."""
    options = {"retry_backoff_ms": 50, "retry_backoff_max_ms": 50}
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, **{**options, "batch_size": 200}) as target:
            assert await send_all(target, [b"0"]) == [0]
            too_large = refuse(ErrorCode.MESSAGE_TOO_LARGE)
            broker.will(ApiKey.PRODUCE, first, too_large, BEHAVE, *[too_large] * (times - 1))
            values = [b"%d" % number * 50 for number in range(1, 5)]
            assert await send_all(target, values) == [1, 2, 3, 4]
        assert broker.partition().values() == [b"0", *values]


async def test_a_batch_that_may_be_stored_is_not_split() -> None:
    """The halves would have other sequence numbers, so the broker would not recognise them."""
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=20) as target:
        broker.will(ApiKey.PRODUCE, LOSE_ANSWER, refuse(ErrorCode.MESSAGE_TOO_LARGE))
        for delivery in [await target.send("t", value) for value in numbered(2)]:
            with pytest.raises(DeliveryFailed, match="MESSAGE_TOO_LARGE") as caught:
                await delivery
            assert not caught.value.definite
        assert await send_all(target, [b"2"]) == [2]
        assert broker.partition().values() == numbered(3)


async def test_the_halves_of_a_batch_that_may_be_stored_are_in_doubt() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, enable_idempotence=False, linger_ms=20) as target:
            too_large, refused = ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP
            faults = [LOSE_ANSWER, refuse(too_large), refuse(refused), refuse(refused)]
            broker.will(ApiKey.PRODUCE, *faults)
            for delivery in [await target.send("t", value) for value in numbered(2)]:
                with pytest.raises(DeliveryFailed) as caught:
                    await delivery
                assert not caught.value.definite
        assert broker.partition().values() == numbered(2)


async def test_without_idempotence_order_holds_too() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, enable_idempotence=False, **ONE_RECORD_A_BATCH) as target:
            broker.will(ApiKey.PRODUCE, BEHAVE, refuse(ErrorCode.NOT_ENOUGH_REPLICAS))
            assert await send_all(target, numbered(10)) == list(range(10))
        assert first_sequences(broker.seen)[0] == (-1, -1)


async def test_acks_0_is_not_answered() -> None:
    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, acks=0) as target:
            assert await send_all(target, numbered(5)) == [-1] * 5
            assert await send_all(target, [b"later"]) == [-1]
            await broker.until(lambda: len(broker.partition().values()) == 6)
        assert broker.partition().values() == [*numbered(5), b"later"]


@pytest.mark.parametrize("breaks", [False, True])
async def test_acks_0_counts_when_the_system_has_taken_the_record(breaks: bool) -> None:
    """As in Apache's client, the record counts as delivered. If the connection breaks before that
    moment, the record is sent again."""
    large = bytes(LARGER_THAN_SOCKETS)
    limits = {"max_request_size": 2 * len(large), "buffer_memory": 2 * len(large)}
    async with FakeBroker({"t": 1}) as broker, producer(broker, acks=0, **limits) as target:
        reads_on = asyncio.Event()
        store = broker.handlers[ApiKey.PRODUCE]

        async def held(request: Message) -> Message:
            await reads_on.wait()
            answer = store(request)
            assert isinstance(answer, Message)
            return answer

        broker.handlers[ApiKey.PRODUCE] = held
        assert await send_all(target, [b"small"]) == [-1]
        delivery = await target.send("t", large)
        await idle()
        assert not delivery.done()
        if breaks:
            broker.drop_connections()
        reads_on.set()
        assert (await delivery).offset == -1
        await broker.until(lambda: len(broker.partition().values()) == 2)
        assert broker.partition().values() == [b"small", large]


@pytest.mark.parametrize(
    ("fault", "definite"),
    [
        (refuse(ErrorCode.INVALID_TIMESTAMP), True),
        (refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED), True),
        (refuse(ErrorCode.UNKNOWN_SERVER_ERROR), False),
    ],
)
async def test_a_failure_says_whether_the_record_may_be_stored(
    fault: Fault, definite: bool
) -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        broker.will(ApiKey.PRODUCE, fault)
        with pytest.raises(DeliveryFailed) as caught:
            await send_all(target, [b"x"])
        assert caught.value.definite is definite
        assert isinstance(caught.value.__cause__, ResponseError)
        assert await send_all(target, [b"y"]) == [0]


async def test_the_deadline_ends_retries_and_names_the_last_reason() -> None:
    async with FakeBroker({"t": 1}) as broker:
        options = {"delivery_timeout_ms": 800, "request_timeout_ms": 800}
        async with producer(broker, **options) as target:
            broker.will(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_ENOUGH_REPLICAS)] * 1_000)
            with pytest.raises(DeliveryFailed, match="NOT_ENOUGH_REPLICAS") as caught:
                await send_all(target, [b"x"])
            assert caught.value.definite
            broker.faults.clear()
            assert await send_all(target, [b"y"]) == [0]


async def test_a_record_in_flight_at_its_deadline_is_in_doubt() -> None:
    async with FakeBroker({"t": 1}) as broker:
        options = {"delivery_timeout_ms": 800, "request_timeout_ms": 800}
        async with producer(broker, **options) as target:
            broker.will(ApiKey.PRODUCE, *[NEVER_ANSWER] * 2)
            with pytest.raises(DeliveryFailed) as caught:
                await send_all(target, [b"x"])
            assert not caught.value.definite


async def test_flush_sends_lingering_batches() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, linger_ms=60_000) as target:
        deliveries = [await target.send("t", value) for value in numbered(3)]
        assert not any(delivery.done() for delivery in deliveries)
        await target.flush()
        assert all(delivery.done() for delivery in deliveries)
        assert len(broker.requests(ProduceRequest)) == 1


async def test_a_broken_producer_does_not_accept_a_record_that_waits_for_memory() -> None:
    """Otherwise the record would never get an outcome, not even from `close`."""
    async with FakeBroker({"t": 1}) as broker:
        go_on = asyncio.Event()

        async def refusing(_: Message) -> Message:
            await go_on.wait()
            return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        broker.handlers[ApiKey.INIT_PRODUCER_ID] = refusing
        async with producer(broker, buffer_memory=1_000) as target, asyncio.timeout(PATIENCE_S):
            delivery = await target.send("t", b"x" * 500)
            waiting = asyncio.ensure_future(target.send("t", b"x" * 500))
            await idle()
            go_on.set()
            with pytest.raises(DeliveryFailed):
                await delivery
            with pytest.raises(Closed, match="CLUSTER_AUTHORIZATION_FAILED"):
                await (await waiting)


async def test_a_missing_producer_id_does_not_delay_the_deadline() -> None:
    async with FakeBroker({"t": 1}) as broker:
        options = {"delivery_timeout_ms": 30_000, "request_timeout_ms": 30_000, "linger_ms": 0}
        clock = ManualClock()
        target = Producer(broker.address, clock=clock, **{**QUICK, **options})
        await target.start()
        broker.will(ApiKey.INIT_PRODUCER_ID, NEVER_ANSWER)
        delivery = await target.send("t", b"x")
        async with asyncio.timeout(PATIENCE_S):
            await broker.until(lambda: bool(broker.requests(InitProducerIdRequest)))
            clock.advance(31)
            with pytest.raises(DeliveryFailed, match="=30000 has passed") as caught:
                await delivery
        assert caught.value.definite
        await target.close(0)


async def test_send_waits_for_memory() -> None:
    async with FakeBroker({"t": 1}) as broker:
        options = {"buffer_memory": 1_000, "max_block_ms": 1_000, "linger_ms": 0}
        async with producer(broker, **options) as target:
            assert await send_all(target, [b"x" * 500 for _ in range(20)]) == list(range(20))
            broker.will(ApiKey.PRODUCE, NEVER_ANSWER)
            await target.send("t", b"x" * 500)
            with pytest.raises(BufferExhausted):
                await target.send("t", b"x" * 500)
            broker.drop_connections()
            assert await send_all(target, [b"free again"])


async def test_an_oversized_record_or_unknown_partition_is_refused_at_once() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, max_block_ms=1_000) as target:
        with pytest.raises(RecordTooLarge):
            await target.send("t", b"x" * 2_000_000)
        with pytest.raises(TypeError):
            await target.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(TopicUnavailable, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await target.send("nosuch", b"x")
        with pytest.raises(TopicUnavailable, match="no partition 5"):
            await target.send("t", b"x", partition=5)
        broker.topic_errors["bad"] = ErrorCode.INVALID_TOPIC_EXCEPTION
        with pytest.raises(TopicUnavailable) as caught:
            await target.send("bad", b"x")
        assert not caught.value.retriable


async def test_keys_decide_the_partition_and_null_keys_stick() -> None:
    async with FakeBroker({"t": 4}) as broker, producer(broker, linger_ms=5) as target:
        keyed = [await (await target.send("t", b"v", key=b"same")) for _ in range(5)]
        assert len({done.partition for done in keyed}) == 1
        loose = [await target.send("t", b"v") for _ in range(10)]
        assert len({(await delivery).partition for delivery in loose}) == 1


async def test_a_leader_that_moves_is_found_again() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        await send_all(target, [b"a"])
        broker.without_leader = True
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        delivery = await target.send("t", b"b")
        seen = len(broker.requests(MetadataRequest))
        await broker.until(lambda: len(broker.requests(MetadataRequest)) > seen)
        broker.without_leader = False
        assert (await delivery).offset == 1


async def test_a_topic_that_is_not_written_to_is_let_go_in_time() -> None:
    """Brokers create a topic whose metadata a producer requests, so a deleted topic would be
    created again."""
    async with FakeBroker({"t": 1, "u": 1}) as broker:
        clock = ManualClock()
        target = Producer(broker.address, clock=clock, **QUICK, metadata_max_age_ms=5)

        def asked() -> list[str | None]:
            request = broker.requests(MetadataRequest)[-1]
            assert isinstance(request, MetadataRequest)
            return [topic.name for topic in request.topics or ()]

        await target.start()
        async with asyncio.timeout(PATIENCE_S):
            for name in ("t", "u"):
                await (await target.send(name, b"x"))
            await broker.until(lambda: asked() == ["t", "u"])
            clock.advance(200)
            await (await target.send("u", b"x"))
            clock.advance(200)
            await broker.until(lambda: asked() == ["u"])
            await (await target.send("t", b"x"))
            await broker.until(lambda: asked() == ["t", "u"])
        await target.close()


async def test_a_topic_is_not_let_go_while_a_record_waits_for_its_leader() -> None:
    """Otherwise no metadata request would find the leader."""
    async with FakeBroker({"t": 1}) as broker:
        clock = ManualClock()
        options = {**QUICK, "delivery_timeout_ms": 600_000, "metadata_max_age_ms": 5}
        options |= {"metadata_max_idle_ms": 5_000, "max_block_ms": 10}
        target = Producer(broker.address, clock=clock, **options)
        await target.start()
        async with asyncio.timeout(PATIENCE_S):
            await (await target.send("t", b"x"))
            broker.will(ApiKey.PRODUCE, *[refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 100_000)
            delivery = await target.send("t", b"y")
            clock.advance(60)
            asked = len(broker.requests(MetadataRequest))
            await broker.until(lambda: len(broker.requests(MetadataRequest)) > asked + 2)
            broker.faults.clear()

            def delivered_in_time() -> bool:
                clock.advance(0.1)
                return delivery.done()

            await broker.until(delivered_in_time)
            assert delivery.result().offset == 1
        await target.close()


async def test_unreachable_brokers_are_reported_with_address_and_reason() -> None:
    target = Producer("127.0.0.1:1,nosuch.invalid:9", bootstrap_timeout_ms=0)
    with pytest.raises(NoBrokers) as caught:
        await target.start()
    text = str(caught.value)
    assert "127.0.0.1:1: connection refused" in text
    assert "nosuch.invalid:9: the name nosuch.invalid cannot be resolved" in text
