"""Tests that Apache's own Spark connector reads from our broker, in batch and as a stream, and
writes to it, and that our source gives the same rows as the connector.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration_tests import spark_topics
from integration_tests.broker import Broker
from integration_tests.samples import CODECS, FIRST_TIMESTAMP_MS, SAMPLES
from integration_tests.spark_topics import expected_rows, kafka_rows, numbered
from unit_tests.patience import PATIENCE_S, wait_until

# The timestamps of the samples lie years back.
BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}

Load = Callable[..., DataFrame]


@pytest.fixture
def load(connector: SparkSession, broker: Broker) -> Load:
    """`load(subscribe="t", ...)`: a batch of the connector with these options."""

    def loaded(**options: object) -> DataFrame:
        reader = connector.read.format("kafka")
        reader.option("kafka.bootstrap.servers", broker.bootstrap)
        return reader.options(**{name: str(value) for name, value in options.items()}).load()

    return loaded


def numbers_of(frame: DataFrame) -> list[int]:
    return sorted(int(row["value"]) for row in frame.selectExpr("string(value) as value").collect())


def test_batch_gives_every_record_as_it_was_written(load: Load, broker: Broker, topic: str) -> None:
    """Each codec has its own partition, with keys, headers, timestamps and null values."""
    spark_topics.create(broker.bootstrap, topic, len(CODECS))
    for partition, codec in enumerate(CODECS):
        samples = [(partition, sample) for sample in SAMPLES]
        spark_topics.produce(broker.bootstrap, topic, samples, codec=codec)
    rows = kafka_rows(load(subscribe=topic, includeHeaders=True))
    assert rows == [
        row for partition in range(len(CODECS)) for row in expected_rows(topic, partition, SAMPLES)
    ]


def test_batch_reads_the_requested_range(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    both = [(partition, sample) for sample in SAMPLES for partition in (0, 1)]
    spark_topics.produce(broker.bootstrap, topic, both)
    all_rows = [row for p in (0, 1) for row in expected_rows(topic, p, SAMPLES)]

    def read(**options: object) -> list[spark_topics.KafkaRow]:
        return kafka_rows(load(subscribe=topic, includeHeaders=True, **options))

    found = read(
        startingOffsets=told(topic, {0: 3, 1: -2}), endingOffsets=told(topic, {0: 5, 1: 1})
    )
    assert found == [
        r for r in all_rows if (3 <= r.offset < 5 if r.partition == 0 else not r.offset)
    ]
    times = told(topic, dict.fromkeys((0, 1), FIRST_TIMESTAMP_MS + 4000))
    assert read(startingOffsetsByTimestamp=times) == [r for r in all_rows if r.offset >= 4]
    assert read(endingOffsetsByTimestamp=times) == [r for r in all_rows if r.offset < 4]
    assert read(endingTimestamp=FIRST_TIMESTAMP_MS + 1) == [r for r in all_rows if r.offset < 1]
    assert read(**{"kafka.isolation.level": "read_committed"}) == all_rows
    split = load(subscribe=topic, includeHeaders=True, minPartitions=5)
    assert split.rdd.getNumPartitions() >= 5
    assert kafka_rows(split) == all_rows


def test_batch_finds_topics_by_pattern_and_partitions_by_name(
    load: Load, broker: Broker, topic: str
) -> None:
    for name in (f"{topic}-a", f"{topic}-b"):
        spark_topics.create(broker.bootstrap, name, 2)
        spark_topics.produce(broker.bootstrap, name, numbered(range(10), partitions=2))
    assert numbers_of(load(subscribePattern=f"{topic}-.*")) == sorted([*range(10)] * 2)
    assigned = load(assign=json.dumps({f"{topic}-b": [1]}))
    assert numbers_of(assigned) == [1, 3, 5, 7, 9]


def test_batch_reports_deleted_records(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 1)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100), partitions=1))
    spark_topics.delete_records(broker.bootstrap, topic, {0: 40})
    assert numbers_of(load(subscribe=topic)) == [*range(40, 100)]
    old = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 10}})}
    with pytest.raises(Py4JJavaError, match="Some data may have been lost"):
        load(**old, **{"kafkaConsumer.pollTimeoutMs": 5000}).count()
    assert numbers_of(load(**old, failOnDataLoss=False)) == [*range(40, 100)]


def told(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(p): offset for p, offset in offsets.items()}})


TIME: Final = FIRST_TIMESTAMP_MS + 4000
FUTURE: Final = str(2**42)
READS: Final[dict[str, dict[str, object]]] = {
    "everything": {},
    "without headers": {"includeHeaders": False},
    "read_committed": {"kafka.isolation.level": "read_committed"},
    "a range": {"startingOffsets": {0: 3, 1: -2, 2: 0}, "endingOffsets": {0: 5, 1: 1, 2: -1}},
    "nothing": {"startingOffsets": {0: 3, 1: 1, 2: 0}, "endingOffsets": {0: 3, 1: 1, 2: 0}},
    "from a time": {"startingTimestamp": TIME},
    "to a time": {"endingTimestamp": TIME},
    "to the end by a time that never came": {"endingTimestamp": FUTURE},
    "from the end by a time that never came": {
        "startingTimestamp": FUTURE,
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "times by partition": {
        "startingOffsetsByTimestamp": {0: TIME, 1: 0, 2: TIME + 1},
        "endingOffsetsByTimestamp": {0: TIME + 2000, 1: TIME, 2: TIME + 5000},
    },
    "a time before offsets": {"startingTimestamp": TIME, "startingOffsets": {0: 0, 1: 0, 2: 0}},
    "pieces": {"minPartitions": 11},
    "small pieces": {"maxRecordsPerPartition": 2},
}


@pytest.mark.parametrize("what", READS)
def test_our_source_gives_the_rows_of_the_connector(
    connector: SparkSession, broker: Broker, same_for_both: str, what: str
) -> None:
    options = {
        name: told(same_for_both, value) if isinstance(value, dict) else str(value)
        for name, value in {"includeHeaders": True, **READS[what]}.items()
    }
    found = {}
    for name in ("kafka", "pybroker"):
        reader = connector.read.format(name).option("subscribe", same_for_both)
        frame = reader.option("kafka.bootstrap.servers", broker.bootstrap).options(**options).load()
        found[name] = frame.dtypes, kafka_rows(frame)
    assert found["pybroker"] == found["kafka"]
    assert bool(found["kafka"][1]) == (what not in ("nothing", EMPTY)), "the comparison has no rows"


def test_both_sources_omit_aborted_and_open_transactions(
    connector: SparkSession, broker: Broker, topic: str
) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    producer = spark_topics.transactional(broker.bootstrap, topic)
    for end in ("commit", "abort", "commit", "open"):
        values = [b"%s %d" % (end.encode(), number) for number in range(6)]
        spark_topics.begin(producer, topic, values, partitions=2)
        if end != "open":
            getattr(producer, f"{end}_transaction")(PATIENCE_S)
    spark_topics.wait_until_decided(broker.bootstrap, topic, 3 * (6 + 2))
    found = {}
    for name in ("kafka", "pybroker"):
        reader = connector.read.format(name).option("subscribe", topic)
        reader = reader.option("kafka.bootstrap.servers", broker.bootstrap)
        for level in ("read_committed", "read_uncommitted"):
            frame = reader.option("kafka.isolation.level", level).load()
            found[name, level] = kafka_rows(frame)
    for level in ("read_committed", "read_uncommitted"):
        assert found["pybroker", level] == found["kafka", level]
    committed = [row.value for row in found["kafka", "read_committed"]]
    assert len(committed) == 12
    assert all(value is not None and value.startswith(b"commit") for value in committed)
    assert len(found["kafka", "read_uncommitted"]) == 24


EMPTY: Final = "from the end by a time that never came"


@pytest.fixture(scope="module")
def same_for_both(shared_broker: Broker) -> str:
    """Return a topic of three partitions in all codecs; the begin of one partition is deleted."""
    spark_topics.create(shared_broker.bootstrap, topic := "same-for-both", 3)
    for codec in CODECS:
        samples = [(partition, sample) for sample in SAMPLES for partition in range(3)]
        spark_topics.produce(shared_broker.bootstrap, topic, samples, codec=codec)
    spark_topics.delete_records(shared_broker.bootstrap, topic, {1: 1})
    return topic


class Stream:
    """A streaming query of the connector from one topic into a folder of Parquet, started
    repeatedly on one checkpoint.
    """

    def __init__(self, spark: SparkSession, broker: Broker, topic: str, folder: Path) -> None:
        self._spark = spark
        self._broker = broker
        self._topic = topic
        self._folder = folder

    def start(self, *, until_all_is_read: bool) -> StreamingQuery:
        reader = self._spark.readStream.format("kafka").options(
            **{
                "kafka.bootstrap.servers": self._broker.bootstrap,
                "subscribe": self._topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "300",
                "kafka.metadata.max.age.ms": "500",
            }
        )
        writer = (
            reader.load()
            .writeStream.format("parquet")
            .options(
                checkpointLocation=str(self._folder / "checkpoint"), path=str(self._folder / "rows")
            )
        )
        if until_all_is_read:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="100 milliseconds").start()

    def run(self) -> StreamingQuery:
        """Run the query on all available records to its end."""
        query = self.start(until_all_is_read=True)
        try:
            assert query.awaitTermination(int(PATIENCE_S)), query.lastProgress
        finally:
            query.stop()
        return query

    def numbers(self) -> list[int]:
        reader = self._spark.read.schema("value binary")
        return numbers_of(reader.parquet(str(self._folder / "rows")))

    def has(self, count: int) -> bool:
        """Return whether the committed output has `count` rows. Before the first commit Spark would
        read uncommitted files.
        """
        committed = self._folder / "rows" / "_spark_metadata" / "0"
        return committed.exists() and len(self.numbers()) >= count


def test_stream_continues_from_its_checkpoint(
    connector: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """Each record is written once, over two restarts of the query and new partitions."""
    spark_topics.create(broker.bootstrap, topic, 2)
    stream = Stream(connector, broker, topic, tmp_path)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(1000), partitions=2))
    triggers = [progress.numInputRows for progress in stream.run().recentProgress]
    assert [rows for rows in triggers if rows] == [300, 300, 300, 100]
    assert stream.numbers() == [*range(1000)]
    spark_topics.grow(broker.bootstrap, topic, 4)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(1000, 1500), partitions=4))
    stream.run()
    assert stream.numbers() == [*range(1500)]
    assert [p.numInputRows for p in stream.run().recentProgress if p.numInputRows] == []
    assert stream.numbers() == [*range(1500)]


def test_stream_survives_a_restart_of_the_broker(
    connector: SparkSession, new_broker: Callable[[], Broker], topic: str, tmp_path: Path
) -> None:
    """The broker is killed and started again while the query runs, and records are written before
    and after. Then the query is stopped and started again.
    """
    broker = new_broker()
    broker.start()
    spark_topics.create(broker.bootstrap, topic, 2)
    stream = Stream(connector, broker, topic, tmp_path)
    query = stream.start(until_all_is_read=False)
    try:
        spark_topics.produce(broker.bootstrap, topic, numbered(range(500), partitions=2))
        wait_until(lambda: stream.has(500), what="the stream reads")
        broker.kill9()
        broker.start()
        spark_topics.produce(broker.bootstrap, topic, numbered(range(500, 900), partitions=2))
        wait_until(lambda: stream.has(900), what="the stream continues")
        assert query.exception() is None
    finally:
        query.stop()
    spark_topics.produce(broker.bootstrap, topic, numbered(range(900, 1000), partitions=2))
    stream.run()
    assert stream.numbers() == [*range(1000)]


def test_batch_is_written_and_read_back(
    load: Load, connector: SparkSession, broker: Broker, topic: str
) -> None:
    frame = connector.range(1000).selectExpr(
        "binary(concat('key-', id)) as key",
        "if(id % 10 = 9, null, binary(string(id))) as value",
        "int(id % 3) as partition",
        "array(struct('number' as key, binary(string(id)) as value)) as headers",
    )
    spark_topics.create(broker.bootstrap, topic, 3)
    written = frame.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    written.option("topic", topic).option("kafka.compression.type", "zstd").save()
    rows = kafka_rows(load(subscribe=topic, includeHeaders=True))
    assert Counter(row.key for row in rows) == Counter(b"key-%d" % n for n in range(1000))
    for row in rows:
        assert row.key is not None and row.headers is not None
        number = int(row.key.removeprefix(b"key-"))
        assert row.value == (None if number % 10 == 9 else b"%d" % number)
        assert (row.partition, row.headers) == (number % 3, (("number", b"%d" % number),))


def test_stream_is_written(
    load: Load, connector: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    """The query writes from topic to topic."""
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(500), partitions=2))
    servers = {"kafka.bootstrap.servers": broker.bootstrap}
    source = connector.readStream.format("kafka").options(
        **servers, subscribe=topic, startingOffsets="earliest"
    )
    sink = (
        source.load()
        .select("key", "value")
        .writeStream.format("kafka")
        .options(**servers, topic=f"{topic}-copy", checkpointLocation=str(tmp_path / "checkpoint"))
    )
    query = sink.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(PATIENCE_S)), query.lastProgress
    finally:
        query.stop()
    assert numbers_of(load(subscribe=f"{topic}-copy")) == [*range(500)]
