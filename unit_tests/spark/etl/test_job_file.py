"""Tests of job files: their values, and one line for each fault."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from pybroker.errors import ConfigError
from pybroker.spark.etl import job_file
from pybroker.spark.etl.job_model import (
    DeadLetterSink,
    Decode,
    JobFile,
    Part,
    Sink,
    Source,
    Transform,
)
from pybroker.spark.etl.manifest import Owner
from pybroker.spark.etl.moments import timestamp_ms
from unit_tests.sources import ROOT

SMALLEST = """\
name: orders
source:
  bootstrap.servers: broker:9092
  topics: [orders]
sink:
  path: /lake/orders
"""

LARGEST = """\
name: orders-daily
source:
  bootstrap.servers: [a:9092, "b:9092,c:9092"]
  topics: orders
  isolation.level: read_uncommitted
  starting: 2026-01-31T12:00:00Z
  mode: append
  tombstones: drop
  include-headers: yes
  fail-on-data-loss: false
  max-bytes-per-run: 2g
  max-bytes-per-partition: 128m
  min-partitions: 8
  kafka.security.protocol: PLAINTEXT
  kafka.check.crcs: true
decode:
  key: {format: string}
  value:
    format: json
    schema: file:orders.ddl
    unknown-fields: ignore
    options: {dateFormat: yyyy-MM-dd}
  on-error: dlq
transform: jobs.orders:transform
sink:
  format: parquet
  path: file:///lake/orders
  partition-by: [date, country]
  compression: zstd
  files: 4
  on-schema-change: add-columns
dlq: {path: /lake/_dlq/orders, max-ratio: 0.01}
spark:
  master: local[2]
  spark.sql.shuffle.partitions: 4
"""


def parsed(text: str, **environment: str) -> JobFile:
    return job_file.from_text(text, Path("jobs/orders.yaml"), environment)


def faults(text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parsed(text, **environment)
    return caught.value.faults


def changed(old: str, new: str) -> str:
    assert old in SMALLEST
    return SMALLEST.replace(old, new)


def test_smallest_job_file_has_the_defaults() -> None:
    job = parsed(SMALLEST)
    assert job == JobFile(
        name="orders",
        file=Path("jobs/orders.yaml"),
        source=Source("broker:9092", ("orders",)),
        sink=Sink(Path("/lake/orders")),
    )
    assert job.owner == Owner("orders", "append")
    assert job.places.dead_letters_root == Path("/lake/orders/dead_letters")


def test_every_key_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "orders.ddl").write_text("id BIGINT NOT NULL\n")
    (tmp_path / "orders.yaml").write_text(LARGEST)
    job = job_file.load(tmp_path / "orders.yaml")
    assert job == JobFile(
        name="orders-daily",
        file=tmp_path / "orders.yaml",
        source=Source(
            bootstrap_servers="a:9092,b:9092,c:9092",
            topics=("orders",),
            isolation="read_uncommitted",
            starting=1769860800000,
            mode="append",
            tombstones="drop",
            include_headers=True,
            fail_on_data_loss=False,
            max_bytes_per_run=2 * 2**30,
            max_bytes_per_partition=128 * 2**20,
            min_partitions=8,
            kafka={"kafka.security.protocol": "PLAINTEXT", "kafka.check.crcs": "true"},
        ),
        sink=Sink(Path("/lake/orders"), ("date", "country"), "zstd", 4, "add-columns"),
        decode=Decode(
            value=Part("json", "id BIGINT NOT NULL", "ignore", {"dateFormat": "yyyy-MM-dd"}),
            key=Part("string"),
            on_error="dlq",
        ),
        transform=Transform(function="jobs.orders:transform", folder=tmp_path),
        dead_letters=DeadLetterSink(0.01, Path("/lake/_dlq/orders")),
        spark={"master": "local[2]", "spark.sql.shuffle.partitions": "4"},
    )
    assert job.places.dead_letters_root == Path("/lake/_dlq/orders")


def test_job_in_the_guide_is_valid() -> None:
    guide = (ROOT / "docs" / "etl.rst").read_text()
    first = guide.partition("::\n")[2].partition("\nInstall ")[0]
    job = parsed(textwrap.dedent(first))
    assert (job.name, job.decode.on_error, job.sink.partition_by) == ("orders", "dlq", ("day",))


@pytest.mark.parametrize("name", ["flights", "stocks", "birdstrikes"])
def test_example_jobs_are_valid(name: str) -> None:
    job = job_file.load(ROOT / "spark" / "examples" / f"{name}.yaml", {})
    assert job.source.topics == (name,)
    assert job.sink.path == Path("/tmp/pybroker-examples") / name


def test_every_key_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "etl.rst").read_text()
    keys = {*re.findall(r"^ *([a-z.-]+):", LARGEST, re.MULTILINE)}
    known = {key for key in keys if not key.startswith(("kafka.", "spark."))}
    assert len(known) > 25
    assert not [key for key in known if key not in guide]


def test_kafka_options_without_effect_are_accepted() -> None:
    job = parsed(changed("[orders]", "[a]\n  kafka.session.timeout.ms: 1\n  kafka.client.id: x"))
    assert job.source.kafka == {"kafka.client.id": "x"}


def test_environment_variables_are_replaced_in_texts() -> None:
    text = changed("broker:9092", "${HOST}:${PORT:-9092}")
    assert parsed(text, HOST="b1").source.bootstrap_servers == "b1:9092"
    assert parsed(text, HOST="b1", PORT="1").source.bootstrap_servers == "b1:1"
    [fault] = faults(text)
    assert fault.startswith("jobs/orders.yaml:3: source.bootstrap.servers: the environment ")
    assert "HOST is not set" in fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ":1: expected keys and values"),
        ("- a", ":1: expected keys and values"),
        ("name: [", ":1: not YAML"),
        ("a: b: c", ":1: not YAML: mapping values are not allowed here"),
        (changed("name: orders", "name: orders\nname: bills"), ":2: name: given twice, first in"),
        (changed("name: orders\n", ""), ":1: name: is missing; expected letters"),
        (changed("name: orders", "name: a b"), ":1: name: expected letters, digits"),
        (
            changed("name: orders", "nam: x\nname: x"),
            ":1: nam: is not a key of a job file; did you mean",
        ),
        (
            changed("name: orders", "name: o\nx1: x"),
            ":2: x1: is not a key of a job file; known are name,",
        ),
        (changed("[orders]", "[]"), ":4: source.topics: expected a list of topics, found none"),
        (changed("[orders]", "3"), ":4: source.topics: expected a list of topics, found 3"),
        (changed("[orders]", "[a, 3]"), ":4: source.topics: expected a list of topics, found"),
        (changed("[orders]", "[a, [b]]"), ":4: source.topics: expected plain values in the list"),
        (changed("[orders]", "[a/b]"), ":4: source.topics: 'a/b' is not a valid topic name"),
        (changed("[orders]", "[a, a]"), ":4: source.topics: a is given twice"),
        (changed("  topics: [orders]\n", ""), ":2: source.topics: is missing; expected a list"),
        (changed("broker:9092", "broker"), ":3: source.bootstrap.servers: expected HOST:PORT"),
        (changed("/lake", "lake"), ":6: sink.path: expected an absolute path"),
        (changed("/lake", "s3a://lake"), ":6: sink.path: s3a://lake/orders is not an absolute"),
        (changed("/lake", "hdfs:/lake"), ":6: sink.path: hdfs:/lake/orders is not an absolute"),
        (changed("/lake/", "/lake/*/"), ":6: sink.path: '/lake/*/orders' contains one of *"),
        (SMALLEST + "  partition-by: 7", ":7: sink.partition-by: expected a list of columns"),
        (SMALLEST + "  partition-by: [pybroker_x]", "names that begin with pybroker_ are reserved"),
        (SMALLEST + "  format: csv", ":7: sink.format: expected parquet, found 'csv'"),
        (SMALLEST + "  files: 0", ":7: sink.files: expected a count, 1 to"),
        (SMALLEST + "  files: true", ":7: sink.files: expected a count, 1 to"),
        (SMALLEST + "decode: 5", ":7: decode: expected keys and values, found 5"),
        (SMALLEST + "decode: {on-error: null}\ndlq: 3", "dlq: expected keys and values, found 3"),
        (SMALLEST + "decode: {on-error: skip}", "decode.on-error: expected fail or dlq"),
        (SMALLEST + "decode: {on-error: dlq}", "decode.on-error: dlq needs the section dlq"),
        (SMALLEST + "decode: {on-error: dlq}\ndlq: {}", ":8: dlq.max-ratio: is missing; expected"),
        (SMALLEST + "decode: {on-error: dlq}\ndlq: {max-ratio: 2}", "expected the part of a run's"),
        (SMALLEST + "dlq: {max-ratio: 0}", ":7: dlq: has no effect without decode.on-error: dlq"),
        (SMALLEST + "decode: {value: {format: avro}}", "expected json or string or raw, found"),
        (SMALLEST + "decode: {value: {format: json}}", "decode.value.schema: is missing; expected"),
        (SMALLEST + "decode: {value: {schema: a INT}}", "has no meaning for the format raw"),
        (
            SMALLEST + "decode: {value: {format: json, schema: 'file:no.ddl'}}",
            "decode.value.schema: jobs/no.ddl cannot be read: No such file",
        ),
        (
            SMALLEST + "decode: {value: {format: json, schema: a INT, options: {mode: x}}}",
            "decode.value.options.mode: is not a key of a job",
        ),
        (SMALLEST + "transform: orders", ":7: transform: expected module:function or sql: TEXT"),
        (SMALLEST + "transform: {sql: ''}", "transform.sql: expected a SELECT over the view"),
        (SMALLEST + "transform: 5", ":7: transform: expected module:function or sql: TEXT"),
        (SMALLEST + "spark: {driver: 1g}", "spark.driver: expected master or a Spark option"),
        (SMALLEST + "? [a, b]\n: c", ":7: expected a plain name as the key"),
        (changed("[orders]", "[a]\n  mode: late"), ":5: source.mode: expected append or latest"),
        (changed("[orders]", "[a]\n  starting: soon"), ":5: source.starting: expected earliest,"),
        (changed("[orders]", "[a]\n  max-bytes-per-run: 1x"), "expected a size such as 128m"),
        (changed("[orders]", "[a]\n  min-partitions: -1"), "source.min-partitions: expected a co"),
        (changed("[orders]", "[a]\n  include-headers: 1.5"), "expected true or false, found 1.5"),
        (
            changed("[orders]", "[a]\n  kafka.group.id: g"),
            "cannot be set here: use the keys of the section source",
        ),
        (changed("[orders]", "[a]\n  kafka.x: [g]"), ":5: source.kafka.x: expected a plain value"),
        (
            changed("[orders]", "[a]\n  mode: latest\n  max-bytes-per-run: 1g"),
            ":6: source.max-bytes-per-run: cannot limit a run of mode latest",
        ),
        (changed("[orders]", "&a [*a]"), ":4: source.topics: expected plain values in the list"),
        (SMALLEST + "spark: &a\n  x: *a", ": spark.x: contains itself"),
        ("a: " + "[" * 3000, ":1: nested too deeply"),
        ("a: " + "{a: " * 3000, ":1: nested too deeply"),
        (changed("/lake/orders", '"/lake\\0/orders"'), "contains a control character"),
        (changed("/lake/orders", '"/lake\\n/orders"'), "contains a control character"),
        (changed("/lake/orders", "/./"), "expected a folder that only this job uses, found '/./'"),
        (SMALLEST + f"  files: {2**31}", ":7: sink.files: expected a count, 1 to 2147483647"),
        (changed("[orders]", f"[a]\n  starting: {2**63}"), ":5: source.starting: expected earli"),
        (changed("[orders]", "[a]\n  starting: 0001-01-01"), ":5: source.starting: expected earl"),
        (changed("[orders]", "[a]\n  kafka.foo: 1"), "kafka.foo: unknown option kafka.foo"),
        (
            changed("[orders]", "[a]\n  kafka.sasl.mechanism: PLAIN"),
            "supports neither TLS nor SASL",
        ),
        (changed("[orders]", "[a]\n  kafka.fetch.max.bytes: -1"), "must be from 0 to 2147483647"),
    ],
)
def test_fault_line_has_place_key_and_expected_value(text: str, expected: str) -> None:
    found = faults(text)
    assert any(expected in fault for fault in found), found
    assert all(fault.startswith("jobs/orders.yaml:") for fault in found)
    assert all("\n" not in fault for fault in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (changed("name:", "nam:"), "nam: is not a key of a job file; did you mean name?"),
        (
            changed("topics:", "topic:"),
            "source.topic: is not a key of a job file; did you mean topics?",
        ),
        (changed("bootstrap.servers:", "bootstrap:"), "source.bootstrap: is not a key of a job"),
        (changed("broker:9092", "[]"), "source.bootstrap.servers: expected HOST:PORT"),
        (changed("sink:\n  path: /lake/orders", "sink: 5"), "sink: expected keys and values"),
        (changed("sink:\n  path: /lake/orders\n", ""), "sink: is missing"),
        (
            changed("[orders]", "[a]\n  <<: {mode: latest}"),
            "source: expected a plain name as the key",
        ),
        (changed("[orders]", "[a]\n  kafka.group.id: [g]"), "kafka.group.id: cannot be set"),
        (
            changed("  topics: [orders]", "  <<: {topics: [orders]}"),
            "source: expected a plain name as the key",
        ),
        (
            SMALLEST + "decode: {on-error: dql}\ndlq: {max-ratio: 1}",
            "decode.on-error: expected fail or dlq, found 'dql'",
        ),
        (
            SMALLEST + "decode: {on-eror: dlq}\ndlq: {max-ratio: 1}",
            "decode.on-eror: is not a key of a job file; did you mean on-error?",
        ),
        (SMALLEST + "decode: {on-error: dlq}\ndql: {max-ratio: 1}", "dql: is not a key of a job"),
        (SMALLEST + "decode: {on-error: dlq}\ndlq: 5", "dlq: expected keys and values, found 5"),
        (
            SMALLEST + "decode: {on-error: dlq}\ndlq: {max-rato: 1}",
            "dlq.max-rato: is not a key of a job file; did you mean max-ratio?",
        ),
        (
            changed("/lake/orders", "lake\ndecode: {on-error: dlq}\n")
            + "dlq: {max-ratio: 1, path: /lake/x}",
            "sink.path: expected an absolute path",
        ),
        (
            changed("path: /lake/orders", "pth: /lake\ndecode: {on-error: dlq}\n")
            + "dlq: {max-ratio: 1, path: /other}",
            "sink.pth: is not a key of a job file; did you mean path?",
        ),
        (
            SMALLEST + "decode: {value: {format: jsn, schema: a INT}}",
            "decode.value.format: expected json or string or raw, found 'jsn'",
        ),
        (
            SMALLEST + "decode: {value: {fromat: json, schema: a INT, unknown-fields: ignore}}",
            "decode.value.fromat: is not a key of a job file; did you mean format?",
        ),
        (
            SMALLEST + "decode: {value: {format: json, shema: a INT}}",
            "decode.value.shema: is not a key of a job file; did you mean schema?",
        ),
        (
            SMALLEST + "transform: {sq: SELECT 1}",
            "transform.sq: is not a key of a job file; did you mean",
        ),
        (SMALLEST + "  partition-by: [a, a]", "sink.partition-by: a is given twice"),
        (
            changed("[orders]", "[a]\n  mode: latest\n  mode: append\n  tombstones: drop"),
            "source.mode: given twice",
        ),
    ],
)
def test_one_fault_is_one_line(text: str, expected: str) -> None:
    """The valid value that replaces a faulty value causes no further fault."""
    [fault] = faults(text)
    assert expected in fault


def test_all_faults_are_reported_in_the_order_of_the_file() -> None:
    found = faults("nam: x\nsource: {topics: 3, mode: 4}\nsink: {path: x}\n")
    assert [fault.split(": ")[0] for fault in found] == [
        f"jobs/orders.yaml:{line}" for line in (1, 2, 2, 2, 3)
    ]


def test_dead_letters_inside_of_the_output_are_refused() -> None:
    text = SMALLEST + "decode: {on-error: dlq}\ndlq: {max-ratio: 1, path: /lake/orders/data}\n"
    assert "dlq.path: is inside sink.path" in faults(text)[0]


def test_unreadable_file_gives_one_error_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read: No such file"):
        job_file.load(tmp_path / "no.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yaml: not UTF-8 at byte 6"):
        job_file.load(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1700000000000),
        ("2026-01-31T12:00:00Z", 1769860800000),
        ("2026-01-31T12:00:00", 1769860800000),
        ("2026-01-31", 1769817600000),
        ("2026-01-31T13:00:00+01:00", 1769860800000),
    ],
)
def test_moments(text: str, expected: int) -> None:
    assert timestamp_ms(text) == expected
