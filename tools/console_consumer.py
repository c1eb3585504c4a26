"""`pybroker console-consumer`: Kafka's kafka-console-consumer, reading partitions by assignment."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import click

from pybroker.client.consumer import Consumer
from pybroker.client.errors import TopicUnavailable
from pybroker.client.subscription import ConsumerRecord
from pybroker.model import NO_TIMESTAMP, TopicPartition
from pybroker.properties import parse_overrides
from pybroker.records.batch import TimestampType
from pybroker.tools._cli import (
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    format_option,
    property_option,
    run_async,
)

WAIT_MS = 60_000
TIMESTAMP_NAMES: Mapping[TimestampType, bytes] = {
    TimestampType.CREATE_TIME: b"CreateTime:",
    TimestampType.LOG_APPEND_TIME: b"LogAppendTime:",
}

Formatter = Callable[[ConsumerRecord], bytes]


@dataclass(frozen=True, slots=True)
class LineStyle:
    """How a record is printed: the --property words of Kafka's default formatter."""

    print_timestamp: bool = False
    print_partition: bool = False
    print_offset: bool = False
    print_headers: bool = False
    print_key: bool = False
    print_value: bool = True
    key_separator: bytes = b"\t"
    line_separator: bytes = b"\n"
    headers_separator: bytes = b","
    null_literal: bytes = b"null"

    def format(self, record: ConsumerRecord) -> bytes:
        parts = []
        if self.print_timestamp:
            parts.append(_timestamp(record))
        if self.print_partition:
            parts.append(b"Partition:%d" % record.partition)
        if self.print_offset:
            parts.append(b"Offset:%d" % record.offset)
        if self.print_headers:
            parts.append(self._headers(record))
        if self.print_key:
            parts.append(self._or_null(record.key))
        if self.print_value:
            parts.append(self._or_null(record.value))
        return self.key_separator.join(parts) + self.line_separator

    def _headers(self, record: ConsumerRecord) -> bytes:
        pairs = [name.encode() + b":" + self._or_null(value) for name, value in record.headers]
        return self.headers_separator.join(pairs) or b"NO_HEADERS"

    def _or_null(self, content: bytes | None) -> bytes:
        return self.null_literal if content is None else content


def line_style(properties: Mapping[str, str]) -> LineStyle:
    """Raises Failure for a property that the formatter does not know."""
    known = {name.replace("_", "."): name for name in LineStyle.__slots__}
    given: dict[str, bytes | bool] = {}
    for name, value in properties.items():
        if name not in known:
            raise Failure(f"unknown --property {name}; known: {', '.join(sorted(known))}")
        flag = name.startswith("print.")
        given[known[name]] = value.strip().lower() == "true" if flag else value.encode()
    return LineStyle(**given)  # type: ignore[arg-type]  # the names say which is which


def format_json(record: ConsumerRecord) -> bytes:
    """One JSON object; key and value as text, or under `keyBase64` where they are no UTF-8."""
    document: dict[str, object] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_json_content("key", record.key),
        **_json_content("value", record.value),
        "headers": [{"name": name, **_json_content("value", v)} for name, v in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _json_content(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {name + "Base64": base64.b64encode(content or b"").decode()}


def _timestamp(record: ConsumerRecord) -> bytes:
    if record.timestamp == NO_TIMESTAMP:
        return b"NO_TIMESTAMP"
    return TIMESTAMP_NAMES[record.timestamp_type] + b"%d" % record.timestamp


@click.command("console-consumer", cls=Tool, error_prefix="Error: ")
@bootstrap_option()
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--partition", type=int, help="Only this partition. Default: all.")
@click.option(
    "--offset",
    metavar="OFFSET",
    help="Where to start in the partition: a number, earliest or latest. Default: latest.",
)
@click.option("--from-beginning", is_flag=True, help="Start with the first record that there is.")
@click.option("--max-messages", type=int, help="End after so many records. Default: never.")
@click.option("--timeout-ms", type=int, help="End if no record comes for so long. Default: never.")
@property_option(
    "--property",
    "properties",
    "What to print: print.timestamp, print.partition, print.offset, print.headers, print.key,"
    " print.value; key.separator (tab), line.separator, headers.separator (,), null.literal.",
)
@property_option("--consumer-property", "consumer_properties", "An option of the consumer.")
@config_file_option("--consumer.config", "--command-config")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="read_committed leaves out records of open and aborted transactions."
    " Default: read_uncommitted.",
)
@format_option()
def command(
    bootstrap_server: str,
    topic: str,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
    max_messages: int | None,
    timeout_ms: int | None,
    properties: tuple[str, ...],
    consumer_properties: tuple[str, ...],
    config_file: str | None,
    isolation_level: str | None,
    output_format: str,
) -> None:
    """Print the records of a topic.

    Without --partition all partitions are read; records of one partition come in their order.
    """
    start = parse_start(partition, offset, from_beginning)
    style = line_style(parse_overrides(properties))
    options = client_options(
        bootstrap_server,
        config_file,
        consumer_properties,
        client_id="console-consumer",
        isolation_level=isolation_level,
        allow_auto_create_topics=True,
    )
    if isinstance(start, str):
        options.setdefault("auto_offset_reset", start)
        if from_beginning or offset is not None:
            options["auto_offset_reset"] = start
    if timeout_ms is not None:
        options["default_api_timeout_ms"] = max(timeout_ms, 1)
    printer = Printer(
        Consumer(**options),
        sys.stdout.buffer,
        format_json if output_format == "json" else style.format,
    )
    run_async(
        printer.run(topic, partition, start, max_messages=max_messages, timeout_ms=timeout_ms)
    )


def parse_start(partition: int | None, offset: str | None, from_beginning: bool) -> int | str:
    """An offset, "earliest" or "latest". Raises click.UsageError with Kafka's words."""
    if offset is None:
        return "earliest" if from_beginning else "latest"
    if partition is None:
        raise click.UsageError("The partition is required when offset is specified.")
    if from_beginning:
        raise click.UsageError("Options from-beginning and offset cannot be specified together.")
    if offset.lower() in ("earliest", "latest"):
        return offset.lower()
    if not offset.isdecimal():
        raise click.UsageError(
            f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest',"
            " 'latest', or a non-negative long."
        )
    return int(offset)


class Printer:
    """Reads with a consumer, and prints."""

    def __init__(self, consumer: Consumer, output: BinaryIO, formatter: Formatter) -> None:
        self._consumer = consumer
        self._output = output
        self._format = formatter
        self.count = 0

    async def run(
        self,
        topic: str,
        partition: int | None,
        start: int | str,
        *,
        max_messages: int | None,
        timeout_ms: int | None,
    ) -> None:
        """Until enough was printed, or nothing came for too long. Tells on standard error how many
        records there were, also when it is interrupted. Raises PybrokerError."""
        try:
            async with self._consumer as consumer:
                if await self._assign(consumer, topic, partition, start, timeout_ms):
                    await self._print(consumer, max_messages, timeout_ms)
        finally:
            click.echo(f"Processed a total of {self.count} messages", err=True)

    async def _assign(
        self,
        consumer: Consumer,
        topic: str,
        partition: int | None,
        start: int | str,
        timeout_ms: int | None,
    ) -> bool:
        """Whether the topic came to be known."""
        while True:
            try:
                known = await consumer.partitions_for(topic)
                break
            except TopicUnavailable as error:
                if not error.retriable:
                    raise
                click.echo(f"WARNING: {error}", err=True)
                if timeout_ms is not None:
                    return False
        chosen = known if partition is None else [TopicPartition(topic, partition)]
        if chosen[0] not in known:
            raise Failure(f"topic {topic} has no partition {partition}; it has {len(known)}")
        consumer.assign(chosen)
        if isinstance(start, int):
            consumer.seek(chosen[0], start)
        return True

    async def _print(
        self, consumer: Consumer, max_messages: int | None, timeout_ms: int | None
    ) -> None:
        wait_ms = WAIT_MS if timeout_ms is None else timeout_ms
        while max_messages is None or self.count < max_messages:
            rest = None if max_messages is None else max_messages - self.count
            limit = consumer.options.max_poll_records
            found = await consumer.getmany(wait_ms, limit if rest is None else min(rest, limit))
            if not found and timeout_ms is not None:
                return
            for records in found.values():
                self._output.write(b"".join(map(self._format, records)))
                self.count += len(records)
            self._output.flush()
