"""Tests of ETL jobs of Spark, from a topic to the output table."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from integration_tests import spark_topics
from integration_tests.etl_numbers import (
    LETTERS,
    NUMBERS,
    PARTITIONS,
    TABLE,
    Numbers,
    command,
    dying,
    run_all,
)
from integration_tests.samples import Sample
from pybroker.errors import PybrokerError
from pybroker.spark.etl import job_file, output_files, read_output
from pybroker.spark.etl.files import OutputError
from pybroker.spark.etl.report import RunResult
from pybroker.spark.etl.run import RunFailed, read_snapshot
from pybroker.spark.etl.sink import SinkError
from pybroker.spark.snapshot_model import SnapshotError
from unit_tests.patience import PATIENCE_S

pytestmark = pytest.mark.ours
BROKER_OVERRIDES: Final = {"log.retention.ms": "-1"}


def test_each_run_adds_the_records_since_the_last_run(numbers: Numbers) -> None:
    job = numbers.job()
    numbers.send(25)
    [first] = run_all(job, numbers.spark)
    assert (first.state, first.seq, first.rows_read, first.rows) == ("committed", 0, 25, 25)
    assert numbers.numbers() == list(range(25))
    [idle] = run_all(job, numbers.spark)
    assert idle.state == "nothing-new"
    spark_topics.grow(numbers.broker.bootstrap, numbers.topic, PARTITIONS + 1)
    numbers.send(5)
    new = [(PARTITIONS, Sample(None, b'{"n": 30}'))]
    spark_topics.produce(numbers.broker.bootstrap, numbers.topic, new)
    [second] = run_all(job, numbers.spark)
    assert (second.seq, second.rows) == (1, 6)
    assert numbers.numbers() == list(range(31))
    later = read_output(numbers.spark, numbers.output, since_seq=1, with_seq=True)
    assert {tuple(row) for row in later.select("pybroker_seq").collect()} == {(1,)}
    assert later.count() == 6
    assert sorted(output_files(numbers.output)) == numbers.files()


def test_records_of_aborted_and_open_transactions_are_not_read(numbers: Numbers) -> None:
    job = numbers.job()
    bootstrap, topic = numbers.broker.bootstrap, numbers.topic
    producer = spark_topics.transactional(bootstrap, topic)

    def begin(first: int) -> None:
        values = [b'{"n": %d}' % n for n in range(first, first + 10)]
        spark_topics.begin(producer, topic, values, PARTITIONS)

    begin(0)
    producer.commit_transaction(PATIENCE_S)
    begin(100)
    producer.abort_transaction(PATIENCE_S)
    begin(200)
    spark_topics.wait_until_decided(bootstrap, topic, 20 + 2 * PARTITIONS)
    assert job.run_once(numbers.spark).rows == 10
    assert numbers.numbers() == list(range(10))
    producer.commit_transaction(PATIENCE_S)
    spark_topics.wait_until_decided(bootstrap, topic, 30 + 3 * PARTITIONS)
    assert job.run_once(numbers.spark).rows == 10
    assert numbers.numbers() == [*range(10), *range(200, 210)]
    assert job.run_once(numbers.spark).state == "nothing-new"


def test_a_failed_run_is_repeated_with_the_same_offsets(numbers: Numbers) -> None:
    job = replace(numbers.job(), read=dying())
    numbers.send(20)
    with pytest.raises(RunFailed, match="the task dies") as caught:
        job.run_once(numbers.spark)
    assert "\n" not in str(caught.value)
    with pytest.raises(OutputError, match="no run with the number 0 or above is committed"):
        numbers.numbers()
    numbers.send(10)
    again = job.run_once(numbers.spark)
    assert (again.seq, again.rows) == (0, 20)
    assert numbers.numbers() == list(range(20))
    assert job.run_once(numbers.spark).rows == 10
    assert numbers.numbers() == list(range(30))


def test_a_new_plan_starts_after_the_offsets_of_an_earlier_plan(numbers: Numbers) -> None:
    job = replace(numbers.job(), read=dying())
    numbers.send(20)
    with pytest.raises(RunFailed):
        run_all(job, numbers.spark)
    numbers.send(10)
    assert [result.rows for result in run_all(job, numbers.spark)] == [20, 10]


def test_two_runners_at_once_commit_one_result(numbers: Numbers) -> None:
    together = threading.Barrier(2, timeout=PATIENCE_S)

    def read(spark: SparkSession, job: Any, snapshot: Any) -> DataFrame:
        together.wait()
        return read_snapshot(spark, job, snapshot)

    job = replace(numbers.job(), read=read)
    numbers.send(40)
    results: list[RunResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(job.run_once(numbers.spark)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.state for result in results) == ["committed", "committed-elsewhere"]
    assert len({result.attempt for result in results}) == 1
    assert numbers.numbers() == list(range(40))
    assert sorted(output_files(numbers.output)) == numbers.files()


def test_an_undecodable_record_ends_a_run_without_dead_letters(numbers: Numbers) -> None:
    job = numbers.job()
    numbers.send(3)
    numbers.send_values([b"five"])
    with pytest.raises(RunFailed) as caught:
        job.run_once(numbers.spark)
    assert str(caught.value) == (
        "1 of 4 records cannot be decoded (decode.on-error is fail); nothing was committed. "
        f"Examples: {numbers.topic}-0@2: value: not one JSON document"
    )
    assert numbers.files() == []


def test_dead_letters_come_with_the_rows_in_one_commit(numbers: Numbers) -> None:
    job = numbers.job(LETTERS, TABLE)
    numbers.send(4)
    numbers.send_values([b'{"n": 1.5}', b'{"n": 3, "m": 4}', b'{"n": 5, "n": 6}', b"\xff"])
    result = job.run_once(numbers.spark)
    assert (result.rows_read, result.rows, result.dlq_rows) == (8, 4, 4)
    assert numbers.numbers() == [0, 1, 2, 3]
    assert numbers.letters() == [
        (b'{"n": 1.5}', "value: not of the type in the schema: n (bigint)"),
        (b'{"n": 3, "m": 4}', "value: fields not in the schema: m"),
        (b'{"n": 5, "n": 6}', "value: a field is given twice"),
        (b"\xff", "value: not UTF-8"),
    ]
    assert sum(result.dlq_reasons.values()) == 4


def test_too_many_dead_letters_fail_the_run_without_output(numbers: Numbers) -> None:
    job = numbers.job(LETTERS, TABLE)
    numbers.send(2)
    numbers.send_values([b"a", b"b", b"c"])
    with pytest.raises(RunFailed, match=r"3 of 5 records .* \(dlq.max-ratio allows 0.5 of them\)"):
        job.run_once(numbers.spark)
    assert numbers.files() == []
    numbers.send_values([b'{"n": 2}', b'{"n": 3}'])
    with pytest.raises(RunFailed, match="3 of 5"):
        job.run_once(numbers.spark)
    assert job.drop_plan()
    assert job.run_once(numbers.spark).rows == 4


def test_a_new_field_goes_to_dead_letters_until_the_schema_knows_it(numbers: Numbers) -> None:
    numbers.send(4)
    numbers.send_values([b'{"n": 4, "colour": "red"}'])
    numbers.job(LETTERS, TABLE).run_once(numbers.spark)
    assert [reason for _, reason in numbers.letters()] == [
        "value: fields not in the schema: colour"
    ]
    wider = LETTERS.replace("n BIGINT NOT NULL", "n BIGINT NOT NULL, colour STRING")
    table = TABLE.replace("value.n,", "value.n, value.colour,")
    mended = numbers.job(wider, table, sink="  on-schema-change: add-columns")
    result = mended.replay(numbers.spark, 0)
    assert (result.state, result.revision, result.rows, result.dlq_rows) == ("committed", 1, 5, 0)
    assert numbers.numbers() == list(range(5))
    assert numbers.letters() == []
    colours = read_output(numbers.spark, numbers.output).where("colour IS NOT NULL").collect()
    assert [(row["n"], row["colour"]) for row in colours] == [(4, "red")]


def test_a_table_whose_columns_have_changed_is_refused(numbers: Numbers) -> None:
    numbers.send(4)
    numbers.job().run_once(numbers.spark)
    numbers.send(4)
    other = TABLE.replace("value.n,", "string(value.n) AS n, 5 AS m,")
    with pytest.raises(SinkError, match=r"n was bigint and is string, m is new .* is fail"):
        numbers.job(NUMBERS, other).run_once(numbers.spark)
    assert numbers.numbers() == list(range(4))
    more = TABLE.replace("value.n,", "value.n, 5 AS m,")
    numbers.job(NUMBERS, more, sink="  on-schema-change: add-columns").run_once(numbers.spark)
    assert numbers.numbers() == list(range(8))
    rows = read_output(numbers.spark, numbers.output).collect()
    assert {(row["n"] < 4, row["m"]) for row in rows} == {(True, None), (False, 5)}


def test_a_long_backlog_is_read_in_several_runs(numbers: Numbers) -> None:
    numbers.send(600)
    results = run_all(numbers.job(max_bytes_per_run="4k"), numbers.spark)
    assert len(results) > 1
    assert [result.seq for result in results] == list(range(len(results)))
    assert numbers.numbers() == list(range(600))


def test_expired_offsets_fail_the_run_or_are_recorded(numbers: Numbers) -> None:
    numbers.send(10)
    numbers.job().run_once(numbers.spark)
    numbers.send(10)
    spark_topics.delete_records(numbers.broker.bootstrap, numbers.topic, {0: 8, 1: 3})
    with pytest.raises(SnapshotError, match=rf"{numbers.topic}-0@5-8; set source.fail-on-data-lo"):
        numbers.job().run_once(numbers.spark)
    result = numbers.job(fail_on_data_loss="false").run_once(numbers.spark)
    assert result.lost == ((numbers.topic, 0, 5, 8),)
    assert numbers.numbers() == sorted({*range(20)} - {10, 12, 14})


def test_a_run_that_cannot_be_repeated_keeps_its_rows(numbers: Numbers) -> None:
    """The run's result has rows that the topic does not have any more, so it is kept, whatever the
    job's option for data loss is.
    """
    numbers.send(10)
    job = numbers.job(fail_on_data_loss="false")
    job.run_once(numbers.spark)
    spark_topics.delete_records(numbers.broker.bootstrap, numbers.topic, {0: 3})
    with pytest.raises(OutputError, match=rf"no longer contain {numbers.topic}-0@0-3"):
        job.replay(numbers.spark, 0)
    assert numbers.numbers() == list(range(10))
    numbers.send(10)
    spark_topics.delete_records(numbers.broker.bootstrap, numbers.topic, {0: 8})
    assert job.run_once(numbers.spark).lost == ((numbers.topic, 0, 5, 8),)
    assert job.replay(numbers.spark, 1).lost == ((numbers.topic, 0, 5, 8),)
    assert len(numbers.numbers()) == 17


def test_a_recreated_topic_is_refused(numbers: Numbers) -> None:
    numbers.send(4)
    numbers.job().run_once(numbers.spark)
    spark_topics.delete(numbers.broker.bootstrap, numbers.topic)
    spark_topics.create(numbers.broker.bootstrap, numbers.topic, PARTITIONS)
    numbers.send(9)
    with pytest.raises(
        PybrokerError, match=rf"{numbers.topic}.*source.starting again, set another"
    ) as caught:
        numbers.job().run_once(numbers.spark)
    assert "\n" not in str(caught.value)
    assert numbers.numbers() == list(range(4))


def test_latest_writes_a_complete_table_in_each_run(numbers: Numbers) -> None:
    lines = (
        "decode: {key: {format: string}}",
        "transform: {sql: 'SELECT key, value FROM records'}",
    )
    job = numbers.job(*lines, mode="latest")

    def table() -> dict[str, bytes]:
        rows = read_output(numbers.spark, numbers.output).collect()
        return {row["key"]: bytes(row["value"]) for row in rows}

    numbers.send_values([b"1", None, b"2"], key=b"a")
    numbers.send_values([b"3"], key=b"b")
    job.run_once(numbers.spark)
    assert table() == {"a": b"2", "b": b"3"}
    assert job.run_once(numbers.spark).state == "nothing-new"
    numbers.send_values([None], key=b"a")
    job.run_once(numbers.spark)
    assert table() == {"b": b"3"}
    [old] = [path for path in numbers.files() if path not in output_files(numbers.output)]
    assert "pybroker_seq=000000000000" in str(old)
    assert command("gc", str(numbers.file), "--older-than", "0s", "--superseded") == 0
    assert not old.exists()
    assert table() == {"b": b"3"}


def test_a_function_of_a_file_beside_the_job_is_the_transform(numbers: Numbers) -> None:
    (numbers.folder / "doubling.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def transform(records, context):\n"
        "    doubled = F.udf(twice, 'bigint')\n"
        "    assert records.count() == 5\n"
        "    n = doubled('value.n').alias('n')\n"
        "    return records.select(n, F.lit(context.seq).alias('run'))\n"
        "def twice(n):\n"
        "    return 2 * n\n"
    )
    numbers.send(5)
    job = numbers.job(NUMBERS, "transform: doubling:transform", sink="  partition-by: run")
    job.run_once(numbers.spark)
    rows = read_output(numbers.spark, numbers.output).collect()
    assert sorted(tuple(row) for row in rows) == [(2 * n, 0) for n in range(5)]


MISTAKEN: Final = """\
import sys
from pyspark.sql import functions as F

def exits(records):
    sys.exit(0)

def empty(records):
    return records.select()

def raises(records):
    @F.udf("long")
    def broken(offset):
        raise ValueError("of a task")
    return records.select(broken("offset").alias("n"))
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            [NUMBERS, "transform: nowhere:f"],
            "transform: nowhere cannot be imported: ModuleNotFound",
        ),
        ([NUMBERS, "transform: json:f"], "transform: json has no function f"),
        ([NUMBERS, "transform: json:dumps"], "transform json:dumps: TypeError"),
        ([NUMBERS, "transform: builtins:len"], "transform builtins:len: "),
        (
            [NUMBERS, "transform: {sql: SELECT (n FROM records}"],
            r"transform.sql: \[PARSE_SYNTAX_ERROR\]",
        ),
        (
            [NUMBERS, "transform: {sql: 'SELECT x FROM records'}"],
            "transform.sql: .*UNRESOLVED_COL.* line 1 pos 7",
        ),
        ([NUMBERS.replace("BIGINT", "BIGGER")], "decode.value.schema: .*BIGGER"),
        (
            [NUMBERS, "transform: {sql: 'SELECT 1 AS a, 2 AS a'}"],
            "occur more than once in the table: a",
        ),
        ([NUMBERS, "transform: {sql: SELECT 1 AS pybroker_x}"], "reserved names: pybroker_x"),
        (
            [NUMBERS, "transform: {sql: SELECT make_interval(1) AS n}"],
            "cannot be written: .*INTERVAL",
        ),
        (
            [NUMBERS, "transform: {sql: SELECT null AS n FROM records}"],
            "these columns are always null and have no type: n;",
        ),
        (
            [NUMBERS, "transform: {sql: 'SELECT 1 FROM records) UNION ALL (SELECT 2'}"],
            r"transform.sql: \[PARSE_SYNTAX_ERROR\]",
        ),
        ([NUMBERS, "transform: mistaken:exits"], "transform mistaken:exits: SystemExit: 0"),
        ([NUMBERS, "transform: mistaken:empty"], "the table has no columns"),
        ([NUMBERS, "transform: mistaken:raises"], "^ValueError: of a task; nothing was committed"),
    ],
)
def test_mistakes_of_a_job_are_reported_in_one_line_without_output(
    numbers: Numbers, lines: list[str], expected: str
) -> None:
    (numbers.folder / "mistaken.py").write_text(MISTAKEN)
    numbers.send(1)
    with pytest.raises(PybrokerError, match=expected) as caught:
        numbers.job(*lines).run_once(numbers.spark)
    assert "\n" not in str(caught.value)
    assert numbers.files() == []


def test_a_plan_that_does_not_continue_the_last_commit_is_refused(numbers: Numbers) -> None:
    """Another program has removed commits of the output."""
    job = numbers.job()
    for _ in range(2):
        numbers.send(2)
        job.run_once(numbers.spark)
    numbers.send(20)
    with pytest.raises(RunFailed):
        replace(job, read=dying()).run_once(numbers.spark)
    store = numbers.output / "_pybroker"
    (store / "commits" / "000000000001-0000.json").unlink()
    (store / "plans" / "000000000001.json").unlink()
    (store / "plans" / "000000000002.json").rename(store / "plans" / "000000000001.json")
    with pytest.raises(
        OutputError, match="does not begin where run 0 ended; discard the plan with --new-plan"
    ):
        job.run_once(numbers.spark)
    assert command("run", str(numbers.file), "--new-plan") == 0
    assert numbers.numbers() == list(range(24))


def test_values_of_partitions_are_read_as_they_were(numbers: Numbers) -> None:
    words = ["a/b", "x y", "ü", "{z}[*]?", "100%", "a=b", "007", "2001-01-01", "null", "#"]
    numbers.send_values(json.dumps({"word": word}).encode() for word in [*words, None])
    decode = "decode: {value: {format: json, schema: word STRING}}"
    table = "transform: {sql: 'SELECT offset, value.word FROM records'}"
    numbers.job(decode, table, sink="  partition-by: word").run_once(numbers.spark)
    found = [row["word"] for row in read_output(numbers.spark, numbers.output).collect()]
    assert Counter(found) == Counter([*words, None])


def test_the_pages_of_spark_name_the_run(numbers: Numbers) -> None:
    (numbers.folder / "described.py").write_text(
        "from pathlib import Path\n"
        "def transform(records):\n"
        "    found = records.sparkSession.sparkContext.getLocalProperty('spark.job.description')\n"
        "    Path(__file__).with_name('description').write_text(found)\n"
        "    return records\n"
    )
    numbers.send(5)
    job = numbers.job("transform: described:transform")
    job.run_once(numbers.spark)
    found = (numbers.folder / "description").read_text()
    assert found == f"{job.name} seq=0 [1 topics, 2 ranges, 5 offsets]"
    assert numbers.spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_times_in_names_of_folders_mean_the_same_everywhere(numbers: Numbers) -> None:
    """Sessions of writers and readers may have different time zones."""
    numbers.send(4)
    table = "transform: {sql: 'SELECT offset, timestamp_seconds(3600 * value.n) at FROM records'}"
    zone = "spark.sql.session.timeZone"
    before = numbers.spark.conf.get(zone)
    try:
        numbers.spark.conf.set(zone, "America/New_York")
        numbers.job(NUMBERS, table, sink="  partition-by: at").run_once(numbers.spark)
        numbers.spark.conf.set(zone, "Asia/Kolkata")
        found = read_output(numbers.spark, numbers.output).selectExpr("unix_seconds(at)").collect()
    finally:
        numbers.spark.conf.set(zone, str(before))
    assert sorted(row[0] for row in found) == [0, 3600, 7200, 10800]


def test_bytes_cannot_be_names_of_folders(numbers: Numbers) -> None:
    numbers.send(1)
    table = "transform: {sql: 'SELECT offset, key FROM records'}"
    with pytest.raises(PybrokerError, match=r"the type binary cannot be names of folders.*: key"):
        numbers.job(table, sink="  partition-by: key").run_once(numbers.spark)
    assert numbers.files() == []


def test_a_timestamp_may_end_a_run(numbers: Numbers) -> None:
    samples = [(0, Sample(None, b'{"n": %d}' % n, timestamp=1_000_000 + n)) for n in range(10)]
    spark_topics.produce(numbers.broker.bootstrap, numbers.topic, samples)
    job = numbers.job()
    assert job.run_once(numbers.spark, until_ms=1_000_004).rows == 4
    assert job.run_once(numbers.spark, until_ms=1_000_002).state == "nothing-new"
    assert job.run_once(numbers.spark, until_ms=1_000_006).rows == 2
    assert job.run_once(numbers.spark).rows == 4
    assert numbers.numbers() == list(range(10))


def test_the_output_can_be_read_without_spark(numbers: Numbers) -> None:
    import_module = pytest.importorskip("pyarrow.parquet")
    numbers.send(10)
    numbers.job().run_once(numbers.spark)
    numbers.send(10)
    numbers.job().run_once(numbers.spark)
    tables = [import_module.read_table(file) for file in output_files(numbers.output)]
    assert sorted(n for table in tables for n in table["n"].to_pylist()) == list(range(20))
    commits = sorted((numbers.output / "_pybroker" / "commits").glob("*.json"))
    named = [
        numbers.output / each["path"]
        for commit in commits
        for each in json.loads(commit.read_text())["files"]
    ]
    assert sorted(named) == sorted(output_files(numbers.output))


def test_equal_job_files_give_equal_jobs(numbers: Numbers) -> None:
    assert numbers.job().file == job_file.load(numbers.file)
