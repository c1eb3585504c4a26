"""Tests of the metrics page: it is complete, Prometheus' parser accepts it, and rendering it does
not stall the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pybroker.admin.exposition import MetricsPage, api_label, meters
from pybroker.admin.families import FAMILIES
from pybroker.admin.loop_watch import LoopWatch
from pybroker.admin.partition_rows import AT_A_TIME
from pybroker.admin.view import BrokerView, GroupNumbers, TransactionNumbers
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError
from pybroker.group_lag import GroupProgress, Lag, ProgressReport
from pybroker.metrics import FetcherCounters
from pybroker.metrics_text import labels
from pybroker.model import TopicPartition
from pybroker.ports import SessionEvent
from pybroker.records.batch import read_header
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_parts import Damage
from pybroker.storage.replica_health import Event
from pybroker.wire.api import ApiKey
from unit_tests.admin.vocabulary import Shown
from unit_tests.replication.vocabulary import ME, facts
from unit_tests.storage.batches import batch, marker

HEALTH = ("damaged", "suspect", "incomplete")
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def chunks_of(view: BrokerView) -> AsyncIterator[bytes]:
    rooms = view.rooms
    watch = LoopWatch(lambda: iter(()) if rooms is None else meters(rooms))
    watch.start()
    try:
        async for chunk in MetricsPage(view, watch).chunks():
            yield chunk
    finally:
        watch.stop()


async def page(view: BrokerView) -> str:
    return b"".join([chunk async for chunk in chunks_of(view)]).decode()


def samples(text: str) -> Samples:
    """Return the value of each sample by name and labels. Raises ValueError for a sample that
    occurs twice."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            if key in found:
                raise ValueError(f"{key} occurs twice")
            found[key] = sample.value
    return found


async def value(shown: Shown, name: str, **where: str) -> float | None:
    return samples(await page(shown.view)).get((name, frozenset(where.items())))


async def test_page_has_each_family_once_with_its_type(shown: Shown) -> None:
    await shown.hosts(facts())
    text = await page(shown.view)
    for family in FAMILIES.values():
        assert text.count(f"# TYPE {family.name} {family.kind}\n") == 1, family.name
        assert text.count(f"# HELP {family.name} ") == 1
    assert samples(text)


async def test_each_sample_belongs_to_its_family(shown: Shown) -> None:
    await shown.hosts(facts())
    family = ""
    for line in (await page(shown.view)).splitlines():
        if line.startswith("# HELP"):
            family = line.split()[2]
        elif not line.startswith("#"):
            name = line.split("{")[0].split(" ")[0]
            assert name in (family, f"{family}_sum", f"{family}_count", f"{family}_created"), line


async def test_process_metrics_have_the_names_of_prometheus(shown: Shown) -> None:
    text = await page(shown.view)
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert f"\n{name} " in f"\n{text}"


async def test_process_metrics_are_shown_before_the_broker_starts() -> None:
    text = await page(BrokerView(BrokerConfig()))
    found = samples(text)
    assert found["kafka_server_kafkaserver_brokerstate", frozenset()] == 1
    assert found["pybroker_ready", frozenset({("condition", "started")})] == 0


async def test_records_are_counted_per_topic_and_in_total(shown: Shown) -> None:
    other = TopicPartition("other", 0)
    await shown.hosts(facts(), facts(other))
    shown.replicas.append(b"a", b"b")
    shown.replicas.append(b"c", key=other)
    start = "kafka_server_brokertopicmetrics_messagesin_total"
    assert await value(shown, start, topic="t") == 2
    assert await value(shown, start, topic="other") == 1
    assert await value(shown, start) == 3
    await shown.replicas.stopped(other)
    assert await value(shown, start, topic="other") is None
    assert await value(shown, start) == 3


async def test_offsets_and_sizes_equal_those_of_the_log(shown: Shown) -> None:
    await shown.hosts(facts())
    shown.replicas.append(b"a", b"b", b"c")
    found = samples(await page(shown.view))
    where = frozenset({("topic", "t"), ("partition", "0")})
    assert found["kafka_log_log_logendoffset", where] == 3
    assert found["kafka_log_log_logstartoffset", where] == 0
    assert found["kafka_log_log_size", where] == shown.replicas.partition().log.size_bytes
    assert found["kafka_topic_partition_current_offset", where] == 3
    assert found["kafka_topic_partition_oldest_offset", where] == 0
    assert found["kafka_topic_partition_leader", where] == ME
    assert found["kafka_topic_partition_leader_is_preferred", where] == 1


async def test_open_transaction_keeps_the_last_stable_offset_behind(shown: Shown) -> None:
    await shown.hosts(facts())
    shown.replicas.append(b"a")
    partition = shown.replicas.partition()
    where = frozenset({("topic", "t"), ("partition", "0")})
    for data, lag in (
        (batch(2, producer=7, sequence=0, transactional=True), 2),
        (batch(3), 5),
        (marker(7, commit=True), 0),
    ):
        partition.append(memoryview(data), read_header(data), acks=1, now_ms=0)
        found = samples(await page(shown.view))
        assert found["kafka_cluster_partition_laststableoffsetlag", where] == lag
        assert found["kafka_topic_partition_current_offset", where] == partition.high_watermark


async def test_damaged_replicas_and_full_directories_are_counted(
    shown: Shown,
) -> None:
    keys = [TopicPartition("t", number) for number in range(6)]
    await shown.hosts(*(facts(key) for key in keys))
    gone = TopicPartition("gone", 0)
    hole = Damage(7, "/d/t-0/00.log", 99, "wrong checksum")
    health = shown.replicas.logs.health
    for key in (keys[0], gone):
        health.move(key, Event.CORRUPT, damage=hole)
    health.move(keys[1], Event.UNSYNCED)
    for key in keys[2:]:
        health.move(key, Event.COPY_BEGUN)
    health.move(keys[4], Event.ORPHANED)
    for _ in range(2):  # it may lead, because no other replica has more
        health.move(keys[5], Event.ORPHANED)
    shown.full, shown.free = ["/b"], {"/a": 2**40, "/b": 0}
    found = samples(await page(shown.view))
    values = {name: found[f"pybroker_{name}_replicas", frozenset()] for name in HEALTH}
    assert values == {"damaged": 1, "suspect": 1, "incomplete": 3}
    assert found["pybroker_full_log_directories", frozenset()] == 1
    for path, free in shown.free.items():
        where = frozenset({("logDirectory", path)})
        assert found["pybroker_log_directory_free_bytes", where] == free


async def test_leader_counts_replicas(shown: Shown) -> None:
    await shown.hosts(
        facts(TopicPartition("t", 0), isr=(ME,), replicas=(ME, 2)),
        facts(TopicPartition("t", 1), leader=2, isr=(ME, 2)),
        facts(TopicPartition("t", 2), leader=-1, isr=(2,), replicas=(2, ME)),
    )
    start = "kafka_server_replicamanager_"
    found = samples(await page(shown.view))
    nothing: frozenset[tuple[str, str]] = frozenset()
    assert found[f"{start}partitioncount", nothing] == 3
    assert found[f"{start}leadercount", nothing] == 1
    assert found[f"{start}underreplicatedpartitions", nothing] == 1
    assert found[f"{start}atminisrpartitioncount", nothing] == 1
    controller = "kafka_controller_kafkacontroller_"
    assert found[f"{controller}offlinepartitionscount", nothing] == 1
    assert found[f"{controller}globalpartitioncount", nothing] == 3
    told = {dict(where)["partition"] for name, where in found if name.endswith("partition_leader")}
    assert told == {"0", "2"}, "led here, or without a leader"


async def test_fetches_from_leaders_are_counted(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shown.hosts(*(facts(TopicPartition("t", each), leader=2) for each in range(3)))
    copies = {
        key: FollowedPartition(each) for key, each in shown.replicas.manager.partitions.items()
    }
    behind, failing, _ = copies.values()
    behind.lag, failing.failures = 7, 3
    monkeypatch.setattr(ReplicaManager, "copies", copies)
    shown.metrics.fetchers = {2: FetcherCounters(requests=5, bytes=400), 3: FetcherCounters(1)}
    found = samples(await page(shown.view))
    nothing: frozenset[tuple[str, str]] = frozenset()
    manager = "kafka_server_replicafetchermanager_"
    assert found[f"{manager}maxlag", nothing] == 7
    assert found[f"{manager}failedpartitionscount", nothing] == 1
    broker = frozenset({("broker", "2")})
    assert found["kafka_server_fetcherstats_requests_total", broker] == 5
    assert found["kafka_server_fetcherstats_bytes_total", broker] == 400
    assert found["kafka_server_brokertopicmetrics_replicationbytesin_total", nothing] == 400


async def test_only_the_controller_shows_cluster_metrics(shown: Shown) -> None:
    await shown.hosts(facts(TopicPartition("t", 2), leader=-1, isr=(2,), replicas=(2, ME)))
    shown.controller.is_active = False
    text = await page(shown.view)
    assert "\nkafka_brokers " not in text and "\nkafka_topic_partitions{" not in text
    assert "\nkafka_controller_kafkacontroller_offlinepartitionscount 0\n" in text


async def test_request_metrics_have_kafka_names_and_ms(shown: Shown) -> None:
    meter = shown.metrics.requests[ApiKey.INIT_PRODUCER_ID]
    meter.count = 2
    meter.times.add(0.25)
    meter.times.add(0.75)
    found = samples(await page(shown.view))
    where = frozenset({("request", "InitProducerId")})
    assert found["kafka_network_requestmetrics_requests_total", where] == 2
    assert found["kafka_network_requestmetrics_totaltimems_sum", where] == 1000
    assert found["kafka_network_requestmetrics_totaltimems_count", where] == 2


def test_api_labels_are_kafka_names() -> None:
    assert [api_label(key) for key in (ApiKey.PRODUCE, ApiKey.API_VERSIONS)] == [
        "Produce",
        "ApiVersions",
    ]


async def test_groups_are_counted_by_state(shown: Shown) -> None:
    shown.groups = GroupNumbers({"stable": 3, "empty": 1}, 5, 2, 0.25, 0.125)
    shown.metrics.groups.completed_rebalances = 7
    group, coordinator = "kafka_coordinator_group_groupmetadatamanager", "kafka_server_group"
    assert await value(shown, f"{group}_numgroups") == 4
    assert await value(shown, f"{group}_numgroupsstable") == 3
    assert await value(shown, f"{group}_numgroupspreparingrebalance") == 0
    metrics = f"{coordinator}_coordinator_metrics"
    assert await value(shown, f"{metrics}_group_completed_rebalance_count") == 7
    assert await value(shown, f"{metrics}_partition_load_time_max") == 250
    assert await value(shown, f"{metrics}_partition_load_time_avg") == 125
    assert await value(shown, "pybroker_group_coordinator_partitions") == 5
    assert await value(shown, "pybroker_group_coordinator_partitions_loading") == 2


async def test_transaction_coordinator_has_kafkas_metrics(shown: Shown) -> None:
    shown.transactions = TransactionNumbers(9, 5, 2, 0.25, 0.125, 4, 3, 1)
    shown.metrics.verification_failures = 6
    shown.metrics.verifications.add(0.5)
    manager = "kafka_coordinator_transaction_transactionmarkerchannelmanager"
    assert await value(shown, f"{manager}_unknowndestinationqueuesize") == 3
    assert await value(shown, f"{manager}_logappendretryqueuesize") == 1
    metrics = "kafka_server_transaction_coordinator_metrics"
    assert await value(shown, f"{metrics}_partition_load_time_max") == 250
    assert await value(shown, f"{metrics}_partition_load_time_avg") == 125
    assert await value(shown, "pybroker_transaction_coordinator_partitions") == 5
    assert await value(shown, "pybroker_transaction_coordinator_partitions_loading") == 2
    assert await value(shown, "pybroker_transactional_ids") == 9
    assert await value(shown, "pybroker_transaction_markers_waiting") == 4
    verification = "kafka_server_addpartitionstotxnmanager_verification"
    assert await value(shown, f"{verification}failurerate_total") == 6
    assert await value(shown, f"{verification}timems_sum") == 500


async def test_partition_with_a_late_transaction_is_counted(shown: Shown) -> None:
    await shown.hosts(facts())
    clock, partition = shown.replicas.clock, shown.replicas.partition()
    data = batch(producer=7, sequence=0, transactional=True)
    partition.append(memoryview(data), read_header(data), acks=1, now_ms=clock.wall_ms())
    name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    clock.advance(900)
    assert await value(shown, name) == 0
    clock.advance(1)
    assert await value(shown, name) == 1


async def test_expired_sessions_and_lost_connections_are_counted(shown: Shown) -> None:
    for event in (SessionEvent.SUSPENDED, SessionEvent.EXPIRED):
        shown.session.heard(event)
    shown.metrics.connection_closed("idle")
    assert await value(shown, "pybroker_zookeeper_connected") == 0
    start = "kafka_server_sessionexpirelistener_zookeeper"
    assert await value(shown, f"{start}expires_total") == 1
    assert await value(shown, f"{start}disconnects_total") == 1
    assert await value(shown, "pybroker_connections_closed_total", reason="idle") == 1
    assert await value(shown, "pybroker_connections", listener="PLAINTEXT") == 3
    assert await value(shown, "pybroker_unsent_bytes") == 17


async def test_replica_that_is_not_open_is_counted(shown: Shown) -> None:
    shown.knows(facts(TopicPartition("t", 7)))
    with pytest.raises(BrokerError):
        shown.replicas.partition(TopicPartition("t", 7))
    assert await value(shown, "kafka_server_replicamanager_offlinereplicacount") == 1


def test_labels_are_escaped() -> None:
    assert labels({"topic": 'a"b\\c\nd'}) == r'{topic="a\"b\\c\nd"}'
    assert labels({}) == ""


async def test_page_of_many_partitions_yields_to_the_event_loop(shown: Shown) -> None:
    """The broker renders a limited part of the page in each iteration of the event loop."""
    shown.knows(*(facts(TopicPartition(f"topic-{n // 10}", n % 10)) for n in range(5000)))
    lines_of_turn = [0]

    async def breathe() -> None:
        while True:
            await asyncio.sleep(0)
            lines_of_turn.append(0)

    breathing = asyncio.create_task(breathe())
    chunks = []
    async for chunk in chunks_of(shown.view):
        chunks.append(chunk)
        lines_of_turn[-1] += chunk.count(b"\n")
    breathing.cancel()
    assert b"".join(chunks).count(b"\nkafka_topic_partitions{") == 500
    assert max(lines_of_turn) < 2 * AT_A_TIME
    assert len(lines_of_turn) > 5000 / AT_A_TIME + sum(lines_of_turn) / AT_A_TIME


async def test_group_metrics_are_shown_per_partition_and_per_topic(shown: Shown) -> None:
    a0, a1 = TopicPartition("a", 0), TopicPartition("a", 1)
    behind = GroupProgress('g"', 2, {a0: 5, a1: 7}, {a0: Lag(3, 300, 1.5), a1: Lag(4, None, None)})
    shown.progress = ProgressReport((behind, GroupProgress("h")), 2.5)
    found = samples(await page(shown.view))

    def of(name: str, **where: str) -> float | None:
        return found.get((name, frozenset(where.items())))

    start = "kafka_consumergroup"
    where = {"consumergroup": 'g"', "topic": "a", "partition": "0"}
    assert of(f"{start}_members", consumergroup='g"') == 2
    assert of(f"{start}_members", consumergroup="h") == 0
    assert of(f"{start}_current_offset", **where) == 5
    assert of(f"{start}_current_offset_sum", consumergroup='g"', topic="a") == 12
    assert of(f"{start}_lag", **where) == 3
    assert of(f"{start}_lag_sum", consumergroup='g"', topic="a") == 7
    assert of("pybroker_group_lag_bytes", **where) == 300
    assert of("pybroker_group_lag_seconds", **where) == 1.5
    assert of("pybroker_group_lag_seconds", **{**where, "partition": "1"}) is None
    assert of("pybroker_group_lag_age_seconds") == 2.5


async def test_group_metrics_have_no_lines_without_a_report(shown: Shown) -> None:
    assert not any(
        name.startswith("kafka_consumergroup") for name, _ in samples(await page(shown.view))
    )
    assert await value(shown, "pybroker_group_lag_age_seconds") is None
