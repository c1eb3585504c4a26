"""Tests that `format("pybroker")` gives Spark all records of the topic as rows, once and
unchanged.
"""

from __future__ import annotations

import itertools
import json
import random
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from integration_tests import spark_topics
from integration_tests.broker import Broker
from integration_tests.samples import CODECS, FIRST_TIMESTAMP_MS, SAMPLES, Sample
from integration_tests.spark_topics import KafkaRow, expected_rows, kafka_rows, numbered
from integration_tests.stored import partition_folder
from integration_tests.test_documents import program, run_commands
from integration_tests.topic_model import TopicModel
from pybroker.spark import snapshot
from pybroker.spark.failures import reason
from pybroker.spark.options import COLUMNS
from unit_tests.patience import wait_until

# The timestamps of the samples lie years back.
BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}


CRAMPED: Final = {"latestMemory": "10k", "kafka__max__partition__fetch__bytes": 2_000}
Load = Callable[..., DataFrame]
"""A function that returns a DataFrame of `format("pybroker")` with these options; `__` stands for a
dot. `schema` is a schema given by the user.
"""


@pytest.fixture
def load(spark: SparkSession, broker: Broker) -> Load:
    def loaded(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("pybroker")
        reader = reader if schema is None else reader.schema(schema)
        given = {name.replace("__", "."): str(value) for name, value in options.items()}
        return reader.options(**{"kafka.bootstrap.servers": broker.bootstrap, **given}).load()

    return loaded


def told(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


def offsets_of(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted(map(tuple, frame.select("partition", "offset").collect()))


def fault_of(call: object) -> str:
    """Return the one-line error of loading or running a DataFrame."""
    assert callable(call)
    with pytest.raises(PySparkException) as raised:
        call()
    return reason(raised.value)


def test_every_record_is_a_row_as_it_was_written(load: Load, broker: Broker, topic: str) -> None:
    """Each codec has its own partition, with keys, headers, timestamps and null values."""
    spark_topics.create(broker.bootstrap, topic, len(CODECS))
    for partition, codec in enumerate(CODECS):
        samples = [(partition, sample) for sample in SAMPLES]
        spark_topics.produce(broker.bootstrap, topic, samples, codec=codec)
    frame = load(subscribe=topic, includeHeaders=True)
    expected = [row for p in range(len(CODECS)) for row in expected_rows(topic, p, SAMPLES)]
    assert kafka_rows(frame) == expected
    assert kafka_rows(load(subscribe=topic)) == [row._replace(headers=None) for row in expected]


def test_a_range_is_read_from_its_start_to_its_end(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    both = [(partition, sample) for sample in SAMPLES for partition in (0, 1)]
    spark_topics.produce(broker.bootstrap, topic, both)
    every = [row for p in (0, 1) for row in expected_rows(topic, p, SAMPLES)]

    def read(**options: object) -> list[KafkaRow]:
        return kafka_rows(load(subscribe=topic, includeHeaders=True, **options))

    start, end = told(topic, {0: 3, 1: -2}), told(topic, {0: 5, 1: 1})
    assert read(startingOffsets=start, endingOffsets=end) == [
        row for row in every if (3 <= row.offset < 5 if row.partition == 0 else not row.offset)
    ]
    times = told(topic, dict.fromkeys((0, 1), FIRST_TIMESTAMP_MS + 4000))
    assert read(startingOffsetsByTimestamp=times) == [row for row in every if row.offset >= 4]
    assert read(endingOffsetsByTimestamp=times) == [row for row in every if row.offset < 4]
    assert read(startingTimestamp=FIRST_TIMESTAMP_MS + 4000) == [
        row for row in every if row.offset >= 4
    ]
    assert read(endingTimestamp=FIRST_TIMESTAMP_MS + 1) == [row for row in every if not row.offset]
    assert read(kafka__isolation__level="read_committed") == every
    late = 2 * FIRST_TIMESTAMP_MS
    assert read(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    assert f"no record with the timestamp {late} or later" in fault_of(
        lambda: read(startingTimestamp=late)
    )
    only = load(assign=json.dumps({topic: [1]}), includeHeaders=True)
    assert kafka_rows(only) == [row for row in every if row.partition == 1]
    assert kafka_rows(load(subscribePattern=topic[3:], includeHeaders=True)) == every


@pytest.mark.parametrize("by", ["option", "schema"])
def test_columns_may_be_chosen(load: Load, broker: Broker, topic: str, by: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 1)
    spark_topics.produce(broker.bootstrap, topic, [(0, sample) for sample in SAMPLES])
    whole = load(subscribe=topic, includeHeaders=True)
    types = dict(whole.dtypes)
    dice = random.Random(5)
    choices = [["offset"], ["headers"], *(dice.sample(COLUMNS, 3) for _ in range(2))]
    for names in choices:
        ddl = ", ".join(f"{name} {types[name]}" for name in names)
        frame = (
            load(subscribe=topic, columns=",".join(names))
            if by == "option"
            else load(ddl, subscribe=topic)
        )
        assert frame.columns == names
        assert sorted(frame.collect(), key=repr) == sorted(whole.select(*names).collect(), key=repr)


def test_an_empty_range_has_no_rows(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    for options in ({}, {"mode": "latest"}, {"tombstones": "drop"}):
        frame = load(subscribe=topic, **options)
        assert frame.count() == 0
        assert frame.collect() == []
    spark_topics.produce(broker.bootstrap, topic, [(0, Sample(b"k", b"v"))])
    same = told(topic, {0: 1, 1: 0})
    assert load(subscribe=topic, startingOffsets=same, endingOffsets=same).collect() == []


@pytest.mark.parametrize("schema", [None, "partition int, offset bigint not null"])
def test_offsets_are_decided_at_load_and_never_again(
    load: Load, broker: Broker, topic: str, schema: str | None
) -> None:
    """Spark may plan a DataFrame again at any time, for example after a filter."""
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100), partitions=2))
    frame = load(schema, subscribe=topic)
    before = offsets_of(frame)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100, 200), partitions=2))
    spark_topics.grow(broker.bootstrap, topic, 3)
    assert offsets_of(frame) == before == list(itertools.product((0, 1), range(50)))
    assert offsets_of(frame.where("offset >= 10")) == [each for each in before if each[1] >= 10]
    assert frame.count() == 100
    assert frame.unionAll(frame).count() == 200
    assert load(schema, subscribe=topic).count() == 200


def test_spark_applies_filters_to_the_rows(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 3)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(300), partitions=3))
    frame = load(subscribe=topic)
    rows = kafka_rows(frame)
    for text, keep in (
        ("offset between 7 and 9", lambda row: 7 <= row.offset <= 9),
        ("partition = 1 and key = 'key-3'", lambda row: row.partition == 1 and row.key == b"key-3"),
        ("timestamp < '2021-01-01'", lambda row: True),
        ("value is null", lambda row: row.value is None),
    ):
        assert kafka_rows(frame.where(text)) == list(filter(keep, rows))


def test_tombstones_may_be_dropped(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 1)
    samples = [Sample(b"k%d" % n, None if n % 3 else b"v") for n in range(30)]
    spark_topics.produce(broker.bootstrap, topic, [(0, sample) for sample in samples])
    assert load(subscribe=topic).count() == 30
    alive = load(subscribe=topic, tombstones="drop")
    assert [offset for _, offset in offsets_of(alive)] == list(range(0, 30, 3))
    only_keys = load(subscribe=topic, tombstones="drop", columns="key").collect()
    assert sorted(bytes(row["key"]) for row in only_keys) == sorted(
        b"k%d" % n for n in range(0, 30, 3)
    )


def latest(rows: list[KafkaRow]) -> list[KafkaRow]:
    """Return the last row of each key in each partition."""
    found = {(row.partition, row.key): row for row in rows}
    return sorted(found.values(), key=lambda row: row[:3])


@pytest.mark.parametrize("memory", ["256m", "100k"], ids=["in-memory", "by-files"])
def test_latest_returns_the_last_row_of_each_key(
    load: Load, broker: Broker, topic: str, memory: str
) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    dice = random.Random(memory)
    samples = [
        (
            dice.randrange(2),
            Sample(
                b"key-%d" % dice.randrange(4_000),
                b"%d" % number if dice.random() < 0.8 else None,
                (("n", b"%d" % number),) if dice.random() < 0.5 else (),
            ),
        )
        for number in range(12_000)
    ]
    spark_topics.produce(broker.bootstrap, topic, samples)
    expected = latest(kafka_rows(load(subscribe=topic, includeHeaders=True)))

    def read(**options: object) -> list[KafkaRow]:
        frame = load(subscribe=topic, mode="latest", latestMemory=memory, **options)
        return kafka_rows(frame)

    assert len(expected) > 6_000
    assert read(includeHeaders=True, tombstones="keep") == expected
    assert read(includeHeaders=True) == [row for row in expected if row.value is not None]
    narrow = load(subscribe=topic, mode="latest", latestMemory=memory, columns="offset,partition")
    assert offsets_of(narrow) == [row[1:3] for row in expected if row.value is not None]


def test_latest_agrees_with_a_model_after_writes_and_deletions(
    load: Load, broker: Broker, topic: str
) -> None:
    """A snapshot gives the same table again while the topic grows."""
    dice = random.Random(11)
    model = TopicModel(broker.bootstrap, topic, 2, dice, null_keys=False)
    for step in range(6):
        model.write(dice.randrange(20, 400))
        if step % 2:
            model.delete_records()
        with model.writing():
            taken = snapshot.take(broker.bootstrap, topics=[topic])
            found = [
                kafka_rows(load(snapshot=taken.to_json(), mode="latest", **options))
                for options in ({"includeHeaders": True}, {"includeHeaders": True} | CRAMPED)
            ]
        cut = {p: (each.start, each.end) for p, each in taken.topics[topic].partitions.items()}
        assert {p: start for p, (start, _) in cut.items()} == model.starts()
        expected = [row for row in latest(model.rows(cut)) if row.value is not None]
        assert found == [expected, expected], step


def test_latest_refuses_records_without_keys(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 1)
    samples = [Sample(b"a", b"1"), Sample(b"b", b"2"), Sample(None, b"3")]
    spark_topics.produce(broker.bootstrap, topic, [(0, sample) for sample in samples])
    frame = load(subscribe=topic, mode="latest")
    assert fault_of(frame.collect).startswith(f"{topic}-0@2: the record has no key")


def test_a_snapshot_is_read_as_text_or_from_its_file(
    load: Load, spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100), partitions=2))
    taken = snapshot.take(broker.bootstrap, [topic])
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100, 150), partitions=2))
    taken.save(tmp_path / "cut.json")
    for option in (taken.to_json(), str(tmp_path / "cut.json")):
        assert load(snapshot=option).count() == 100
        alone = spark.read.format("pybroker").option("snapshot", option).load()
        assert offsets_of(alone) == list(itertools.product((0, 1), range(50)))
    contrary = {"snapshot": taken.to_json(), "kafka__isolation__level": "read_uncommitted"}
    assert "contradicts the snapshot" in fault_of(lambda: load(**contrary))


def test_an_error_is_reported_in_one_line(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100), partitions=2))
    assert fault_of(lambda: load(subscribe="no-" + topic)).startswith(
        f"there is no topic no-{topic} at {broker.bootstrap}: did you mean {topic}?"
    )
    some = told(topic, {0: 1})
    assert f"{topic}-1 is missing" in fault_of(lambda: load(subscribe=topic, startingOffsets=some))
    future = told(topic, {0: 1, 1: 51})
    assert f"{topic}-1 ends at offset 50" in fault_of(
        lambda: load(subscribe=topic, endingOffsets=future)
    )
    assert fault_of(lambda: load(subscribe=topic, subcsribe=topic)) == (
        "unknown option subcsribe; did you mean subscribe?"
    )
    own = load("value string", subscribe=topic)
    assert fault_of(own.collect).startswith("schema: column value is binary, not string")


def test_deleted_rows_are_an_error_or_a_gap(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    spark_topics.produce(broker.bootstrap, topic, numbered(range(100), partitions=2))
    strict = load(subscribe=topic)
    lenient = load(subscribe=topic, failOnDataLoss=False)
    spark_topics.delete_records(broker.bootstrap, topic, {1: 20})
    line = fault_of(strict.collect)
    assert line.startswith(f"{topic}-1@0: the partition now begins at offset 20")
    assert "\n" not in line
    assert offsets_of(lenient) == [(0, n) for n in range(50)] + [(1, n) for n in range(20, 50)]


def ranges_of(frame: DataFrame) -> list[list[tuple[int, int]]]:
    """Return the offset ranges that each task has read."""
    rows = frame.selectExpr("spark_partition_id() as task", "partition", "offset").collect()
    tasks: dict[int, list[tuple[int, int]]] = {}
    for task, partition, offset in rows:
        tasks.setdefault(task, []).append((partition, offset))
    return sorted(tasks.values())


def test_large_ranges_are_cut_between_batches(load: Load, broker: Broker, topic: str) -> None:
    """One of three partitions is eight times as large as the others. The division into tasks does
    not change the rows.
    """
    spark_topics.create(broker.bootstrap, topic, 3)
    for start in range(0, 1_000, 100):
        batch = [
            (number % 10 if number % 10 < 2 else 2, Sample(b"k", b"%d" % number * 5))
            for number in range(start, start + 100)
        ]
        spark_topics.produce(broker.bootstrap, topic, batch)
    expected = [(p, n) for p, count in ((0, 100), (1, 100), (2, 800)) for n in range(count)]
    for options, tasks_min in (
        ({"minPartitions": 7}, 7),
        ({"maxRecordsPerPartition": 100}, 9),
        ({"maxBytesPerPartition": "6k"}, 4),
        ({}, 3),
    ):
        tasks = ranges_of(load(subscribe=topic, **options))
        assert sorted(itertools.chain(*tasks)) == expected
        assert len(tasks) >= tasks_min
        assert len(tasks) == 3 or options
        for task in tasks:
            (partition, first), (last_partition, last) = task[0], task[-1]
            assert partition == last_partition
            assert len(task) == last - first + 1
            if partition == 2:
                assert first % 80 == 0, "a cut inside of a batch"


def test_the_program_of_the_page_about_spark(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_commands("docs/spark.rst", "customers", broker)
    run_commands("docs/spark.rst", "customers", broker)
    code = program("docs/spark.rst", "from pybroker.spark import session, snapshot")
    (tmp_path / "program.py").write_text(code.replace("127.0.0.1:9092", broker.bootstrap))
    runpy.run_path(str(tmp_path / "program.py"))
    printed = [line.replace(" ", "") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in printed if line.startswith("|ACME|active|")] == [
        "|ACME|active|0|",
        "|ACME|active|1|",
    ]
    assert printed[-1] == "1customers"


def test_a_deleted_topic_is_named_in_the_error(load: Load, broker: Broker, topic: str) -> None:
    spark_topics.create(broker.bootstrap, topic, 2)
    for start in (0, 100, 200):
        batch = numbered(range(start, start + 100), partitions=2)
        spark_topics.produce(broker.bootstrap, topic, batch)
    frame = load(subscribe=topic, kafkaConsumer__pollTimeoutMs=2_000)
    folder = partition_folder(broker.data, topic, 1)
    (segment,) = folder.glob("*.log")
    stored = bytearray(segment.read_bytes())
    stored[len(stored) // 2] ^= 1
    segment.write_bytes(stored)
    line = fault_of(frame.collect)
    assert line.startswith(f"{topic}-1@50: ")
    assert "\n" not in line
    spark_topics.delete(broker.bootstrap, topic)
    wait_until(lambda: not folder.exists(), what="the topic is deleted")
    spark_topics.create(broker.bootstrap, topic, 2)
    line = fault_of(frame.collect)  # of whichever task is first
    assert line.startswith((f"{topic}-0@0: the topic was deleted", f"{topic}-1@0: the topic was"))
