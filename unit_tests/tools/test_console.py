"""Tests of the console tools: input lines become records, and records become output lines."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import threading
from pathlib import Path
from typing import Any

import click
import pytest

from pybroker.client.errors import ResponseError
from pybroker.client.producer import Producer
from pybroker.errors import ErrorCode
from pybroker.records.batch import TimestampType
from pybroker.records.consumed import ConsumerRecord
from pybroker.records.record import decode_records
from pybroker.tools._cli import Failure
from pybroker.tools.console_consumer import (
    Args,
    Printer,
    format_json,
    group_of,
    leaderless_ms,
    line_style,
    parse_start,
    set_reset,
)
from pybroker.tools.console_producer import (
    CHUNKS_AHEAD_MAX,
    Line,
    line_format,
    lines_of,
    send_lines,
)
from pybroker.wire.api import ApiKey
from unit_tests.client.fake_broker import FakeBroker, refuse
from unit_tests.client.held_logs import batch, consumer
from unit_tests.patience import in_time

BOTH = {"parse.key": "true", "parse.headers": "true"}


def pieces(*chunks: bytes) -> Any:
    """Return a function `read` that returns the chunks one by one, and then the end of the
    input."""
    rest = list(chunks)
    return lambda: rest.pop(0) if rest else b""


# Producer


@pytest.mark.parametrize(
    ("properties", "line", "expected"),
    [
        ({}, b"a\tb", Line((), None, b"a\tb")),
        ({}, b"", Line((), None, b"")),
        ({"parse.key": "true"}, b"k\tv\tw", Line((), b"k", b"v\tw")),
        ({"parse.key": "true"}, b"\tv", Line((), b"", b"v")),
        ({"parse.key": "true", "key.separator": "::"}, b"k::v", Line((), b"k", b"v")),
        (
            {"parse.headers": "true"},
            b"h:1,g:x:y\tv",
            Line((("h", b"1"), ("g", b"x:y")), None, b"v"),
        ),
        (BOTH, b"h:1\tk\tv", Line((("h", b"1"),), b"k", b"v")),
        (BOTH, b"\tk\t", Line((), b"k", b"")),
        ({**BOTH, "null.marker": "N"}, b"h:N\tN\tN", Line((("h", None),), None, None)),
        ({"parse.key": "true", "ignore.error": "true"}, b"no key", Line((), None, b"no key")),
        ({}, b"\xff\x00", Line((), None, b"\xff\x00")),
    ],
)
def test_lines_are_split_into_headers_key_and_value(
    properties: dict[str, str], line: bytes, expected: Line
) -> None:
    assert line_format(properties).parse(line, 1) == expected


@pytest.mark.parametrize(
    ("properties", "line", "text"),
    [
        ({"parse.key": "true"}, b"a", "No key separator found on line number 4: 'a'"),
        ({"parse.headers": "true"}, b"a", "No headers delimiter found on line number 4: 'a'"),
        (BOTH, b"h\tk\tv", "No header key separator found in pair 'h' on line number 4"),
    ],
)
def test_lines_without_key_or_headers_are_refused(
    properties: dict[str, str], line: bytes, text: str
) -> None:
    with pytest.raises(Failure, match=text):
        line_format(properties).parse(line, 4)


def test_unknown_properties_are_refused() -> None:
    with pytest.raises(Failure, match=r"--property parse\.keys is unknown"):
        line_format({"parse.keys": "true"})
    with pytest.raises(Failure, match="must not be empty"):
        line_format({"key.separator": ""})
    with pytest.raises(Failure, match=r"--property print\.keys is unknown"):
        line_style({"print.keys": "true"})


async def test_lines_are_split_at_lf_and_crlf_across_chunks() -> None:
    found = [line async for line in lines_of(pieces(b"a\nb", b"c\r", b"\n\nd\re", b"\nlast"))]
    assert found == [b"a", b"bc", b"", b"d\re", b"last"]


@pytest.mark.filterwarnings("error")
def test_the_input_thread_does_not_delay_the_end() -> None:
    """The reading thread cannot be interrupted. It ends when it finds the event loop closed."""
    is_over = threading.Event()
    threads: list[threading.Thread] = []

    def read() -> bytes:
        if not threads:
            threads.append(threading.current_thread())
            return b"first\n"
        is_over.wait()
        return b"late\n"

    async def one_line() -> bytes:
        return await anext(lines_of(read))

    assert asyncio.run(one_line()) == b"first"
    is_over.set()
    threads[0].join()
    gc.collect()


async def test_input_is_read_at_most_a_few_chunks_ahead() -> None:
    reads: list[None] = []

    def read() -> bytes:
        reads.append(None)
        return b"line\n"

    lines = lines_of(read)
    for taken in range(1, 3 * CHUNKS_AHEAD_MAX):
        assert await anext(lines) == b"line"
        assert len(reads) <= taken + CHUNKS_AHEAD_MAX + 1


@pytest.mark.parametrize("sync", [True, False])
async def test_every_line_becomes_a_record(sync: bool) -> None:
    async with FakeBroker({"t": 1}) as broker:
        producer = Producer(broker.address, linger_ms=0 if sync else 60_000)
        reader = line_format({"parse.key": "true"})
        assert await send_lines(producer, "t", reader, pieces(b"k\tv\n", b"l\tw"), sync=sync) == 0
        records = [
            record
            for data in broker.partition().batches
            for record in decode_records(data, decompressed_bytes_max=1_000)
        ]
        assert [(record.key, record.value) for record in records] == [(b"k", b"v"), (b"l", b"w")]
        assert (len(broker.partition().batches) == 2) is sync


async def test_a_refused_record_is_reported_with_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.will(ApiKey.PRODUCE, refuse(ErrorCode.INVALID_RECORD))
        producer = Producer(broker.address)
        assert await send_lines(producer, "t", line_format({}), pieces(b"x"), sync=True) == 1
    text = "Error when sending message to topic t with key: null, value: 1 bytes with error: "
    assert capsys.readouterr().err.startswith(text)


async def test_lines_before_a_malformed_line_are_sent() -> None:
    async with FakeBroker({"t": 1}) as broker:
        reader = line_format({"parse.key": "true"})
        with pytest.raises(Failure, match="line number 2"):
            producer = Producer(broker.address)
            await send_lines(producer, "t", reader, pieces(b"k\tv\nbad\n"), sync=False)
        assert broker.partition().values() == [b"v"]


# Consumer

RECORD = ConsumerRecord(
    "t", 3, 9, 77, TimestampType.CREATE_TIME, b"k", b"v", (("h", b"1"), ("n", None)), 0
)
BARE = ConsumerRecord("t", 3, 9, -1, TimestampType.CREATE_TIME, None, None, (), 0)
ALL = dict.fromkeys(
    ["print.timestamp", "print.partition", "print.offset", "print.headers", "print.key"], "true"
)


@pytest.mark.parametrize(
    ("properties", "record", "line"),
    [
        ({}, RECORD, b"v\n"),
        ({}, BARE, b"null\n"),
        (ALL, RECORD, b"CreateTime:77\tPartition:3\tOffset:9\th:1,n:null\tk\tv\n"),
        (ALL, BARE, b"NO_TIMESTAMP\tPartition:3\tOffset:9\tNO_HEADERS\tnull\tnull\n"),
        ({"print.key": "true", "key.separator": "=", "line.separator": "|"}, RECORD, b"k=v|"),
        ({"print.value": "false", "print.key": "TRUE"}, RECORD, b"k\n"),
        ({"null.literal": "-", "print.key": "true"}, BARE, b"-\t-\n"),
        ({"print.headers": "true", "headers.separator": ";"}, RECORD, b"h:1;n:null\tv\n"),
    ],
)
def test_records_become_lines(
    properties: dict[str, str], record: ConsumerRecord, line: bytes
) -> None:
    assert line_style(properties).format(record) == line


def test_records_become_json() -> None:
    document = json.loads(format_json(RECORD))
    assert (document["key"], document["value"], document["offset"]) == ("k", "v", 9)
    assert document["headers"] == [{"name": "h", "value": "1"}, {"name": "n", "value": None}]
    binary = ConsumerRecord("t", 0, 0, 0, TimestampType.CREATE_TIME, b"\xff", None, (), 0)
    assert json.loads(format_json(binary))["keyBase64"] == "/w=="


@pytest.mark.parametrize(
    ("partition", "offset", "from_beginning", "start"),
    [
        (None, None, False, "latest"),
        (None, None, True, "earliest"),
        (0, "earliest", False, "earliest"),
        (0, "latest", False, "latest"),
        (0, "12", False, 12),
    ],
)
def test_start_position_follows_from_the_flags(
    partition: int | None, offset: str | None, from_beginning: bool, start: int | str
) -> None:
    assert parse_start(partition, offset, from_beginning) == start


@pytest.mark.parametrize(
    ("partition", "offset", "from_beginning", "text"),
    [
        (None, "5", False, "The partition is required when offset is specified."),
        (0, "5", True, "from-beginning and offset cannot be specified together"),
        (0, "-5", False, "The provided offset value '-5' is incorrect"),
        (0, "x", False, "The provided offset value 'x' is incorrect"),
    ],
)
def test_contradictory_start_flags_are_refused(
    partition: int | None, offset: str | None, from_beginning: bool, text: str
) -> None:
    with pytest.raises(click.UsageError) as caught:
        parse_start(partition, offset, from_beginning)
    assert text in caught.value.message


async def run_printer(
    broker: FakeBroker, *, start: int | str = "earliest", **limits: int | None
) -> list[bytes]:
    output = io.BytesIO()
    policy = start if isinstance(start, str) else "latest"
    reader = consumer(broker, auto_offset_reset=policy, default_api_timeout_ms=1_000)
    printer = Printer(reader, output, line_style({}).format)
    wanted: dict[str, Any] = {"timeout_ms": 1_000, "partition": 0, "start": start} | limits
    await printer.run(Args("t", **wanted))
    return output.getvalue().splitlines()


async def test_printing_ends_at_max_messages_or_after_the_timeout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with FakeBroker({"t": 2}) as broker:
        broker.partition("t", 0).append(batch(b"a", b"b", b"c"))
        broker.partition("t", 1).append(batch(b"x"))
        assert await run_printer(broker, max_messages=2, timeout_ms=None) == [b"a", b"b"]
        assert capsys.readouterr().err == "Processed a total of 2 messages\n"
        assert await run_printer(broker, start=1) == [b"b", b"c"]
        assert sorted(await run_printer(broker, partition=None)) == [b"a", b"b", b"c", b"x"]
        assert await run_printer(broker, start="latest") == []
        capsys.readouterr()


async def test_missing_topic_and_partition_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeBroker({"t": 2}) as broker:
        with pytest.raises(Failure, match="topic t has no partition 7; it has 2 partitions"):
            await run_printer(broker, partition=7)
        del broker.topics["t"]
        assert await run_printer(broker) == []
    assert "WARNING: topic t did not appear in the cluster metadata" in capsys.readouterr().err


def test_contradictory_group_ids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "consumer.properties"
    path.write_text("group.id=a\n")
    assert group_of(None, [], None, 3) is None
    assert group_of("a", [], None, None) == "a"
    assert group_of(None, ["group.id=b"], None, None) == "b"
    assert group_of("a", ["group.id=a"], str(path), None) == "a"
    with pytest.raises(click.UsageError, match=r"do not match\. Detected group ids: 'b', 'a'"):
        group_of(None, ["group.id=b"], str(path), None)
    with pytest.raises(click.UsageError, match="group and partition cannot be specified"):
        group_of("a", [], None, 0)


def test_auto_offset_reset_follows_from_the_flags() -> None:
    for given, start, from_beginning, by_offset, expected in (
        (None, "latest", False, False, "latest"),
        (None, "earliest", True, False, "earliest"),
        ("earliest", "latest", False, False, "earliest"),
        ("earliest", "latest", False, True, "latest"),
        ("none", 7, False, True, "none"),
    ):
        options = {} if given is None else {"auto_offset_reset": given}
        set_reset(options, start, from_beginning=from_beginning, by_offset=by_offset)
        assert options["auto_offset_reset"] == expected
    with pytest.raises(Failure, match="Can't simultaneously specify --from-beginning"):
        set_reset({"auto_offset_reset": "latest"}, "earliest", from_beginning=True, by_offset=False)


@pytest.mark.parametrize(
    ("timeout_ms", "limit_ms"), [(None, 0), (1, 1), (2_000, 1_000), (60_000, 3_000)]
)
def test_a_consumer_without_a_timeout_waits_for_a_leader(
    timeout_ms: int | None, limit_ms: int
) -> None:
    assert leaderless_ms(timeout_ms) == limit_ms


async def test_partition_without_a_leader_is_an_error() -> None:
    async with FakeBroker({"t": 1}) as broker:
        broker.without_leader = True
        printer = Printer(consumer(broker, leaderless_timeout_ms=20), io.BytesIO(), format_json)
        with pytest.raises(ResponseError, match=r"LEADER_NOT_AVAILABLE: .*\(t-0\)"):
            await in_time(printer.run(Args("t", timeout_ms=600_000)))
