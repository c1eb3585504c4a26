"""The command `pybroker console-consumer`, equivalent to Kafka's kafka-console-consumer. If no
group is given for --topic, the consumer assigns the partitions to itself (`assign` instead of
`subscribe`)."""

from __future__ import annotations

import base64
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import click

from pybroker.client.consumer import Consumer
from pybroker.client.errors import TopicUnavailable
from pybroker.config.properties import parse_overrides, read_properties
from pybroker.model import NO_TIMESTAMP, TopicPartition
from pybroker.records.batch import TimestampType
from pybroker.records.consumed import ConsumerRecord
from pybroker.tools._cli import (
    LEADERLESS_MS,
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    format_option,
    property_option,
    run_async,
)
from pybroker.tools._stop import until_signal

WAIT_MS = 60_000
TIMESTAMP_NAMES: Mapping[TimestampType, bytes] = {
    TimestampType.CREATE_TIME: b"CreateTime:",
    TimestampType.LOG_APPEND_TIME: b"LogAppendTime:",
}

Formatter = Callable[[ConsumerRecord], bytes]


@dataclass(frozen=True, slots=True)
class LineStyle:
    """The form of a printed record: the --property options of Kafka's default formatter."""

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
    """Return the form that --property options describe. Raises Failure for an unknown property."""
    known = {name.replace("_", "."): name for name in LineStyle.__slots__}
    given: dict[str, bytes | bool] = {}
    for name, value in properties.items():
        if name not in known:
            raise Failure(
                f"--property {name} is unknown; expected one of {', '.join(sorted(known))}"
            )
        flag = name.startswith("print.")
        given[known[name]] = value.strip().lower() == "true" if flag else value.encode()
    return LineStyle(**given)  # type: ignore[arg-type]  # the names say which is which


def format_json(record: ConsumerRecord) -> bytes:
    """Return the record as a JSON object. A key or value that is not UTF-8 is in base64, under
    `keyBase64` or `valueBase64`."""
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
@click.option(
    "--topic", help="The topic to read. Exactly one of --topic and --include is required."
)
@click.option(
    "--include",
    "--whitelist",
    metavar="REGEX",
    help="Read all topics whose names match this regular expression, instead of --topic.",
)
@click.option(
    "--group",
    help="The consumer group to join: read from its committed offsets and commit the offsets"
    " of printed records. Same as the consumer option group.id. Default: no group, no"
    " commits.",
)
@click.option(
    "--partition",
    type=int,
    help="Read only the partition with this number. Default: all partitions of the topic.",
)
@click.option(
    "--offset",
    metavar="OFFSET",
    help="The position to start from: an offset, earliest or latest. Needs --partition. Default:"
    " latest.",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the log start offset, if the group has no committed offset."
    " Default: start at the log end offset.",
)
@click.option(
    "--max-messages", type=int, help="Exit after this number of records. Default: no limit."
)
@click.option(
    "--timeout-ms",
    type=int,
    help="Exit if no record arrives for this time, in ms. Default: no limit.",
)
@property_option(
    "--property",
    "properties",
    "The form of a printed record. true or false: print.timestamp, print.partition,"
    " print.offset, print.headers, print.key, print.value. Text: key.separator (default:"
    " tab), line.separator (default: new line), headers.separator (default: comma),"
    " null.literal (default: null). May be repeated.",
)
@property_option(
    "--consumer-property",
    "consumer_properties",
    "An option of the consumer, such as fetch.max.wait.ms=100. May be repeated.",
)
@config_file_option("--consumer.config", "--command-config")
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="read_committed: leave out the records of open and aborted transactions. Default:"
    " read_uncommitted.",
)
@format_option()
def command(
    bootstrap_server: str,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
    properties: tuple[str, ...],
    config_file: str | None,
    isolation_level: str | None,
    output_format: str,
    **flags: Any,
) -> int:
    """Print the records of a topic.

    Records of one partition are printed in the order of their offsets.
    """
    topic, include = flags["topic"], flags["include"]
    if (topic is None) == (include is None):
        raise click.UsageError("Exactly one of --include/--topic is required. ")
    start = parse_start(partition, offset, from_beginning)
    style = line_style(parse_overrides(properties))
    words: tuple[str, ...] = flags["consumer_properties"]
    timeout_ms: int | None = flags["timeout_ms"]
    options = client_options(
        bootstrap_server,
        config_file,
        words,
        client_id="console-consumer",
        leaderless_timeout_ms=leaderless_ms(timeout_ms),
        isolation_level=isolation_level,
        allow_auto_create_topics=True,
    )
    group = group_of(flags["group"], words, config_file, partition)
    if group is not None:
        options["group_id"] = group
    elif include is not None:
        # Only a group member can subscribe by pattern. The tool joins a new group and does not
        # commit.
        options["group_id"] = f"console-consumer-{random.randrange(100_000)}"
        options.setdefault("enable_auto_commit", "false")
    set_reset(options, start, from_beginning=from_beginning, by_offset=offset is not None)
    if timeout_ms is not None and "group_id" not in options:
        options["default_api_timeout_ms"] = max(timeout_ms, 1)
    printer = Printer(
        Consumer(**options),
        sys.stdout.buffer,
        format_json if output_format == "json" else style.format,
    )
    args = Args(topic, include, partition, start, flags["max_messages"], timeout_ms)
    return run_async(until_signal(printer.run(args)))


def leaderless_ms(timeout_ms: int | None) -> int:
    """Return the consumer option leaderless_timeout_ms (ms): at most half of `timeout_ms`. If
    `timeout_ms` is None, return 0 (no limit)."""
    return 0 if timeout_ms is None else max(1, min(LEADERLESS_MS, timeout_ms // 2))


def group_of(
    flag: str | None, words: Sequence[str], config_file: str | None, partition: int | None
) -> str | None:
    """Return the group from --group (`flag`), --consumer-property (`words`) or --consumer.config.
    Raises click.UsageError if they name different groups, or if both a group and a `partition` are
    given."""
    places = (
        flag,
        parse_overrides(words).get("group.id"),
        read_properties(config_file).get("group.id") if config_file else None,
    )
    names = list(dict.fromkeys(name for name in places if name is not None))
    if len(names) > 1:
        raise click.UsageError(
            "The group ids provided in different places (directly using '--group', via"
            " '--consumer-property', or via '--consumer.config') do not match. Detected group ids: "
            + ", ".join(f"'{name}'" for name in names)
        )
    if names and partition is not None:
        raise click.UsageError("Options group and partition cannot be specified together.")
    return names[0] if names else None


def set_reset(
    options: dict[str, Any], start: int | str, *, from_beginning: bool, by_offset: bool
) -> None:
    """Set auto_offset_reset to `start`, unless `start` is a number. An existing value is kept,
    unless `start` comes from --offset (`by_offset`). Raises Failure if --from-beginning contradicts
    the existing value."""
    given = options.get("auto_offset_reset")
    if from_beginning and given not in (None, "earliest"):
        raise Failure(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={given}',"
            " please remove one option"
        )
    if isinstance(start, str) and (given is None or by_offset):
        options["auto_offset_reset"] = start


def parse_start(partition: int | None, offset: str | None, from_beginning: bool) -> int | str:
    """Return the start position by --offset and --from-beginning: an offset, "earliest" or
    "latest". Raises click.UsageError, with Kafka's messages, for contradicting flags."""
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


@dataclass(frozen=True, slots=True)
class Args:
    """The records to read. Reading ends after `max_messages` records, or when no record has arrived
    for `timeout_ms`."""

    topic: str | None
    include: str | None = None
    partition: int | None = None
    start: int | str = "latest"
    max_messages: int | None = None
    timeout_ms: int | None = None


class Printer:
    """Reads records with a consumer and prints them."""

    def __init__(self, consumer: Consumer, output: BinaryIO, formatter: Formatter) -> None:
        self._consumer = consumer
        self._output = output
        self._format = formatter
        self.count = 0

    async def run(self, args: Args) -> None:
        """Print records until a limit in `args` is reached. At the end, print the number of records
        on standard error. Raises PybrokerError."""
        try:
            async with self._consumer as consumer:
                if await self._subscribe_or_assign(consumer, args):
                    await self._print(consumer, args.max_messages, args.timeout_ms)
        finally:
            click.echo(f"Processed a total of {self.count} messages", err=True)

    async def _subscribe_or_assign(self, consumer: Consumer, args: Args) -> bool:
        """Subscribe to topics, or assign partitions. Return False if the topic does not appear
        before the timeout."""
        if args.topic is None:
            consumer.subscribe(pattern=args.include)
            return True
        if consumer.options.group_id is not None:
            consumer.subscribe([args.topic])
            return True
        return await self._assign(consumer, args.topic, args.partition, args.start, args.timeout_ms)

    async def _assign(
        self,
        consumer: Consumer,
        topic: str,
        partition: int | None,
        start: int | str,
        timeout_ms: int | None,
    ) -> bool:
        """Assign `partition`, or all partitions of the topic, and seek to `start`. Return False if
        the topic does not appear within `timeout_ms`."""
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
            raise Failure(
                f"topic {topic} has no partition {partition}; it has {len(known)} partitions"
            )
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
            found = await consumer.getmany(
                timeout_ms=wait_ms, max_records=limit if rest is None else min(rest, limit)
            )
            if not found and timeout_ms is not None:
                return
            for records in found.values():
                self._output.write(b"".join(map(self._format, records)))
                self.count += len(records)
            self._output.flush()
