"""Tests of the performance tools: their numbers, dates and lines. The expected lines were printed
by Apache's tools."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from pybroker.records.batch import TimestampType
from pybroker.records.consumed import ConsumerRecord
from pybroker.tools import consumer_perf_test as consuming
from pybroker.tools import producer_perf_test as producing
from pybroker.tools._cli import Failure
from pybroker.tools._perf import MIB, date_format, fixed, print_metrics, ratio
from pybroker.tools.consumer_perf_test import Tally
from pybroker.tools.producer_perf_test import Stats, percentiles

FLAGS: dict[str, Any] = {
    "record_size": None,
    "payload_file": None,
    "payload_monotonic": False,
    "payload_delimiter": "\\n",
    "properties": (),
    "config_file": None,
    "bootstrap_server": None,
    "transactional_id": None,
    "transaction_duration_ms": 0,
}


@pytest.fixture(autouse=True)
def in_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def test_transactions_begin_with_a_duration() -> None:
    flags = {**FLAGS, "properties": ("acks=all",), "transactional_id": "x"}
    assert "transactional_id" not in producing.producer_options(flags, ())
    flags["transaction_duration_ms"] = 5
    assert producing.producer_options(flags, ())["transactional_id"] == "x"


@pytest.mark.parametrize(
    ("amount", "parts", "text"),
    [
        (1, 3, "0.3333"),
        (0, 0, "NaN"),
        (5, 0, "Infinity"),
        (-5, 0, "-Infinity"),
        (2, 1, "2.0000"),
    ],
)
def test_numbers_as_java_prints_them(amount: float, parts: float, text: str) -> None:
    assert fixed(ratio(amount, parts), 4) == text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd HH:mm:ss:SSS", "2026-11-21 07:05:09:042"),
        ("yy.M.d 'at' h:mm a", "26.11.21 at 7:05 AM"),
        ("EEE EEEE MMM MMMM D", "Sat Saturday Nov November 325"),
        ("'o''clock' k K S Z", "o'clock 7 7 42 +0000"),
        ("''yyyy", "'2026"),
    ],
)
def test_dates(pattern: str, text: str) -> None:
    assert date_format(pattern)(1_795_244_709_042) == text


@pytest.mark.parametrize(("pattern", "word"), [("b", "'b'"), ("'open", "Unterminated")])
def test_malformed_date_patterns_are_refused(pattern: str, word: str) -> None:
    with pytest.raises(Failure, match=word):
        date_format(pattern)


def test_metrics_are_printed_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_metrics({"bb": 1.0, "a": math.nan})
    assert capsys.readouterr().out == "\nMetric Name   Value\na  : NaN\nbb : 1.000\n"


# Producing


def test_stats_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    stats = Stats(4, 1_000)
    for latency, moment in ((10, 2_000), (20, 6_000), (30, 7_000), (40, 8_000)):
        stats.record(latency, MIB, moment)
    stats.print_total(11_000)
    assert capsys.readouterr().out.splitlines() == [
        "2 records sent, 0.4 records/sec (0.40 MB/sec), 15.0 ms avg latency, 20.0 ms max latency.",
        "4 records sent, 0.400000 records/sec (0.40 MB/sec), 25.00 ms avg latency,"
        " 40.00 ms max latency, 30 ms 50th, 40 ms 95th, 40 ms 99th, 40 ms 99.9th.",
    ]


def test_stats_without_records(capsys: pytest.CaptureFixture[str]) -> None:
    Stats(4, 0).print_total(1_000)
    assert capsys.readouterr().out == (
        "0 records sent, 0.000000 records/sec (0.00 MB/sec), NaN ms avg latency,"
        " 0.00 ms max latency, 0 ms 50th, 0 ms 95th, 0 ms 99th, 0 ms 99.9th.\n"
    )


def test_json_without_records(capsys: pytest.CaptureFixture[str]) -> None:
    Stats(4, 0, as_json=True).print_total(0)
    reader(as_json=True)._print(Tally(0), Tally(0), 0, "00:00:00:000")
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [documents[0]["latencyMsAverage"], documents[1]["MB.sec"]] == [None, None]


def test_shares() -> None:
    samples = list(range(1000))
    random.Random(1).shuffle(samples)
    assert percentiles(samples, 0.5, 0.95, 0.99, 0.999) == [500, 950, 990, 999]


def test_payloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    letters = producing.choose_payloads({**FLAGS, "record_size": 100})
    assert all(re.fullmatch(rb"[A-Z]{100}", letters(number)) for number in range(50))
    numbers = producing.choose_payloads({**FLAGS, "payload_monotonic": True})
    assert [numbers(0), numbers(17)] == [b"0", b"17"]
    file = tmp_path / "payloads"
    file.write_text("one\ntwo\n\n")
    pieces = producing.choose_payloads({**FLAGS, "payload_file": str(file)})
    assert {pieces(number) for number in range(100)} == {b"one", b"two"}
    assert capsys.readouterr().out.splitlines() == [
        f"Reading payloads from: {file}",
        "Number of messages read: 2",
    ]
    file.write_text("")
    with pytest.raises(Failure, match="File does not exist or empty file provided"):
        producing.choose_payloads({**FLAGS, "payload_file": str(file)})


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"record_size": 5, "payload_monotonic": True},
        {"record_size": 5, "payload_file": "f"},
    ],
)
def test_exactly_one_payload_flag_is_required(flags: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError):
        producing.check_payload({**FLAGS, **flags})


def test_options_of_the_producer(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("acks=all\nlinger.ms=3\n")
    flags = {**FLAGS, "properties": ("bootstrap.servers=h:1",), "config_file": str(file)}
    assert producing.producer_options(flags, ("acks=1",)) == {
        "client_id": "perf-producer-client",
        "bootstrap_servers": "h:1",
        "acks": "1",
        "linger_ms": "3",
    }


@pytest.mark.parametrize(
    ("flags", "more", "complaint"),
    [
        ({}, (), "Either --producer-props or --producer.config"),
        ({"bootstrap_server": "h:1"}, ("a=b",), "unrecognized arguments: 'a=b'"),
        ({"properties": ("a",)}, (), "Invalid property: a"),
        ({"properties": ("transactional.id=b",)}, (), "needs a --transaction-duration-ms"),
    ],
)
def test_malformed_producer_options_are_refused(
    flags: dict[str, Any], more: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises((click.UsageError, Failure)) as caught:
        producing.producer_options({**FLAGS, **flags}, more)
    assert complaint in str(caught.value)


# Consuming


def reader(**changes: Any) -> consuming.Test:
    flags = {"detailed": False, "as_json": False, "print_metrics": False} | changes
    args = consuming.Args("t", 10, 500, 200, show_date=date_format("HH:mm:ss:SSS"), **flags)
    return consuming.Test(args, {})


def test_final_line_equals_that_of_apaches_tool(capsys: pytest.CaptureFixture[str]) -> None:
    """The numbers of a run of Apache's tool give the line that Apache's tool printed."""
    start, end = Tally(1_795_247_086_153), Tally(1_795_247_086_810, 100_000, 10_000_000)
    reader()._print(start, end, 390, "07:44:46:153")
    assert capsys.readouterr().out == (
        "07:44:46:153, 07:44:46:810, 9.5367, 14.5156, 100000, 152207.0015, 390, 267, 35.7181,"
        " 374531.8352\n"
    )


def test_interval_line(capsys: pytest.CaptureFixture[str]) -> None:
    told, now = Tally(1_795_247_126_303), Tally(1_795_247_126_503, 51_401, 5_140_100)
    reader(detailed=True)._print(told, now, 30)
    assert capsys.readouterr().out == (
        "07:45:26:503, 0, 4.9020, 24.5099, 51401, 257005.0000, 30, 170, 28.8352, 302358.8235\n"
    )


def test_final_line_without_records(capsys: pytest.CaptureFixture[str]) -> None:
    reader()._print(Tally(0), Tally(0), 0, "00:00:00:000")
    assert capsys.readouterr().out == (
        "00:00:00:000, 00:00:00:000, 0.0000, NaN, 0, NaN, 0, 0, NaN, NaN\n"
    )


def test_throughput_counts_bytes_of_keys_and_values() -> None:
    tally = Tally(0)
    tally.add(
        ConsumerRecord("t", 0, number, 0, TimestampType.CREATE_TIME, key, value, (), 0)
        for number, (key, value) in enumerate([(b"ab", b"cde"), (None, b"f"), (b"g", None)])
    )
    assert (tally.messages, tally.bytes) == (3, 7)


def test_options_of_the_consumer(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("auto.offset.reset=none\nfetch.max.wait.ms=7\n")
    options = consuming.consumer_options(
        {
            "config_file": str(file),
            "bootstrap_server": "h:1",
            "fetch_size": 5,
            "from_latest": False,
            "timeout_ms": 0,
        }
    )
    assert options["auto_offset_reset"] == "earliest"
    assert options["fetch_max_wait_ms"] == "7"
    assert options["max_partition_fetch_bytes"] == 5
