"""The command `pybroker producer-perf-test`, equivalent to Kafka's kafka-producer-perf-test."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from pybroker.client.deliveries import Delivery
from pybroker.client.producer import Producer
from pybroker.config.properties import parse_overrides, read_properties
from pybroker.tools._cli import (
    EXIT_FAILED,
    Failure,
    Tool,
    config_file_option,
    format_option,
    run_async,
    write_json,
)
from pybroker.tools._perf import MIB, finite, fixed, print_metrics, ratio

REPORT_EVERY_MS: Final = 5_000
SAMPLES_MAX: Final = 500_000
COMPLAINTS_MAX: Final = 10
SLEEP_MIN_S: Final = 0.002
_LETTERS: Final = bytes(65 + octet % 26 for octet in range(256))

Payloads = Callable[[int], bytes]
"""A function that returns the value of the record with the given number."""


@dataclass(frozen=True, slots=True)
class Args:
    """The arguments of a test. `throughput`: records per second (negative: no limit).
    `transaction_s`: seconds per transaction (0: no transactions)."""

    topic: str
    record_count: int
    throughput: float
    payloads: Payloads
    transaction_s: float
    print_metrics: bool
    as_json: bool


@click.command("producer-perf-test", cls=Tool, error_prefix="producer-perf-test: ")
@click.option("--topic", required=True, help="The topic to which records are sent.")
@click.option(
    "--num-records",
    "record_count",
    required=True,
    type=click.IntRange(1),
    help="The number of records to send.",
)
@click.option(
    "--record-size",
    type=click.IntRange(0),
    help="The size of each record in bytes; a record consists of random capital letters.",
)
@click.option(
    "--payload-file",
    metavar="FILE",
    help="A UTF-8 file, in place of --record-size. Each record is one of its pieces, chosen"
    " at random.",
)
@click.option(
    "--payload-delimiter",
    default="\\n",
    metavar="REGEX",
    help="The regular expression that separates the pieces of --payload-file. Default: a"
    " line break.",
)
@click.option(
    "--payload-monotonic",
    is_flag=True,
    help="The records are the numbers 0, 1, 2 and so on, in place of --record-size.",
)
@click.option(
    "--throughput",
    required=True,
    type=float,
    help="The approximate rate in records per second; -1 for no limit.",
)
@click.option(
    "--producer-props",
    "properties",
    multiple=True,
    metavar="KEY=VALUE ...",
    help="Options of the producer, one or more, such as bootstrap.servers=127.0.0.1:9092"
    " linger.ms=5 acks=1. They win over the options in --producer.config.",
)
@config_file_option("--producer.config", "--command-config")
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first, in place of bootstrap.servers in the producer's options.",
)
@click.option("--print-metrics", is_flag=True, help="At the end, print the client's metrics.")
@click.option(
    "--transactional-id",
    default="performance-producer-default-transactional-id",
    show_default=True,
    help="The transactional id. It is used only if --transaction-duration-ms is above 0.",
)
@click.option(
    "--transaction-duration-ms",
    type=int,
    default=0,
    help="The duration of a transaction in ms. Default 0: without transactions.",
)
@format_option()
@click.argument("more_properties", nargs=-1, metavar="")
def command(more_properties: tuple[str, ...], **flags: Any) -> int:
    """Send records at a given rate and print throughput and latency.

    The tool prints a line every five seconds and one at the end, with records a second, MB (2^20
    bytes) a second and latencies from sending to acknowledgement.

    \b
    Example: pybroker producer-perf-test --topic orders --num-records 100000 --record-size 100
             --throughput -1 --producer-props bootstrap.servers=127.0.0.1:9092
    """
    if flags["throughput"] == 0:
        raise Failure(
            "--throughput 0 would send no record; give a number above 0, or -1 for no limit"
        )
    check_payload(flags)
    options = producer_options(flags, more_properties)
    args = Args(
        topic=flags["topic"],
        record_count=flags["record_count"],
        throughput=flags["throughput"],
        payloads=choose_payloads(flags),
        transaction_s=max(flags["transaction_duration_ms"], 0) / 1_000,
        print_metrics=flags["print_metrics"],
        as_json=flags["output_format"] == "json",
    )
    if "bootstrap_servers" not in options:
        raise Failure(
            "bootstrap.servers is missing; add --producer-props bootstrap.servers=HOST:PORT"
        )
    return run_async(Test(args, options).run())


def producer_options(flags: Mapping[str, Any], more: tuple[str, ...]) -> dict[str, Any]:
    """Return the producer's options. A flag wins over --producer-props, and --producer-props wins
    over --producer.config. Raises Failure, click.UsageError, ConfigError."""
    words = [*flags["properties"], *more]
    if more and not flags["properties"]:
        raise click.UsageError(f"unrecognized arguments: '{more[0]}'")
    if not words and flags["config_file"] is None and flags["bootstrap_server"] is None:
        raise click.UsageError("Either --producer-props or --producer.config must be specified.")
    if wrong := [word for word in words if "=" not in word]:
        raise Failure(f"Invalid property: {wrong[0]}")
    given: dict[str, Any] = {}
    if flags["config_file"] is not None:
        given.update(read_properties(flags["config_file"]))
    given.update(parse_overrides(words))
    options = {name.replace(".", "_"): value for name, value in given.items()}
    if flags["transaction_duration_ms"] > 0:
        options["transactional_id"] = flags["transactional_id"]
    elif "transactional_id" in options:
        raise Failure("transactional.id needs a --transaction-duration-ms above 0")
    if flags["bootstrap_server"] is not None:
        options["bootstrap_servers"] = flags["bootstrap_server"]
    return {"client_id": "perf-producer-client", **options}


def check_payload(flags: Mapping[str, Any]) -> None:
    """Raise click.UsageError unless exactly one flag chooses the records' values."""
    ways = [
        flags["record_size"] is not None,
        flags["payload_file"] is not None,
        flags["payload_monotonic"],
    ]
    if sum(ways) == 0:
        raise click.UsageError(
            "one of the arguments --record-size --payload-file --payload-monotonic is required"
        )
    if sum(ways) > 1:
        raise click.UsageError(
            "only one of --record-size, --payload-file and --payload-monotonic can be given"
        )


def choose_payloads(flags: Mapping[str, Any]) -> Payloads:
    """Return the function that makes the records' values. Raises Failure for an unusable payload
    file."""
    size, file = flags["record_size"], flags["payload_file"]
    rng = random.Random(0)
    if size is not None:
        return lambda _: rng.randbytes(size).translate(_LETTERS)
    if file is not None:
        pieces = read_pieces(Path(file), flags["payload_delimiter"])
        return lambda _: rng.choice(pieces)
    return lambda number: b"%d" % number


def read_pieces(path: Path, delimiter: str) -> list[bytes]:
    """Return the pieces of a payload file, and print their number. Raises Failure."""
    click.echo(f"Reading payloads from: {path.absolute()}")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Failure(
            f"File does not exist or empty file provided. ({error.strerror or error})"
        ) from None
    if not text:
        raise Failure("File does not exist or empty file provided.")
    try:
        pieces = re.split("\n" if delimiter == "\\n" else delimiter, text)
    except re.error as error:
        raise Failure(f"--payload-delimiter {delimiter} is an invalid regex: {error}") from None
    while len(pieces) > 1 and not pieces[-1]:
        pieces.pop()
    click.echo(f"Number of messages read: {len(pieces)}")
    return [piece.encode() for piece in pieces]


class Stats:
    """The acknowledged records, in total and since the last printed line. Times and latencies are
    in ms."""

    def __init__(self, record_count: int, now_ms: int, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._every = record_count // min(record_count, SAMPLES_MAX)
        self._samples: list[int] = []
        self._start_ms = self._window_start_ms = now_ms
        self.count = self.bytes = 0
        self._latency_sum = self._latency_max = 0
        self._window_count = self._window_bytes = self._window_sum = self._window_max = 0

    def record(self, latency_ms: int, size: int, now_ms: int) -> None:
        """Count one acknowledged record, and print a line after each reporting interval."""
        if self.count % self._every == 0:
            self._samples.append(latency_ms)
        self.count += 1
        self._window_count += 1
        self._window_bytes += size
        self._window_sum += latency_ms
        if latency_ms > self._window_max:
            self._window_max = latency_ms
        if now_ms - self._window_start_ms >= REPORT_EVERY_MS:
            self._print_window(now_ms)
            self._close_window(now_ms)

    def _print_window(self, now_ms: int) -> None:
        seconds = (now_ms - self._window_start_ms) / 1000
        rate = ratio(self._window_count, seconds)
        mib_rate = ratio(self._window_bytes / MIB, seconds)
        average = ratio(self._window_sum, self._window_count)
        if self._as_json:
            write_json(
                {
                    "records": self._window_count,
                    "recordsPerSecond": finite(rate),
                    "mibPerSecond": finite(mib_rate),
                    "latencyMsAverage": finite(average),
                    "latencyMsMax": self._window_max,
                }
            )
            return
        click.echo(
            f"{self._window_count} records sent, {fixed(rate, 1)} records/sec"
            f" ({fixed(mib_rate, 2)} MB/sec), {fixed(average, 1)} ms avg latency,"
            f" {fixed(self._window_max, 1)} ms max latency."
        )

    def _close_window(self, now_ms: int) -> None:
        self.bytes += self._window_bytes
        self._latency_sum += self._window_sum
        self._latency_max = max(self._latency_max, self._window_max)
        self._window_count = self._window_bytes = self._window_sum = self._window_max = 0
        self._window_start_ms = now_ms

    def print_total(self, now_ms: int) -> None:
        """Print the final line."""
        self._close_window(now_ms)
        seconds = (now_ms - self._start_ms) / 1000
        rate = ratio(self.count, seconds)
        mib_rate = ratio(self.bytes / MIB, seconds)
        average = ratio(self._latency_sum, self.count)
        shares = percentiles(self._samples, 0.5, 0.95, 0.99, 0.999)
        if self._as_json:
            write_json(
                {
                    "total": True,
                    "records": self.count,
                    "recordsPerSecond": finite(rate),
                    "mibPerSecond": finite(mib_rate),
                    "latencyMsAverage": finite(average),
                    "latencyMsMax": self._latency_max,
                    "latencyMs": dict(zip(("50", "95", "99", "99.9"), shares, strict=True)),
                }
            )
            return
        click.echo(
            f"{self.count} records sent, {fixed(rate, 6)} records/sec"
            f" ({fixed(mib_rate, 2)} MB/sec), {fixed(average, 2)} ms avg latency,"
            f" {fixed(self._latency_max, 2)} ms max latency,"
            f" {shares[0]} ms 50th, {shares[1]} ms 95th, {shares[2]} ms 99th,"
            f" {shares[3]} ms 99.9th."
        )


def percentiles(samples: Iterable[int], *shares: float) -> list[int]:
    """Return the percentiles of the samples, or zeros without samples. `shares` are from 0 to 1."""
    ordered = sorted(samples)
    return [ordered[int(share * len(ordered))] if ordered else 0 for share in shares]


class Test:
    """One run of the test."""

    def __init__(self, args: Args, options: Mapping[str, Any]) -> None:
        self._args = args
        self._producer = Producer(**options)
        self._errors = 0
        self._stats = Stats(args.record_count, 0)

    async def run(self) -> int:
        """Send all records. Return the exit code: 1 if a record was not delivered. Raises
        PybrokerError."""
        producer = self._producer
        async with producer:
            self._stats = Stats(self._args.record_count, _now_ms(), as_json=self._args.as_json)
            started = time.monotonic()
            await self._send_all(started)
            await producer.flush()
            await asyncio.sleep(0)  # the callbacks of the last records
            self._stats.print_total(_now_ms())
            if self._args.print_metrics:
                self._print_metrics(time.monotonic() - started)
        if self._errors:
            click.echo(f"{self._errors} records were not delivered", err=True)
        return EXIT_FAILED if self._errors else 0

    async def _send_all(self, started: float) -> None:
        args, send, payloads = self._args, self._producer.send, self._args.payloads
        topic, throughput = args.topic, args.throughput
        transaction_begun: float | None = None
        for number in range(args.record_count):
            value = payloads(number)
            if args.transaction_s and transaction_begun is None:
                self._producer.begin_transaction()
                transaction_begun = time.monotonic()
            begun = time.monotonic()
            delivery = await send(topic, value)
            delivery.add_done_callback(self._observer(begun, len(value)))
            if transaction_begun is not None and begun - transaction_begun >= args.transaction_s:
                await self._producer.commit_transaction()
                transaction_begun = None
            if throughput > 0:
                early = (number + 1) / throughput - (time.monotonic() - started)
                if early >= SLEEP_MIN_S:
                    await asyncio.sleep(early)
        if transaction_begun is not None:
            await self._producer.commit_transaction()

    def _observer(self, begun: float, size: int) -> Callable[[Delivery], None]:
        def observe(delivery: Delivery) -> None:
            error = delivery.exception()
            if error is None:
                now = time.monotonic()
                self._stats.record(int((now - begun) * 1000), size, int(now * 1000))
            else:
                self._errors += 1
                if self._errors <= COMPLAINTS_MAX:
                    click.echo(str(error), err=True)

        return observe

    def _print_metrics(self, seconds: float) -> None:
        tag = f"{{client-id={self._producer.options.client_id}}}"
        counted = {"record-send": self._stats.count, "record-error": self._errors}
        found = {f"producer-metrics:{k}-total:{tag}": float(v) for k, v in counted.items()}
        found |= {f"producer-metrics:{k}-rate:{tag}": v / seconds for k, v in counted.items()}
        print_metrics(found)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
