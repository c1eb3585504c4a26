"""The command `pybroker consumer-perf-test`, equivalent to Kafka's kafka-consumer-perf-test. The
consumer joins no group: it assigns all partitions of the topic to itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from pybroker.client.consumer import Consumer
from pybroker.client.errors import TopicUnavailable
from pybroker.config.properties import read_properties
from pybroker.records.consumed import ConsumerRecord
from pybroker.tools._cli import (
    Failure,
    Tool,
    config_file_option,
    format_option,
    run_async,
    write_json,
)
from pybroker.tools._perf import MIB, date_format, finite, fixed, print_metrics, ratio

POLL_MS: Final = 100
FETCH_BYTES: Final = 1_048_576
TIMEOUT_MS: Final = 10_000
REPORT_EVERY_MS: Final = 5_000
DATE_FORMAT: Final = "yyyy-MM-dd HH:mm:ss:SSS"
COLUMNS: Final = (
    "data.consumed.in.MB",
    "MB.sec",
    "data.consumed.in.nMsg",
    "nMsg.sec",
    "rebalance.time.ms",
    "fetch.time.ms",
    "fetch.MB.sec",
    "fetch.nMsg.sec",
)


@dataclass(frozen=True, slots=True)
class Args:
    """The topic to read, the limits of the run, and the choice of lines to print."""

    topic: str
    messages: int
    timeout_ms: int
    report_every_ms: int
    detailed: bool
    show_date: Callable[[int], str]
    print_metrics: bool
    as_json: bool


@dataclass(slots=True)
class Tally:
    """The number of records and bytes that were read until `moment_ms` (ms since 1970)."""

    moment_ms: int
    messages: int = 0
    bytes: int = 0

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            self.messages += 1
            if record.value is not None:
                self.bytes += len(record.value)
            if record.key is not None:
                self.bytes += len(record.key)


@click.command("consumer-perf-test", cls=Tool, error_prefix="consumer-perf-test: ")
@click.option(
    "--bootstrap-server",
    "--broker-list",
    "bootstrap_server",
    required=True,
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first; they return the addresses of all brokers.",
)
@click.option("--topic", required=True, help="The topic; all of its partitions are read.")
@click.option(
    "--messages", required=True, type=click.IntRange(0), help="The number of records to read."
)
@click.option(
    "--group",
    help="No effect; accepted for compatibility. The tool assigns all partitions"
    " to itself and joins no group.",
)
@click.option(
    "--fetch-size",
    type=click.IntRange(1),
    default=FETCH_BYTES,
    metavar="BYTES",
    help="The most bytes of one partition in one fetch response. Default: 1048576.",
)
@click.option(
    "--from-latest",
    is_flag=True,
    help="Start at the log end offset. Default: start at the log start offset.",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(0),
    default=TIMEOUT_MS,
    metavar="MS",
    help="Exit if no record arrives for this time, in ms. Default: 10000.",
)
@click.option(
    "--show-detailed-stats",
    is_flag=True,
    help="Print a line per reporting interval, and no line at the end.",
)
@click.option(
    "--reporting-interval",
    type=int,
    default=REPORT_EVERY_MS,
    metavar="MS",
    help="The interval of --show-detailed-stats, in ms. Default: 5000.",
)
@click.option(
    "--hide-header", is_flag=True, help="Do not print the line with the names of the columns."
)
@click.option(
    "--date-format",
    default=DATE_FORMAT,
    metavar="PATTERN",
    help="The format of printed times, as a pattern of Java's SimpleDateFormat. Default:"
    f" {DATE_FORMAT}.",
)
@click.option("--print-metrics", is_flag=True, help="Print the client's metrics at the end.")
@click.option(
    "--socket-buffer-size", type=int, metavar="BYTES", help="No effect; accepted for compatibility."
)
@click.option("--threads", type=int, help="No effect, as in Kafka's tool.")
@click.option("--num-fetch-threads", type=int, help="No effect, as in Kafka's tool.")
@config_file_option("--consumer.config", "--command-config")
@format_option()
def command(**flags: Any) -> None:
    """Read a topic at full speed and print the throughput.

    The tool joins no group: it reads all partitions of the topic by assignment, from the first
    record on, and commits no offset. rebalance.time.ms is the time until the partitions are known.
    An MB is 2^20 bytes.

    \b
    Example: pybroker consumer-perf-test --bootstrap-server 127.0.0.1:9092 --topic orders
             --messages 100000
    """
    if flags["threads"] is not None or flags["num_fetch_threads"] is not None:
        click.echo(
            "WARNING: option [threads] and [num-fetch-threads] have been deprecated and will be"
            " ignored by the test"
        )
    if flags["reporting_interval"] <= 0:
        raise Failure("Reporting interval must be greater than 0.")
    args = Args(
        topic=flags["topic"],
        messages=flags["messages"],
        timeout_ms=flags["timeout_ms"],
        report_every_ms=flags["reporting_interval"],
        detailed=flags["show_detailed_stats"],
        show_date=date_format(flags["date_format"]),
        print_metrics=flags["print_metrics"],
        as_json=flags["output_format"] == "json",
    )
    if not (flags["hide_header"] or args.as_json):
        first = ("time", "threadId") if args.detailed else ("start.time", "end.time")
        click.echo(", ".join(first + COLUMNS))
    run_async(Test(args, consumer_options(flags)).run())


def consumer_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the consumer's options. The flags override the options in the file of
    --consumer.config. Raises ConfigError."""
    file = flags["config_file"]
    given = read_properties(file) if file is not None else {}
    return {
        "client_id": "perf-consumer-client",
        "allow_auto_create_topics": True,
        **{name.replace(".", "_"): value for name, value in given.items()},
        "bootstrap_servers": flags["bootstrap_server"],
        "max_partition_fetch_bytes": flags["fetch_size"],
        "auto_offset_reset": "latest" if flags["from_latest"] else "earliest",
        "check_crcs": False,
        "default_api_timeout_ms": max(flags["timeout_ms"], 1),
    }


class Test:
    """One run of the test."""

    def __init__(self, args: Args, options: Mapping[str, Any]) -> None:
        self._args = args
        self._consumer = Consumer(**options)
        self._assign_ms = 0
        self._assign_ms_untold = 0

    async def run(self) -> None:
        """Read the topic and print the results. Raises PybrokerError."""
        async with self._consumer:
            start = Tally(_now_ms())
            tally = Tally(start.moment_ms)
            if await self._assign():
                await self._read(tally)
            tally.moment_ms = _now_ms()
        if tally.messages < self._args.messages:
            click.echo(
                "WARNING: Exiting before consuming the expected number of messages: timeout"
                f" ({self._args.timeout_ms} ms) exceeded. You can use the --timeout option to"
                " increase the timeout.",
                err=self._args.as_json,
            )
        if not self._args.detailed:
            self._print(start, tally, self._assign_ms, self._args.show_date(start.moment_ms))
        if self._args.print_metrics:
            self._print_metrics(start, tally)

    async def _assign(self) -> bool:
        """Assign all partitions of the topic. Return False if the topic does not appear before the
        timeout."""
        begun = _now_ms()
        try:
            partitions = await self._consumer.partitions_for(self._args.topic)
        except TopicUnavailable as error:
            if not error.retriable:
                raise
            click.echo(str(error), err=True)
            return False
        self._consumer.assign(partitions)
        self._assign_ms = self._assign_ms_untold = _now_ms() - begun
        return True

    async def _read(self, tally: Tally) -> None:
        args, getmany = self._args, self._consumer.getmany
        told = Tally(tally.moment_ms)
        consumed_ms = tally.moment_ms
        while tally.messages < args.messages:
            found = await getmany(timeout_ms=POLL_MS)
            tally.moment_ms = _now_ms()
            for records in found.values():
                if tally.moment_ms - told.moment_ms >= args.report_every_ms:
                    tally.add(records[:1])
                    self._report(told, tally)
                    told = Tally(tally.moment_ms, tally.messages, tally.bytes)
                    del records[0]
                tally.add(records)
            if found:
                consumed_ms = tally.moment_ms
            elif tally.moment_ms - consumed_ms > args.timeout_ms:
                return

    def _report(self, told: Tally, tally: Tally) -> None:
        if self._args.detailed:
            self._print(told, tally, self._assign_ms_untold)
        self._assign_ms_untold = 0

    def _print(self, since: Tally, until: Tally, assign_ms: int, start: str | None = None) -> None:
        """Print a line about the records between two tallies. `assign_ms`: the time until the
        partitions were known. `start`: the start time, only for the final line."""
        elapsed_ms = until.moment_ms - since.moment_ms
        fetch_ms = elapsed_ms - assign_ms
        mib = (until.bytes - since.bytes) / MIB
        count = until.messages - since.messages
        fetch_s = fetch_ms / 1000
        quiet = start is None and fetch_ms <= 0
        rates = [0.0, 0.0] if quiet else [ratio(mib, fetch_s), ratio(count, fetch_s)]
        end = self._args.show_date(until.moment_ms)
        values: list[float] = [
            until.bytes / MIB,
            ratio(mib, elapsed_ms / 1000),
            until.messages,
            ratio(count, elapsed_ms / 1000),
            assign_ms,
            fetch_ms,
            *rates,
        ]
        if self._args.as_json:
            write_json({"time": end, **dict(zip(COLUMNS, map(finite, values), strict=True))})
            return
        first = [end, "0"] if start is None else [start, end]
        numbers = [str(v) if isinstance(v, int) else fixed(v, 4) for v in values]
        click.echo(", ".join(first + numbers))

    def _print_metrics(self, start: Tally, tally: Tally) -> None:
        seconds = (tally.moment_ms - start.moment_ms) / 1000
        group = "consumer-fetch-manager-metrics"
        tag = f"{{client-id={self._consumer.options.client_id}}}"
        counted = {"records-consumed": tally.messages, "bytes-consumed": tally.bytes}
        found = {f"{group}:{name}-total:{tag}": float(v) for name, v in counted.items()}
        found |= {f"{group}:{name}-rate:{tag}": ratio(v, seconds) for name, v in counted.items()}
        print_metrics(found)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
