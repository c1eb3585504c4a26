"""Tests of exact ranges: of transactions and of compaction, on our broker and on Apache Kafka,
compared with librdkafka's consumer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from pyspark.sql import SparkSession

from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.etl_numbers import Numbers
from integration_tests.ranges import fill, make_topic, numbers, read
from integration_tests.spark_topics import fault
from pybroker.client import Admin, ConfigChange, ConfigResource
from pybroker.client.range_reader import PartitionRange, RangeFailed, RangeFault
from pybroker.spark import snapshot
from pybroker.spark.etl import read_output
from pybroker.spark.etl.files import OutputError
from pybroker.spark.snapshot import Snapshot
from unit_tests.patience import PATIENCE_S, wait_until

OVERRIDES: Final = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.threads": "1",
    "log.retention.check.interval.ms": "200",
}
LEVELS: Final = ("read_committed", "read_uncommitted")
Rows = list[tuple[int, bytes | None]]


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    made = or_skip(
        lambda: ApacheKafka(tmp_path_factory.mktemp("apache"), overrides=OVERRIDES, heap_mib=512)
    )
    with closing(made):
        made.start()
        yield made


@pytest.fixture(scope="module", params=["ours", "apache"])
def either(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    if request.param == "apache":
        yield request.getfixturevalue("apache")
        return
    with closing(PybrokerProcess(tmp_path_factory.mktemp("ours"), overrides=OVERRIDES)) as made:
        made.start()
        yield made


def transactional(broker: Broker, name: str) -> confluent_kafka.Producer:
    options = {"bootstrap.servers": broker.bootstrap, "transactional.id": name}
    producer = confluent_kafka.Producer(options)
    producer.init_transactions(60)
    return producer


def transaction(producer: confluent_kafka.Producer, topic: str, values: str, end: str) -> None:
    """Write one record for each letter in a transaction. `end` is commit, abort, or empty for a
    transaction that stays open.
    """
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
        producer.flush(PATIENCE_S)
    if end:
        getattr(producer, f"{end}_transaction")(60)


def outside(broker: Broker, topic: str, level: str, end: int) -> Rows:
    """Return the records that librdkafka reads from the partition up to an offset."""
    options: dict[str, Any] = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": "outside",
        "isolation.level": level,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    }
    found: Rows = []
    with closing(confluent_kafka.Consumer(options)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        while True:
            (message,) = consumer.consume(1, 60)
            error, offset = message.error(), message.offset()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return [row for row in found if row[0] < end]
            assert offset is not None
            found.append((offset, message.value()))


def cut(broker: Broker, topic: str, level: str, **options: Any) -> PartitionRange:
    (item,) = taken(broker, topic, level, **options).ranges()
    return item


def taken(broker: Broker, topic: str, level: str, **options: Any) -> Snapshot:
    return snapshot.take(broker.bootstrap, topics=[topic], isolation=level, **options)


def wait_for_end(broker: Broker, topic: str, end: int) -> None:
    """Wait for the log end `end`, because a producer's commit returns before the markers are
    written.
    """
    wait_until(
        lambda: cut(broker, topic, "read_committed").end == end, what=f"all is decided up to {end}"
    )


def test_transactions_are_read_as_other_clients_read_them(either: Broker, topic: str) -> None:
    make_topic(either.bootstrap, topic)
    one, two = transactional(either, f"{topic}-1"), transactional(either, f"{topic}-2")
    transaction(one, topic, "abc", "commit")
    transaction(two, topic, "de", "abort")
    fill(either.bootstrap, topic, 0, 5)
    transaction(one, topic, "fg", "")
    transaction(two, topic, "hij", "commit")
    one.abort_transaction(60)
    transaction(two, topic, "k", "commit")
    transaction(one, topic, "lm", "abort")
    wait_for_end(either, topic, 24)
    for level in LEVELS:
        item = cut(either, topic, level)
        expected = outside(either, topic, level, item.end)
        assert item.end > expected[-1][0] + 1, "the range ends with what is no record"
        assert read(either.bootstrap, item, isolation=level) == expected
        for middle in range(0, item.end, 3):
            rows = []
            for start, end in ((0, middle), (middle, item.end)):
                piece = PartitionRange(topic, 0, start, end, item.topic_id, item.leader_epoch)
                rows += read(either.bootstrap, piece, isolation=level)
            assert rows == expected


def test_a_snapshot_ends_at_the_last_stable_offset(either: Broker, topic: str) -> None:
    make_topic(either.bootstrap, topic)
    producer = transactional(either, topic)
    transaction(producer, topic, "ab", "commit")
    transaction(producer, topic, "cd", "")
    fill(either.bootstrap, topic, 0, 2)
    before = taken(either, topic, "read_committed")
    (item,) = before.ranges()
    assert (item.start, item.end) == (0, 3)
    assert read(either.bootstrap, item) == [(0, b"a"), (1, b"b")]
    everything = cut(either, topic, "read_uncommitted")
    assert everything.end == 7
    rows = read(either.bootstrap, everything, isolation="read_uncommitted")
    assert [value for _, value in rows] == [b"a", b"b", b"c", b"d", b"0", b"1"]
    producer.commit_transaction(60)
    wait_for_end(either, topic, 8)
    rest = cut(either, topic, "read_committed", since=before)
    assert (rest.start, rest.end) == (3, 8)
    rows = read(either.bootstrap, rest)
    assert [value for _, value in rows] == [b"c", b"d", b"0", b"1"]


def test_compacted_records_are_not_reported_as_lost(either: Broker, topic: str) -> None:
    """Every key of the first half is written again in the second half, so that compaction removes
    the first half. The range of a snapshot in between then has gaps up to its end.
    """
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "4096",
        "delete.retention.ms": "0",
    }
    make_topic(either.bootstrap, topic, configs=configs)
    fill(either.bootstrap, topic, 0, 300, key=lambda number: b"%d" % (number % 20))
    before = taken(either, topic, "read_committed", count="never")
    (item,) = before.ranges()
    assert item.end == 300
    first = read(either.bootstrap, item)
    fill(either.bootstrap, topic, 300, 600, key=lambda number: b"%d" % (number % 20))
    lost: list[tuple[int, int]] = []

    def rows() -> Rows:
        return read(either.bootstrap, item, lost=lost)

    wait_until(lambda: not rows(), what="compaction has removed all of the first half")
    assert set(rows()) <= set(first)
    assert lost == []
    inside = PartitionRange(topic, 0, 100, 200, item.topic_id, item.leader_epoch)
    assert read(either.bootstrap, inside) == []
    end = cut(either, topic, "read_committed").end
    whole = PartitionRange(topic, 0, 0, end, item.topic_id, item.leader_epoch)
    while True:
        ours, theirs = read(either.bootstrap, whole), outside(either, topic, "read_committed", end)
        if ours == read(either.bootstrap, whole):  # otherwise the cleaner ran in between
            break
    assert ours == theirs
    standing = before.is_readable()
    assert standing, "what was not counted nobody can miss"
    (warning,) = standing.warnings
    assert warning.startswith(f"{topic} is compacted:")
    assert "a read does not detect this" in warning


KEYS: Final = "decode: {key: {format: string}}"
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "4096",
}


def overwrite(broker: Broker, topic: str) -> None:
    """Write 50 of the first 300 keys again, then other keys until none of these records is in the
    active segment, which the cleaner skips.
    """
    fill(broker.bootstrap, topic, 1_000, 50, key=lambda number: b"%d" % (number - 900))
    fill(broker.bootstrap, topic, 2_000, 300)


def without_lag(broker: Broker, topic: str) -> None:
    async def alter() -> None:
        async with Admin(broker.bootstrap) as admin:
            change = ConfigChange("min.compaction.lag.ms", "0")
            key = ConfigResource.topic(topic)
            (await admin.alter_configs({key: [change]}))[key].check()

    asyncio.run(alter())


def wait_for_cleaner(broker: Broker, item: PartitionRange, level: str, rows: int) -> None:
    uncounted = replace(item, counts=())
    wait_until(
        lambda: len(read(broker.bootstrap, uncounted, isolation=level)) == rows,
        what=f"compaction has left {rows} records",
    )


def test_compaction_since_the_snapshot_is_reported(
    either: Broker, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Readers of ranges get a warning, also Spark in both modes."""
    make_topic(either.bootstrap, topic, configs=COMPACTED)
    fill(either.bootstrap, topic, 0, 300)
    made = taken(either, topic, "read_committed")
    made.save(tmp_path / "snapshot.json")
    before = snapshot.load(tmp_path / "snapshot.json")
    (item,) = before.ranges()
    assert (before.records(), item.end) == ({topic: 300}, 300)
    for mode in ("append", "latest"):
        assert read(either.bootstrap, item) == numbers(0, 300)
        assert before.read(spark, mode).count() == 300
    overwrite(either, topic)
    wait_for_cleaner(either, item, "read_committed", 250)
    with pytest.raises(RangeFailed) as caught:
        read(either.bootstrap, item)
    line = (
        f"{topic}-0@0: compacted: 300 records were counted from 0 to 300 when the snapshot was"
        " taken, 250 are there now: "
    )
    assert str(caught.value).startswith(line)
    for mode in ("append", "latest"):
        assert line in fault(before.read(spark, mode).count)
    bearing = before.read(spark, conf={"failOnDataLoss": "false"})
    assert bearing.count() == 250
    assert before.is_readable().warnings[0].startswith(f"{topic} is compacted:")

    def what_is_left_is_read() -> bool:
        """Check that a snapshot of a log with gaps is read completely, unless the cleaner has run
        in between.
        """
        after = taken(either, topic, "read_committed")
        (now,) = after.ranges()
        try:
            rows = read(either.bootstrap, now)
        except RangeFailed as failed:
            assert failed.reason is RangeFault.COMPACTED
            return False
        assert (now.end, after.records()) == (650, {topic: len(rows)})
        return len(rows) == 600

    wait_until(what_is_left_is_read, what="the cleaner rests")


def test_a_job_run_is_not_repeated_after_compaction(
    either: Broker, topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The run's result has rows that the topic does not have any more, so it is kept, whatever the
    job's option for data loss is.
    """
    make_topic(either.bootstrap, topic, configs=COMPACTED)
    fill(either.bootstrap, topic, 0, 300)
    numbers_of = Numbers(either, topic, spark, tmp_path, lines=[KEYS])
    job = numbers_of.job(fail_on_data_loss="false")
    assert job.run_once(spark).rows_read == 300
    (item,) = taken(either, topic, "read_committed").ranges()
    overwrite(either, topic)
    wait_for_cleaner(either, item, "read_committed", 250)
    text = "the run read 300 records, but compaction (cleanup.policy) has left only 250 of them"
    with pytest.raises(OutputError, match=re.escape(text)):
        job.replay(spark, 0)
    assert read_output(spark, numbers_of.output).count() == 300
    without_values = numbers_of.job(tombstones="drop")
    assert without_values.replay(spark, 0).rows_read == 250, "another wish is no loss"


def test_compaction_of_aborted_records_is_reported_to_their_readers(
    either: Broker, topic: str
) -> None:
    lag = {"min.compaction.lag.ms": "3600000"}
    make_topic(either.bootstrap, topic, configs={**COMPACTED, **lag})
    producer = transactional(either, topic)
    for number in range(60):
        producer.begin_transaction()
        producer.produce(topic, b"v", b"t%d" % number, partition=0)
        producer.flush(PATIENCE_S)
        (producer.abort_transaction if number % 3 == 0 else producer.commit_transaction)(60)
    wait_for_end(either, topic, 120)
    fill(either.bootstrap, topic, 0, 40)
    items = {level: cut(either, topic, level) for level in LEVELS}
    seen = {level: read(either.bootstrap, items[level], isolation=level) for level in LEVELS}
    assert [len(seen[level]) for level in LEVELS] == [80, 100]
    fill(either.bootstrap, topic, 2_000, 300)
    without_lag(either, topic)
    wait_for_cleaner(either, items["read_uncommitted"], "read_uncommitted", 80)
    committed, uncommitted = LEVELS
    assert read(either.bootstrap, items[committed], isolation=committed) == seen[committed]
    with pytest.raises(RangeFailed) as caught:
        read(either.bootstrap, items[uncommitted], isolation=uncommitted)
    assert caught.value.reason is RangeFault.COMPACTED
    assert "100 records were counted from 0 to 160" in str(caught.value)
