"""The command `pybroker get-offsets`, equivalent to Kafka's kafka-get-offsets (GetOffsetShell)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.metadata import TopicInfo
from pybroker.client.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAnswer
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.tools._cli import (
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    format_option,
    run_async,
    write_json,
)

MOMENTS: Mapping[str, int] = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
}
TOPIC_PARTITION = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")

Filter = Callable[[TopicPartition], bool]


@click.command("get-offsets", cls=Tool, error_prefix="Error occurred: ")
@bootstrap_option("--broker-list")
@click.option(
    "--topic", help="Only topics whose names match this regular expression. Default: all topics."
)
@click.option(
    "--partitions",
    metavar="0,1,...",
    help="Only partitions with these numbers. Default: all partitions.",
)
@click.option(
    "--topic-partitions",
    metavar="TOPIC:0,TOPIC:0-3,TOPIC,...",
    help="Only these partitions, instead of --topic and --partitions. Each item is a topic (a"
    " regular expression), or a topic with a partition number or a range of numbers. The end of a"
    " range is not included.",
)
@click.option(
    "--time",
    "moment",
    default="latest",
    metavar="MOMENT",
    help="The offset to print: latest (-1), earliest (-2), max-timestamp (-3), or a time in"
    " ms since 1970 for the first record with this timestamp or later. Default: latest.",
)
@click.option(
    "--exclude-internal-topics",
    is_flag=True,
    help="Leave out internal topics such as __consumer_offsets.",
)
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(
    bootstrap_server: str,
    topic: str | None,
    partitions: str | None,
    topic_partitions: str | None,
    moment: str,
    exclude_internal_topics: bool,
    config_file: str | None,
    output_format: str,
) -> int:
    """For each partition, print the offset that --time selects, in lines of the form
    topic:partition:offset."""
    timestamp = parse_moment(moment)
    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise Failure("--topic-partitions cannot be used with --topic or --partitions")
    if topic_partitions is not None:
        wanted = parse_topic_partitions(topic_partitions)
    else:
        wanted = parse_topic_and_partitions(topic, partitions)
    options = client_options(bootstrap_server, config_file)

    async def work() -> int:
        async with Admin(**options) as admin:
            chosen = choose(await admin.list_topics(), wanted, not exclude_internal_topics)
            answers = await admin.list_offsets(dict.fromkeys(chosen, timestamp))
            return show(answers, as_json=output_format == "json")

    return run_async(work())


def parse_moment(text: str) -> int:
    """Return the timestamp for a ListOffsets request: ms since 1970, or a negative number for a
    name such as "latest". Raises Failure with Kafka's message."""
    if text in MOMENTS:
        return MOMENTS[text]
    try:
        number = int(text)
    except ValueError:
        number = -100
    if number < MAX_TIMESTAMP:
        raise Failure(
            f"Malformed time argument {text}. Please use -1 or latest / -2 or earliest / -3 or"
            " max-timestamp, or a specified long format timestamp"
        )
    return number


def parse_topic_and_partitions(topic: str | None, partitions: str | None) -> Filter:
    """Return the filter of partitions for --topic and --partitions. Raises Failure."""
    pattern = _regex(topic) if topic is not None else None
    numbers = None
    if partitions:
        try:
            numbers = {int(word) for word in partitions.split(",") if word.strip()}
        except ValueError:
            raise Failure(
                f"--partitions expects a comma separated list of numeric partition ids,"
                f" but received: {partitions}"
            ) from None
    return lambda item: (
        (pattern is None or pattern.fullmatch(item.topic) is not None)
        and (numbers is None or item.partition in numbers)
    )


def parse_topic_partitions(text: str) -> Filter:
    """Return a filter that accepts a partition if any of the comma-separated rules does. Raises
    Failure."""
    rules = [_rule(word) for word in text.split(",")]
    return lambda item: any(rule(item) for rule in rules)


def _rule(text: str) -> Filter:
    match = TOPIC_PARTITION.fullmatch(text)
    if match is None:
        raise Failure(f"Invalid rule specification: {text}")
    topic, single, low, high = match.groups()
    pattern = _regex(topic) if topic else None
    lowest = int(single or low or 0)
    if single:
        beyond: float = lowest + 1
    else:
        beyond = int(high) if high else float("inf")
    return lambda item: (
        (pattern is None or pattern.fullmatch(item.topic) is not None)
        and lowest <= item.partition < beyond
    )


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.replace(",", "|"))
    except re.error as error:
        raise Failure(f"{text} is an invalid regex: {error}") from None


def choose(
    topics: Iterable[TopicInfo], wanted: Filter, with_internal: bool
) -> list[TopicPartition]:
    """Return the partitions that the filter `wanted` accepts, sorted. Partitions of internal topics
    are left out, unless `with_internal` is True. Raises Failure if no partitions remain."""
    found = sorted(
        partition.topic_partition
        for topic in topics
        if topic.error == ErrorCode.NONE and (with_internal or not topic.internal)
        for partition in topic.partitions.values()
        if wanted(partition.topic_partition)
    )
    if not found:
        raise Failure("Could not match any topic-partitions with the specified filters")
    return found


def show(answers: Mapping[TopicPartition, OffsetAnswer], *, as_json: bool) -> int:
    """Print the partitions with their offsets, one partition per line. A partition with neither an
    offset nor an error is left out. Print errors on standard error. Return the exit code."""
    for (topic, partition), answer in answers.items():
        if answer.error is not None:
            click.echo(
                f"Skip getting offsets for topic-partition {topic}-{partition} due to error:"
                f" {answer.error}",
                err=True,
            )
        elif answer.offset < 0:
            continue
        elif as_json:
            write_json({"topic": topic, "partition": partition, "offset": answer.offset})
        else:
            click.echo(f"{topic}:{partition}:{answer.offset}")
    return 0
