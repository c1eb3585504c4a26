"""Tests of the metrics of producers and consumers: their sums agree with what was sent and read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pybroker.client import (
    ConsumerMetrics,
    DeliveryFailed,
    Producer,
    ProducerMetrics,
    prometheus_text,
)
from pybroker.client.metrics import FAMILIES
from pybroker.clock import ManualClock
from pybroker.errors import ErrorCode
from pybroker.metrics import HISTOGRAM
from pybroker.metrics_text import LIMITS_S
from pybroker.model import TopicPartition
from pybroker.records.batch import iter_headers, read_header
from pybroker.records.compression import Codec
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchRequest
from pybroker.wire.messages.produce import ProduceRequest, ProduceResponse
from unit_tests.client.fake_broker import (
    BEHAVE,
    LOSE_ANSWER,
    LOSE_REQUEST,
    NEVER_ANSWER,
    FakeBroker,
    Fault,
    refuse,
)
from unit_tests.client.group_readers import a_group, join, member, tp
from unit_tests.client.held_logs import (
    SEEN,
    T0,
    T1,
    batch,
    consumer,
    holding,
    holding_transactions,
    values,
)
from unit_tests.idle_loop import idle
from unit_tests.patience import PATIENCE_MS, PATIENCE_S

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
}


def producer(broker: FakeBroker, **options: Any) -> Producer:
    return Producer(broker.address, **{**QUICK, **options})


def sent_batches(broker: FakeBroker) -> list[int]:
    """Return the number of records of each batch that was sent, also of those sent again."""
    return [
        header.record_count
        for request in broker.requests(ProduceRequest)
        if isinstance(request, ProduceRequest)
        for topic in request.topic_data
        for data in topic.partition_data
        for _, header in iter_headers(data.records or b"")
    ]


# Producers


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    records=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.binary(max_size=60)), max_size=30
    ),
    faults=st.lists(
        st.sampled_from(
            [
                BEHAVE,
                LOSE_REQUEST,
                LOSE_ANSWER,
                refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER),
                refuse(ErrorCode.INVALID_TIMESTAMP),
            ]
        ),
        max_size=6,
    ),
    batch_size=st.sampled_from([0, 100, 16_384]),
    codec=st.sampled_from(["none", "gzip"]),
)
def test_sums_of_a_producer_agree_with_what_was_sent(
    records: list[tuple[str, int, bytes]], faults: list[Fault], batch_size: int, codec: str
) -> None:
    asyncio.run(
        _send_and_add(
            records, faults, batch_size=batch_size, compression_type=codec, max_in_flight=1
        )
    )


async def _send_and_add(
    records: list[tuple[str, int, bytes]], faults: list[Fault], **options: Any
) -> None:
    async with FakeBroker({"a": 2, "b": 2}) as broker:
        broker.will(ApiKey.PRODUCE, *faults)
        target = producer(broker, **options)
        failed = 0
        stored: set[tuple[str, int, int]] = set()
        async with target:
            deliveries = [
                await target.send(topic, value, partition=number)
                for topic, number, value in records
            ]
            for delivery in deliveries:
                try:
                    done = await delivery
                    stored.add((done.topic, done.partition, done.offset))
                except DeliveryFailed:
                    failed += 1
        found = target.metrics()
        assert found.total.failed_records == failed
        assert found.total.records == len(stored) == len(records) - failed
        sent = sent_batches(broker)
        assert found.total.records + failed + found.total.retried_records == sum(sent)
        for topic, counters in found.topics.items():
            batches = [
                data
                for key, log in broker.partitions.items()
                for data in log.batches
                if (*key, read_header(data).base_offset) in stored and key.topic == topic
            ]
            assert counters.batches == len(batches)
            assert counters.bytes == sum(map(len, batches))
            if options["compression_type"] == "none":
                assert counters.uncompressed_bytes == counters.bytes
        requests = len(broker.requests(ProduceRequest))
        assert found.request_latency.count + found.failed_requests == requests
        assert found.total.batches <= found.queue_time.count <= len(sent)
        assert (found.undelivered_records, found.requests_in_flight) == (0, 0)
        assert found.buffer_available_bytes == found.buffer_total_bytes == 33_554_432


async def test_halves_of_a_batch_count_its_records_once() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.MESSAGE_TOO_LARGE))
        async with producer(broker, linger_ms=60_000) as target:
            for _ in range(5):
                await target.send("t", b"v")
            await target.flush()
            assert sent_batches(broker) == [5, 2, 3]
            total = target.metrics().total
            assert (total.records, total.batches, total.failed_records) == (5, 2, 0)


async def test_records_without_acknowledgements_count_when_they_are_sent() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker, acks=0) as target:
        await target.send_and_wait("t", b"v")
        found = target.metrics()
        assert (found.total.records, found.request_latency.count) == (1, 0)


async def test_a_late_answer_does_not_count_records_that_have_failed() -> None:
    async with FakeBroker({"t": 1}) as broker, asyncio.timeout(PATIENCE_S):
        repeated, answer = asyncio.Event(), asyncio.Event()
        store = broker.handlers[ApiKey.PRODUCE]

        async def late(request: Any) -> Any:
            repeated.set()
            await answer.wait()
            return store(request)

        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        broker.handlers[ApiKey.PRODUCE] = late
        clock = ManualClock()
        async with Producer(broker.address, clock=clock, retry_backoff_ms=0) as target:
            delivery = await target.send("t", b"v")
            await repeated.wait()
            clock.advance(target.options.delivery_timeout_ms / 1_000)
            with pytest.raises(DeliveryFailed, match=r"delivery\.timeout\.ms"):
                await delivery
            answer.set()
            await target.send_and_wait("t", b"w")
            assert broker.partition().values() == [b"v", b"w"]
            total = target.metrics().total
            assert (total.records, total.failed_records, total.retried_records) == (1, 1, 1)


async def test_unanswered_records_are_shown_with_their_memory() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.will(ApiKey.PRODUCE, NEVER_ANSWER)
        target = producer(broker, buffer_memory=20_000)
        await target.start()
        await target.send("t", b"v" * 19_000)
        await broker.until(lambda: bool(broker.requests(ProduceRequest)))
        waiting = asyncio.create_task(target.send("t", b"w" * 2_000))
        await idle()
        found = target.metrics()
        assert found.waiting_sends == 1
        assert (found.undelivered_records, found.requests_in_flight) == (1, 1)
        assert found.buffer_total_bytes == 20_000 and found.buffer_available_bytes < 1_000
        waiting.cancel()
        await target.close(0)
        found = target.metrics()
        assert (found.undelivered_records, found.total.failed_records) == (0, 1)


async def test_metrics_are_a_copy() -> None:
    async with FakeBroker({"t": 1}) as broker, producer(broker) as target:
        before = target.metrics()
        await target.send_and_wait("t", b"v")
        assert (before.total.records, before.request_latency.count) == (0, 0)
        assert before.topics["t"].records == before.topics["another"].records == 0
        assert target.metrics().topics.keys() == {"t"}


async def test_throttling_by_brokers_is_added_up() -> None:
    async with FakeBroker({"t": 1}) as broker:
        for key in (ApiKey.PRODUCE, ApiKey.FETCH):
            broker.handlers[key] = throttled(broker.handlers[key], 7)
        async with producer(broker) as target, consumer(broker) as reader:
            for _ in range(2):
                await target.send_and_wait("t", b"v")
            assert target.metrics().throttle_ms == 14
            reader.assign([T0])
            await values(reader, 2)
            found = reader.metrics()
            assert found.throttle_ms == 7 * found.fetch_latency.count > 0


def throttled(handler: Any, throttle_ms: int) -> Any:
    async def answer(request: Any) -> Any:
        found = handler(request)
        response = found if isinstance(found, ProduceResponse) else await found
        response.throttle_time_ms = throttle_ms
        return response

    return answer


# Consumers


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    calls=st.lists(
        st.sampled_from(["getone", "getmany", "few", "columns", "seek", "assign"]), max_size=12
    ),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
)
def test_sums_of_a_consumer_agree_with_what_was_read(
    sizes: list[int], calls: list[str], codec: Codec
) -> None:
    asyncio.run(_read_and_add(sizes, calls, codec))


async def _read_and_add(sizes: list[int], calls: list[str], codec: Codec) -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        for partition in (0, 1):
            batches = [batch(*[b"v"] * size, codec=codec) for size in sizes]
            holding(broker.partition("t", partition), *batches)
        target.assign([T0, T1])
        read = 0
        async with asyncio.timeout(PATIENCE_S):
            for call in calls:
                read += await _one_call(target, call)
                assert target.metrics().total.records == read
            target.seek_to_beginning()
            left = 2 * sum(sizes)
            while left:
                records = await target.getmany(timeout_ms=PATIENCE_MS)
                left -= sum(map(len, records.values()))
        found = target.metrics()
        assert found.total.records == read + 2 * sum(sizes)
        assert found.lag == {T0: 0, T1: 0}
        assert found.assigned_partitions == 2
        stored = sum(len(data) for log in broker.partitions.values() for data in log.batches)
        assert found.total.fetched_bytes >= stored
        requests = len(broker.requests(FetchRequest))
        assert requests - 2 <= found.fetch_latency.count <= requests


async def _one_call(target: Any, call: str) -> int:
    """Make one call, and return the number of records that the consumer returned."""
    if call == "seek":
        target.seek(T0, 1)
    elif call == "assign":
        target.assign([T1])
        target.assign([T1, T0])
    elif call == "columns":
        pytest.importorskip("pyarrow", reason="needs the extra arrow")
        return sum(table.num_rows for table in (await target.poll_arrow(5)).values())
    elif call == "getone":
        lag = target.metrics().lag
        if lag and not any(lag.values()):
            return 0
        await target.getone()
        return 1
    else:
        limit = 3 if call == "few" else None
        return sum(map(len, (await target.getmany(timeout_ms=5, max_records=limit)).values()))
    return 0


@SEEN
async def test_only_records_that_the_application_gets_count(
    level: str, expected: list[bytes]
) -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker, isolation_level=level) as target:
        holding_transactions(broker.partition())
        target.assign([T0])
        await values(target, len(expected))
        assert target.metrics().total.records == len(expected)


async def test_lag_is_shown_once_it_is_known() -> None:
    async with FakeBroker({"t": 2}) as broker, consumer(broker) as target:
        holding(broker.partition(), batch(b"a", b"b", b"c"))
        target.assign([T0])
        assert target.metrics().lag == {}
        await values(target, 1)
        assert target.metrics().lag == {T0: 2}
        target.assign([])
        assert target.metrics().lag == {}


async def test_rebalances_and_commits_of_a_group_count() -> None:
    async with a_group(t=1) as group, member(group, enable_auto_commit=False) as target:
        target.subscribe(["t"])
        await join(target)
        await target.commit({tp(0): 1})
        group.will(ApiKey.OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await target.commit({tp(0): 2})
        found = target.metrics()
        assert (found.rebalance_latency.count, found.assigned_partitions) == (1, 1)
        assert (found.commit_latency.count, found.failed_commits) == (3, 1)
        group.will(ApiKey.OFFSET_COMMIT, ErrorCode.OFFSET_METADATA_TOO_LARGE)
        with pytest.raises(Exception, match="OFFSET_METADATA_TOO_LARGE"):
            await target.commit({tp(0): 3})
        assert target.metrics().failed_commits == 2


async def test_failed_fetches_count() -> None:
    async with FakeBroker({"t": 1}) as broker, consumer(broker) as target:
        broker.will(ApiKey.FETCH, LOSE_REQUEST, LOSE_REQUEST)
        holding(broker.partition(), batch(b"a"))
        target.assign([T0])
        await values(target, 1)
        assert target.metrics().failed_fetches == 2


# The callback


async def test_the_callback_gets_metrics_regularly_and_at_the_end() -> None:
    reports: list[ProducerMetrics] = []
    enough = asyncio.Event()

    def report(metrics: ProducerMetrics) -> None:
        reports.append(metrics)
        if len(reports) == 3:
            enough.set()

    async with FakeBroker({"t": 1}) as broker:
        async with producer(broker, on_metrics=report, statistics_interval_ms=1) as target:
            async with asyncio.timeout(PATIENCE_S):
                await enough.wait()
            await target.send("t", b"v")
        assert reports[-1].total.records == 1
        count = len(reports)
        await target.close()
        assert len(reports) == count


async def test_without_an_interval_the_callback_is_called_at_the_end_only() -> None:
    reports: list[ConsumerMetrics] = []

    async def report(metrics: ConsumerMetrics) -> None:
        reports.append(metrics)

    async with FakeBroker({"t": 1}) as broker:
        holding(broker.partition(), batch(b"a"))
        options = {"on_metrics": report, "statistics_interval_ms": 0}
        async with consumer(broker, **options) as target:
            target.assign([T0])
            await values(target, 1)
            assert reports == []
        assert [each.total.records for each in reports] == [1]


async def test_a_callback_that_fails_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    calls = 0
    enough = asyncio.Event()

    def report(_: ProducerMetrics) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            enough.set()
        raise KeyError("label")

    async with FakeBroker({"t": 1}) as broker:
        options = {"on_metrics": report, "statistics_interval_ms": 1}
        async with producer(broker, **options), asyncio.timeout(PATIENCE_S):
            await enough.wait()
    assert "callback on_metrics failed" in caplog.text
    assert "KeyError: 'label'" in caplog.text


async def test_a_client_that_did_not_start_does_not_report() -> None:
    reports: list[ProducerMetrics] = []
    target = Producer("127.0.0.1:1", on_metrics=reports.append)
    await target.close()
    assert reports == []


# Prometheus


def some_metrics(client_id: str = "app") -> tuple[ProducerMetrics, ConsumerMetrics]:
    sent, read = ProducerMetrics(client_id), ConsumerMetrics(client_id)
    sent.topics["orders"].records = 3
    sent.request_latency.add(0.003)
    sent.request_latency.add(100.0)
    read.topics["orders"].records = 2
    read.lag[TopicPartition("orders", 1)] = 7
    return sent, read


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for found in text_string_to_metric_families(text)
        for each in found.samples
    }


def test_the_text_has_every_metric_with_its_help_once() -> None:
    text = prometheus_text(*some_metrics())
    for of in FAMILIES:
        assert text.count(f"# HELP {of.name} {of.meaning}\n") == 1
        assert text.count(f"# TYPE {of.name} {of.kind}\n") == 1
    for name, labels in samples(text):
        of = next(each for each in FAMILIES if name.startswith(each.name))
        extra = {"le"} if name.endswith("_bucket") else set()
        assert {label for label, _ in labels} == {*of.labels, *extra}, name


def test_the_text_has_the_values() -> None:
    found = samples(prometheus_text(*some_metrics()))
    app, orders = ("client_id", "app"), ("topic", "orders")
    assert found["kafka_producer_producer_topic_metrics_record_send_total", (app, orders)] == 3
    lag = "kafka_consumer_consumer_fetch_manager_metrics_records_lag"
    assert found[lag, (app, ("partition", "1"), orders)] == 7
    name = "pybroker_producer_request_latency_seconds"
    assert found[f"{name}_count", (app,)] == 2
    assert found[f"{name}_sum", (app,)] == pytest.approx(100.003)
    buckets = {
        dict(labels)["le"]: value
        for (each, labels), value in found.items()
        if each == f"{name}_bucket"
    }
    assert [*buckets] == [*map(str, LIMITS_S), "+Inf"]
    assert (buckets["0.001953125"], buckets["0.00390625"], buckets["32.0"]) == (0, 1, 1)
    assert buckets["+Inf"] == 2


def test_values_of_clients_with_one_name_are_added() -> None:
    one, _ = some_metrics()
    other, _ = some_metrics()
    third, _ = some_metrics('b"\\')
    found = samples(prometheus_text(one, other, third))
    name, orders = "kafka_producer_producer_topic_metrics_record_send_total", ("topic", "orders")
    assert found[name, (("client_id", "app"), orders)] == 6
    assert found[name, (("client_id", 'b"\\'), orders)] == 3
    latency = "pybroker_producer_request_latency_seconds_bucket"
    assert found[latency, (("client_id", "app"), ("le", "+Inf"))] == 4


def test_names_of_metrics_follow_the_rules_of_prometheus() -> None:
    assert len({of.name for of in FAMILIES}) == len(FAMILIES)
    for of in FAMILIES:
        assert of.name.endswith("_total") == (of.kind == "counter"), of.name
        assert of.name.endswith("_seconds") == (of.kind == HISTOGRAM), of.name
        assert of.labels[0] == "client_id"


def test_quantiles_of_latencies() -> None:
    sent, _ = some_metrics()
    assert sent.request_latency.quantile_s(0.5) == pytest.approx(0.003, rel=0.13)
