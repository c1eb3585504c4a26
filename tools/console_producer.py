"""The command `pybroker console-producer`, equivalent to Kafka's kafka-console-producer. Each line
of standard input becomes a record, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import click

from pybroker.client.deliveries import Delivery
from pybroker.client.errors import ClientError, DeliveryFailed
from pybroker.client.producer import Producer
from pybroker.config.properties import parse_overrides
from pybroker.records.record import Headers
from pybroker.tools._cli import (
    EXIT_FAILED,
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    property_option,
    run_async,
)

CHUNK_BYTES = 65_536
CHUNKS_AHEAD_MAX = 8
UNCONFIRMED_MAX = 10_000
"""The tool waits for acknowledgements when this number of records is unacknowledged."""


class Line(NamedTuple):
    """The headers, the key and the value in a line of input."""

    headers: Headers
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The form of an input line: the --property options of Kafka's reader."""

    parse_key: bool = False
    parse_headers: bool = False
    key_separator: bytes = b"\t"
    headers_delimiter: bytes = b"\t"
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    ignore_error: bool = False

    def parse(self, line: bytes, number: int) -> Line:
        """Parse a line. Raises Failure, with the line's `number`, if a separator is missing and
        ignore.error is false.

        With ignore.error=true, a missing separator means no headers, no key, or an empty header
        value.
        """
        rest, headers = line, b""
        if self.parse_headers:
            headers, rest = self._cut(rest, self.headers_delimiter, "header", number)
        key, value = b"", rest
        if self.parse_key:
            key, value = self._cut(rest, self.key_separator, "key", number)
        return Line(
            self._headers(headers, number) if headers else (),
            self._null(key) if self.parse_key and (key or value is not rest) else None,
            self._null(value),
        )

    def _cut(self, text: bytes, separator: bytes, what: str, number: int) -> tuple[bytes, bytes]:
        before, found, after = text.partition(separator)
        if found:
            return before, after
        if self.ignore_error:
            return b"", text
        name = "key separator" if what == "key" else "headers delimiter"
        raise Failure(f"No {name} found on line number {number}: {_quoted(text)}")

    def _headers(self, text: bytes, number: int) -> Headers:
        found = []
        for pair in text.split(self.headers_separator):
            name, separator, content = pair.partition(self.headers_key_separator)
            if not separator and not self.ignore_error:
                raise Failure(
                    f"No header key separator found in pair {_quoted(pair)} on line number {number}"
                )
            found.append((name.decode(errors="replace"), self._null(content)))
        return tuple(found)

    def _null(self, content: bytes) -> bytes | None:
        return None if self.null_marker is not None and content == self.null_marker else content


def line_format(properties: Mapping[str, str]) -> LineFormat:
    """Return the line format that --property options describe. Raises Failure for an unknown
    property."""
    flags = {"parse.key", "parse.headers", "ignore.error"}
    words = {
        "key.separator",
        "headers.delimiter",
        "headers.separator",
        "headers.key.separator",
        "null.marker",
    }
    given: dict[str, bytes | bool] = {}
    for name, value in properties.items():
        if name in flags:
            given[name.replace(".", "_")] = value.strip().lower() == "true"
        elif name in words:
            if not value:
                raise Failure(f"--property {name} must not be empty; expected a separator")
            given[name.replace(".", "_")] = value.encode()
        else:
            raise Failure(
                f"--property {name} is unknown; expected one of {', '.join(sorted(flags | words))}"
            )
    return LineFormat(**given)  # type: ignore[arg-type]  # the two sets say which is which


@click.command("console-producer", cls=Tool, error_prefix="Error: ")
@bootstrap_option("--broker-list")
@click.option("--topic", required=True, help="The topic to which records are sent.")
@property_option(
    "--property",
    "properties",
    "The form of an input line. true or false: parse.key, parse.headers, ignore.error."
    " Text: key.separator (default: tab), headers.delimiter (default: tab),"
    " headers.separator (default: comma), headers.key.separator (default: colon),"
    " null.marker. May be repeated.",
)
@property_option(
    "--producer-property",
    "producer_properties",
    "An option of the producer, such as max.request.size=1048576. May be repeated.",
)
@config_file_option("--producer.config", "--command-config")
@click.option(
    "--compression-codec",
    is_flag=False,
    flag_value="gzip",
    metavar="[CODEC]",
    help="The compression: none, gzip, snappy, lz4 or zstd; gzip if no value follows."
    " Default: none.",
)
@click.option(
    "--request-required-acks",
    metavar="ACKS",
    help="The replicas that must have a record before it is acknowledged: all"
    " in-sync replicas (all or -1), the leader (1) or none (0). Default: all.",
)
@click.option(
    "--sync",
    is_flag=True,
    help="Wait for the acknowledgement of a record before reading the next line.",
)
@click.option(
    "--batch-size",
    "--max-partition-memory-bytes",
    type=int,
    help="The largest batch, in bytes (batch.size). Default: 16384.",
)
@click.option(
    "--timeout",
    type=int,
    default=1_000,
    help="How long a batch waits for more records, in ms (linger.ms). Default: 1000.",
)
@click.option(
    "--max-block-ms",
    type=int,
    help="How long sending may wait for buffer memory or metadata, in ms (max.block.ms)."
    " Default: 60000.",
)
@click.option(
    "--max-memory-bytes",
    type=int,
    help="The memory for unsent records, in bytes (buffer.memory). Default: 33554432.",
)
@click.option(
    "--request-timeout-ms",
    type=int,
    help="How long to wait for a broker's response, in ms (request.timeout.ms). Default: 30000.",
)
@click.option(
    "--retry-backoff-ms",
    type=int,
    help="The pause before a failed request is sent again, in ms (retry.backoff.ms). Default: 100.",
)
@click.option(
    "--metadata-expiry-ms",
    type=int,
    help="The age at which metadata are refreshed, in ms (metadata.max.age.ms). Default: 300000.",
)
@click.option(
    "--message-send-max-retries",
    type=int,
    help="No effect: delivery.timeout.ms limits the time for retries.",
)
def command(
    bootstrap_server: str,
    topic: str,
    properties: tuple[str, ...],
    producer_properties: tuple[str, ...],
    config_file: str | None,
    sync: bool,
    **flags: int | str | None,
) -> int:
    """Send each line of standard input as a record to a topic."""
    options = client_options(
        bootstrap_server,
        config_file,
        producer_properties,
        client_id="console-producer",
        compression_type=flags["compression_codec"],
        acks=flags["request_required_acks"],
        batch_size=flags["batch_size"],
        linger_ms=0 if sync else flags["timeout"],
        max_block_ms=flags["max_block_ms"],
        buffer_memory=flags["max_memory_bytes"],
        request_timeout_ms=flags["request_timeout_ms"],
        retry_backoff_ms=flags["retry_backoff_ms"],
        metadata_max_age_ms=flags["metadata_expiry_ms"],
    )
    reader = line_format(parse_overrides(properties))
    terminal = sys.stdin.isatty()

    def read() -> bytes:
        if terminal:
            click.echo(">", nl=False)
        # A thread that waits in sys.stdin.buffer would hold its lock and block the interpreter's
        # exit, so the bytes are read from the file descriptor.
        return os.read(sys.stdin.fileno(), CHUNK_BYTES)

    return run_async(send_lines(Producer(**options), topic, reader, read, sync=sync))


async def send_lines(
    producer: Producer, topic: str, reader: LineFormat, read: Callable[[], bytes], *, sync: bool
) -> int:
    """Send every line of the input (`read`: see `lines_of`). With `sync`, wait for each
    acknowledgement. Return the exit code: 1 if a record was not delivered. At a malformed line,
    send the lines before it, then raise Failure."""
    failures = Failures(topic)
    number = 0
    async with producer:
        async for line in lines_of(read):
            number += 1
            try:
                headers, key, value = reader.parse(line, number)
            except Failure:
                await producer.flush()
                raise
            delivery = await producer.send(topic, value, key=key, headers=headers)
            failures.watch(delivery, key, value)
            if sync:
                with contextlib.suppress(DeliveryFailed):  # `failures` prints it
                    await delivery
            elif failures.unconfirmed >= UNCONFIRMED_MAX:
                await producer.flush()
    return EXIT_FAILED if failures.count else 0


class Failures:
    """Counts records that were not delivered, and prints Kafka's message for each."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.unconfirmed = 0
        self.count = 0

    def watch(self, delivery: Delivery, key: bytes | None, value: bytes | None) -> None:
        self.unconfirmed += 1

        def done(outcome: Delivery) -> None:
            self.unconfirmed -= 1
            error = outcome.exception()
            if isinstance(error, ClientError):
                self.count += 1
                click.echo(
                    f"Error when sending message to topic {self._topic} with key: {_length(key)},"
                    f" value: {_length(value)} with error: {error}",
                    err=True,
                )

        delivery.add_done_callback(done)


async def lines_of(read: Callable[[], bytes]) -> AsyncIterator[bytes]:
    """Yield the lines without LF or CRLF. `read` returns the next chunk of input, and b"" at the
    end. A daemon thread calls `read`, so that Ctrl-C ends the tool."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD_MAX)

    def pump() -> None:
        while True:
            chunk = read()
            room.acquire()
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the event loop is closed
            if not chunk:
                return

    threading.Thread(target=pump, name="standard input", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        room.release()
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")


def _length(content: bytes | None) -> str:
    return "null" if content is None else f"{len(content)} bytes"


def _quoted(text: bytes) -> str:
    return "'" + text.decode(errors="replace") + "'"
