"""Tests of the data source's options: their meaning, their precedence, and the error messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from pybroker.errors import ConfigError
from pybroker.spark.options import (
    COLUMNS,
    ELSEWHERE,
    NOTICED,
    OPTIONS,
    REFUSED,
    ReadRequest,
    read_request,
)
from pybroker.spark.planning import AtTime, Bounds, SnapshotSpec

BROKER: Final = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
ONE_TOPIC: Final = {**BROKER, "subscribe": "orders"}
DIRTY: Final = "read_uncommitted"

OF_SPARK: Final = (
    *("assign", "subscribe", "subscribePattern", "startingTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsets", "endingOffsets"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger"),
    *("minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *("groupIdPrefix", "kafka.group.id", "includeHeaders", "topic", "kafka.auto.offset.reset"),
    *("kafka.key.deserializer", "kafka.value.deserializer", "kafka.enable.auto.commit"),
    *("kafka.interceptor.classes", "kafka.bootstrap.servers"),
)
"""Every option of Spark's Kafka source, reading and writing, that its guide or its code names."""

_JAVA_NAMES: Final = """
allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset
bootstrap.servers check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics
fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms interceptor.classes isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records metadata.max.age.ms
metadata.recovery.strategy metadata.recovery.rebootstrap.trigger.ms metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms
request.timeout.ms retry.backoff.max.ms retry.backoff.ms sasl.jaas.config sasl.mechanism
security.protocol security.providers send.buffer.bytes session.timeout.ms
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.keystore.location
ssl.truststore.location value.deserializer
"""
OF_THE_JAVA_CONSUMER: Final = _JAVA_NAMES.split()
SAMPLES: Final = {
    "bootstrap.servers": "127.0.0.1:9092",
    "isolation.level": "read_committed",
    "security.protocol": "PLAINTEXT",
    "check.crcs": "true",
    "client.id": "spark",
}


def request(**options: str) -> ReadRequest:
    return read_request({**ONE_TOPIC, **options})


def faults(options: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read_request(options)
    return raised.value.faults


def test_defaults_are_those_of_spark() -> None:
    found = request()
    assert found.spec == SnapshotSpec(("orders",), isolation="read_uncommitted")
    assert (found.spec.starts, found.spec.ends) == (-2, -1)
    assert found.isolation is None
    assert found.fail_on_data_loss
    assert found.columns == COLUMNS[:-1]
    assert (found.min_partitions, found.max_records_per_partition) == (None, None)
    assert (found.mode, found.tombstones) == ("append", "keep")
    assert found.poll_timeout_ms == 120_000
    assert (found.planning_retries, found.planning_retry_interval_ms) == (3, 10)
    assert found.client == {"bootstrap.servers": "127.0.0.1:9092"}
    assert found.notices == ()


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({"subscribe": " a , b,a,"}, SnapshotSpec(("a", "b"), isolation=DIRTY)),
        ({"subscribePattern": "ord.*"}, SnapshotSpec(pattern="ord.*", isolation=DIRTY)),
        ({"assign": '{"a": [2, 0, 2]}'}, SnapshotSpec(partitions={"a": (0, 2)}, isolation=DIRTY)),
        ({"SUBSCRIBE": "a"}, SnapshotSpec(("a",), isolation=DIRTY)),
    ],
)
def test_partitions_are_chosen_as_in_spark(options: dict[str, str], spec: SnapshotSpec) -> None:
    assert read_request({**BROKER, **options}).spec == spec


START_RANK: Final = (
    ("startingTimestamp", "5", AtTime(5, or_latest=False)),
    ("startingOffsetsByTimestamp", '{"orders": {"0": 7}}', {"orders": {0: AtTime(7, False)}}),
    ("startingOffsets", '{"orders": {"0": -2}}', {"orders": {0: -2}}),
)
END_RANK: Final = (
    ("endingTimestamp", "5", AtTime(5)),
    ("endingOffsetsByTimestamp", '{"orders": {"0": 7}}', {"orders": {0: AtTime(7)}}),
    ("endingOffsets", '{"orders": {"0": -1}}', {"orders": {0: -1}}),
)


@pytest.mark.parametrize("chosen", range(1, 8))
@pytest.mark.parametrize("rank", [START_RANK, END_RANK], ids=["start", "end"])
def test_first_of_several_bounds_wins_with_a_notice(
    chosen: int, rank: tuple[tuple[str, str, Bounds], ...]
) -> None:
    given = [row for number, row in enumerate(rank) if chosen >> number & 1]
    found = request(**{name: text for name, text, _ in given})
    bound = found.spec.starts if rank is START_RANK else found.spec.ends
    assert bound == given[0][2]
    assert list(found.notices) == [
        f"{name} has no effect: {given[0][0]} takes precedence" for name, _, _ in given[1:]
    ]


def test_timestamp_strategy_applies_to_the_start_only() -> None:
    found = request(
        startingTimestamp="5", endingTimestamp="6", startingOffsetsByTimestampStrategy="LATEST"
    )
    assert found.spec.starts == AtTime(5, or_latest=True)
    assert found.spec.ends == AtTime(6, or_latest=True)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"startingOffsets": "EARLIEST"}, "starts", -2),
        ({"endingOffsets": " latest "}, "ends", -1),
        (
            {"endingOffsets": '{"a":{"0":3,"1":-1},"b":{"7":0}}'},
            "ends",
            {"a": {0: 3, 1: -1}, "b": {7: 0}},
        ),
        ({"kafka.isolation.level": "READ_COMMITTED"}, "isolation", "read_committed"),
    ],
)
def test_each_bound_option_is_parsed(options: dict[str, str], name: str, value: object) -> None:
    assert getattr(request(**options).spec, name) == value


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"failOnDataLoss": "FALSE"}, "fail_on_data_loss", False),
        ({"includeHeaders": "true"}, "columns", COLUMNS),
        ({"columns": "offset, KEY"}, "columns", ("offset", "key")),
        ({"columns": "headers"}, "columns", ("headers",)),
        ({"minPartitions": "12"}, "min_partitions", 12),
        ({"maxRecordsPerPartition": "5000000000"}, "max_records_per_partition", 5_000_000_000),
        ({"maxBytesPerPartition": "64m"}, "max_bytes_per_partition", 64 * 2**20),
        ({"maxBytesPerPartition": "1000"}, "max_bytes_per_partition", 1000),
        ({"maxBytesPerPartition": "2 GB"}, "max_bytes_per_partition", 2 * 2**30),
        ({"maxBytesPerPartition": "3kib"}, "max_bytes_per_partition", 3 * 2**10),
        ({"mode": "Latest"}, "mode", "latest"),
        ({"mode": "latest"}, "tombstones", "drop"),
        ({"mode": "latest", "tombstones": "keep"}, "tombstones", "keep"),
        ({"mode": "latest", "latestMemory": "1m"}, "latest_memory_bytes", 2**20),
        ({"tombstones": "drop"}, "tombstones", "drop"),
        ({"kafka.isolation.level": "READ_COMMITTED"}, "isolation", "read_committed"),
        ({"kafkaConsumer.pollTimeoutMs": "1"}, "poll_timeout_ms", 1),
        ({"fetchOffset.numRetries": "0"}, "planning_retries", 0),
        ({"fetchOffset.retryIntervalMs": "7"}, "planning_retry_interval_ms", 7),
    ],
)
def test_each_option_is_parsed(options: dict[str, str], name: str, value: object) -> None:
    assert getattr(request(**options), name) == value


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "exactly one of subscribe, subscribePattern, assign or snapshot must be given"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "not subscribe and assign"),
        ({"subscribe": " , "}, "subscribe must contain at least one name"),
        ({"subscribePattern": " "}, "subscribePattern must be a regular expression, but is empty"),
        ({"subscribePattern": "("}, "subscribePattern must be a regular expression: missing )"),
        ({"assign": "orders"}, "assign must be JSON such as"),
        ({"assign": "[]"}, "assign must be JSON such as"),
        ({"assign": "{}"}, "it contains no topic"),
        ({"assign": '{"a": []}'}, "the list of partitions of 'a' is empty"),
        ({"assign": '{"a": [0, -1]}'}, "'a' needs a list of partitions"),
        ({"assign": '{"a": [0], "a": [1]}'}, "'a' is given twice"),
    ],
)
def test_a_wrong_choice_of_partitions_is_refused(options: dict[str, str], fault: str) -> None:
    (found,) = faults({**BROKER, **options})
    assert fault in found


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets must be earliest or JSON: with latest,"),
        ({"endingOffsets": "earliest"}, "endingOffsets must be latest or JSON: with earliest,"),
        ({"startingOffsets": "soon"}, "startingOffsets must be earliest or JSON such as"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "must not be -1 (latest) for orders-0"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "must not be -2 (earliest) for orders-0"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "the value of orders-0 is '-3'"),
        ({"startingOffsets": '{"orders":{"0":1.5}}'}, "the value of orders-0 is '1.5'"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "the value of orders-0 is 'true'"),
        ({"startingOffsets": '{"orders":{"0":9223372036854775808}}'}, "of orders-0"),
        ({"startingOffsets": '{"orders":{"x":1}}'}, "'x' of 'orders' is not a partition"),
        ({"startingOffsets": '{"orders":{"-1":1}}'}, "'-1' of 'orders' is not a partition"),
        ({"startingOffsets": '{"orders":{"0":1,"00":2}}'}, "orders-0 is given twice"),
        ({"startingOffsets": '{"orders":{"0":1,"0":2}}'}, "'0' is given twice"),
        ({"startingOffsets": '{"orders":5}'}, "'orders' needs an object with partitions"),
        ({"startingOffsets": '{"orders":'}, "startingOffsets must be JSON such as"),
        ({"startingOffsets": "{" * 100_000}, "startingOffsets must be JSON such as"),
        ({"startingOffsets": '{"orders":{}}'}, "it contains no partition"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number"),
        ({"startingTimestamp": "-1"}, "startingTimestamp must be from 0"),
        ({"endingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "the value of orders-0 is '-1'"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "must be error or latest, not 'first'"),
        ({"startingTimestamp": "6", "endingTimestamp": "5"}, "6 is later than endingTimestamp 5"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss must be true or false, not 'no'"),
        ({"includeHeaders": ""}, "includeHeaders must be true or false"),
        ({"minPartitions": "0"}, "minPartitions must be from 1"),
        ({"minPartitions": "1e3"}, "minPartitions must be a whole number"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be from 1"),
        ({"maxBytesPerPartition": "0"}, "maxBytesPerPartition must be a size above 0"),
        ({"maxBytesPerPartition": "1.5g"}, "maxBytesPerPartition must be a size above 0"),
        ({"maxBytesPerPartition": "9" * 30}, "maxBytesPerPartition must be a size above 0"),
        ({"mode": "changelog"}, "mode must be append or latest, not 'changelog'"),
        ({"tombstones": "skip"}, "tombstones must be keep or drop"),
        ({"columns": "key,valeu"}, ": expected key, value,"),
        ({"columns": ""}, "columns must contain at least one name"),
        ({"columns": "key", "includeHeaders": "true"}, "does not contain headers"),
        ({"columns": "headers", "includeHeaders": "false"}, "which contains headers"),
        (
            {"mode": "latest", "minPartitions": "4"},
            "minPartitions cannot be combined with mode=latest",
        ),
        ({"latestMemory": "1g"}, "latestMemory needs mode=latest"),
        ({"mode": "latest", "latestMemory": "1025m"}, "latestMemory must be at most 1g"),
        ({"startingOffset": "earliest"}, "unknown option startingOffset; did you mean"),
        ({"nonsense": "1"}, "unknown option nonsense"),
        ({"kafka.bootstrap.servers": "a:b"}, "option kafka.bootstrap.servers"),
        ({"kafka.isolation.level": "dirty"}, "option kafka.isolation.level must be one of"),
        ({"kafka.fetch.max.byte": "1"}, "did you mean kafka.fetch.max.bytes"),
        ({"kafka.security.protocol": "SASL_SSL"}, "option kafka.security.protocol must be"),
        ({"kafka.check.crcs": "false"}, "kafka.check.crcs must be true"),
        ({"snapshot": "{}"}, "subscribe cannot be combined with snapshot"),
        ({"topic": "orders"}, "topic is for writing"),
        ({"path": "orders"}, "path is refused: a topic is not a path"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, str], fault: str) -> None:
    (found,) = faults({**ONE_TOPIC, **options})
    assert fault in found
    assert "\n" not in found
    assert len(found) < 400


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"topic": "orders"}, 'write with format("kafka")'),
        ({"topic": "orders", "checkpointLocation": "/x"}, "only reads"),
        ({"checkpointLocation": "/x"}, "is for streams"),
        ({"provider": "pybroker", "owner": "me", "option.subscribe": "x"}, "TEMPORARY VIEW"),
    ],
)
def test_options_of_writes_and_streams_are_the_only_reported_fault(
    options: dict[str, str], fault: str
) -> None:
    (found,) = faults(options)
    assert fault in found


def test_starts_and_ends_name_the_same_partitions_in_order() -> None:
    found = faults(
        {
            **ONE_TOPIC,
            "startingOffsets": '{"orders": {"0": 9, "1": 0, "2": 4}}',
            "endingOffsets": '{"orders": {"0": 8, "2": -1, "3": 5}}',
        }
    )
    assert found == [
        "orders-1 is only in startingOffsets: give it in startingOffsets and endingOffsets",
        "orders-3 is only in endingOffsets: give it in startingOffsets and endingOffsets",
        "startingOffsets 9 of orders-0 is after endingOffsets 8",
    ]


def test_all_faults_are_reported_at_once() -> None:
    assert len(faults({"minPartitions": "x", "mode": "y", "nonsense": "z"})) == 5


def test_a_snapshot_excludes_bounds_and_topics() -> None:
    found = read_request({"snapshot": " /tmp/cut.json "})
    assert found.snapshot == "/tmp/cut.json"
    assert found.client == {}
    names = ("subscribePattern", "startingTimestamp", "endingOffsets")
    beside = dict(zip(names, ("x", "1", "latest"), strict=True))
    assert faults({**BROKER, "snapshot": "{}", **beside}) == [
        f"{name} cannot be combined with snapshot, which contains the ranges to read"
        for name in names
    ]


def test_bootstrap_servers_is_required() -> None:
    assert "kafka.bootstrap.servers is missing" in faults({"subscribe": "orders"})[0]


@pytest.mark.parametrize("name", OF_SPARK)
def test_no_option_of_spark_is_ignored_silently(name: str) -> None:
    outcomes = [name in OPTIONS, name in NOTICED, name in REFUSED, name in BROKER]
    outcomes.append(name.lower() in ELSEWHERE)
    assert outcomes.count(True) == 1


@pytest.mark.parametrize("name", NOTICED)
def test_an_option_without_effect_gives_a_notice(name: str) -> None:
    (notice,) = request(**{name: "1"}).notices
    assert notice == f"{name} {NOTICED[name]}"


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_option_has_a_reason(name: str) -> None:
    whole = f"{name}x" if name.endswith(".") else name
    assert faults({**ONE_TOPIC, whole: "1"}) == [f"{whole} {REFUSED[name]}"]


@pytest.mark.parametrize("name", OF_THE_JAVA_CONSUMER)
def test_no_option_of_the_java_consumer_is_ignored_silently(name: str) -> None:
    full = f"kafka.{name}"
    try:
        found = request(**{full: SAMPLES.get(name, "1000")})
    except ConfigError as error:
        (fault,) = error.faults
        assert fault.startswith(full)
        return
    noticed = any(notice.startswith(full) for notice in found.notices)
    honoured = name in found.client or (name == "isolation.level" and found.isolation is not None)
    assert noticed != honoured
