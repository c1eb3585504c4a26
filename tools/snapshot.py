"""`pybroker snapshot`: takes, prints, checks and compares snapshots of topics."""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Final, Self, TextIO

import click

from pybroker.config.properties import read_properties
from pybroker.spark import snapshot as snapshots
from pybroker.spark.counting import COUNTS, Count
from pybroker.spark.readability import Readability
from pybroker.spark.snapshot import PartitionChange, Snapshot, Until
from pybroker.tools._cli import (
    EXIT_FAILED,
    LEADERLESS_MS,
    Failure,
    Tool,
    bootstrap_option,
    config_file_option,
    format_option,
    write_json,
)

LINE_S: Final = 0.3
"""The interval between updates of the progress line."""


class Tools(Tool, click.Group):
    """A command group. The group and each subcommand have the options --debug and --version."""

    command_class = Tool


@click.group("snapshot", cls=Tools)
def command() -> None:
    """Take snapshots of topics: fixed offset ranges that Spark or another reader can read
    repeatedly.

    A snapshot is a small JSON document. For each partition it contains the start and the end of the
    range. The document also contains topic ids, leader epochs and log starts. A reader uses these
    values to detect that records of a range were removed or replaced.
    """


@command.command("take")
@bootstrap_option()
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="A topic of the snapshot. May be repeated.",
)
@click.option(
    "--since",
    metavar="FILE",
    help="Start each partition where the snapshot in FILE ends. Without --topic, take the"
    " same topics.",
)
@click.option(
    "--until",
    default="latest",
    metavar="MOMENT",
    help="The end of the ranges: latest, a time in ms since 1970 for the first record with this"
    " timestamp or later, or JSON with an end offset for every partition:"
    ' {"orders": {"0": 250, "1": 300}}. Default: latest.',
)
@click.option(
    "--isolation-level",
    "isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    help="read_committed: end before the first open transaction. Default: the isolation"
    " level of --since, otherwise read_committed.",
)
@click.option(
    "--count",
    type=click.Choice(COUNTS),
    default="compacted",
    help="The topics whose records are read and counted: compacted (topics with log"
    " compaction), always (all) or never. A later reader then detects records that"
    " compaction has removed. Default: compacted.",
)
@click.option(
    "--output",
    metavar="FILE",
    help="Write the snapshot to FILE and print a summary. Default: print the snapshot.",
)
@config_file_option("--command-config", "--admin.config")
@format_option()
def take(
    bootstrap_server: str,
    topics: Sequence[str],
    since: str | None,
    until: str,
    isolation: str | None,
    count: Count,
    output: str | None,
    config_file: str | None,
    output_format: str,
) -> None:
    """Take a snapshot of topics.

    Without --output, the snapshot is printed. An existing FILE is replaced atomically.
    """
    with CountingLine(sys.stderr) as progress:
        found = snapshots.take(
            bootstrap_server,
            topics,
            since=since,
            until=parse_until(until),
            isolation=isolation,
            conf=_conf(config_file),
            count=count,
            progress=progress,
        )
    if output is None:
        click.echo(found.to_json())
    else:
        found.save(output)
        print_snapshot(found, None, as_json=output_format == "json")


@command.command("show")
@click.argument("file")
@click.option(
    "--check",
    is_flag=True,
    help="Ask the brokers whether all ranges can still be read; the exit code is 1 if not.",
)
@click.option(
    "--recount",
    is_flag=True,
    help="With --check: count the records again, to detect records that compaction has removed.",
)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="With --check: the brokers to contact first. Default: the brokers in the snapshot.",
)
@config_file_option("--command-config", "--admin.config")
@format_option()
def show(
    file: str,
    check: bool,
    recount: bool,
    bootstrap_server: str | None,
    config_file: str | None,
    output_format: str,
) -> int:
    """Print the snapshot in FILE; with --check, also print whether its ranges can still be read."""
    if not check and (recount or bootstrap_server or config_file):
        raise Failure("--recount, --bootstrap-server and --command-config need --check")
    found = snapshots.load(file)
    standing = None
    if check:
        standing = found.is_readable(
            bootstrap=bootstrap_server, conf=_conf(config_file), recount=recount
        )
    print_snapshot(found, standing, as_json=output_format == "json")
    return 0 if standing is None or standing else EXIT_FAILED


@command.command("diff")
@click.argument("old")
@click.argument("new")
@format_option()
def diff(old: str, new: str, output_format: str) -> None:
    """Print how each partition changed from the snapshot in OLD to the snapshot in NEW."""
    changes = snapshots.load(new).diff(snapshots.load(old))
    if output_format == "json":
        write_json([change_document(change) for change in changes])
        return
    for line in map(change_line, changes):
        click.echo(line)


def _conf(config_file: str | None) -> dict[str, str]:
    """Return the client's options in the file. If the file does not set leaderless.timeout.ms, the
    option is LEADERLESS_MS."""
    given = read_properties(config_file) if config_file else {}
    return {"leaderless.timeout.ms": str(LEADERLESS_MS), **given}


class CountingLine:
    """Prints the progress of counting on one line of a terminal, and erases the line at the end.
    Nothing is printed if `out` is not a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_shown = out.isatty()
        self._last = time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def __call__(self, done: int, total: int) -> None:
        """Print that `done` of `total` offsets are counted."""
        if self._is_shown and time.monotonic() - self._last >= LINE_S:
            self._last = time.monotonic()
            self._write(f"counting records: {done:,} of {total:,} offsets ({done / total:.0%})")

    def _write(self, text: str) -> None:
        if text or self._width:
            self._out.write(f"\r{text.ljust(self._width)}\r")
            self._out.flush()
            self._width = len(text)


def parse_until(text: str) -> Until:
    """Return the value of --until: a time in ms, "latest", or offsets from JSON. Raises Failure."""
    if text.isascii() and text.isdecimal():
        return int(text)
    if not text.startswith("{"):
        return text
    try:
        rows = json.loads(text)
        return {
            str(topic): {int(number): _offset(end) for number, end in ends.items()}
            for topic, ends in rows.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise Failure(
            f'--until is {text}: expected JSON of the form {{"topic": {{"0": 250}}}}, with an'
            " offset for every partition"
        ) from None


def _offset(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError


def print_snapshot(found: Snapshot, standing: Readability | None, *, as_json: bool) -> None:
    """Print a snapshot. If `standing` is given, also print whether the brokers can still deliver
    the offset ranges of the snapshot."""
    if as_json:
        document = json.loads(found.to_json())
        if standing is not None:
            document["readable"] = bool(standing)
            document["problems"] = list(standing.problems)
            document["warnings"] = list(standing.warnings)
        write_json(document)
        return
    for line in snapshot_lines(found):
        click.echo(line)
    if standing is not None:
        for line in standing_lines(standing):
            click.echo(line)


def snapshot_lines(found: Snapshot) -> Iterable[str]:
    """Yield the lines of a snapshot, with tabs between columns."""
    taken = datetime.datetime.fromtimestamp(found.created_at_ms / 1_000, datetime.UTC)
    yield (
        f"Snapshot: {found.id}\tTaken: {taken.isoformat(timespec='milliseconds')}"
        f"\tCluster: {found.cluster_id or '-'}\tIsolation: {found.isolation}"
        f"\tParent: {found.parent or '-'}"
    )
    counts, records = found.counts(), found.records()
    for topic, cut in found.topics.items():
        is_counted = any(part.counts for part in cut.partitions.values())
        total = f"\tRecords: {records[topic]}" if is_counted else ""
        yield (
            f"Topic: {topic}\tTopicId: {cut.topic_id or '-'}\tPartitions: {len(cut.partitions)}"
            f"\tOffsets: {counts[topic]}{total}"
        )
        for number, part in cut.partitions.items():
            counted = f"\tRecords: {part.records}" if is_counted else ""
            yield (
                f"\tPartition: {number}\tStart: {part.start}\tEnd: {part.end}"
                f"\tOffsets: {part.end - part.start}{counted}\tLogStart: {part.log_start}"
                f"\tLeaderEpoch: {part.leader_epoch}"
            )


def standing_lines(standing: Readability) -> Iterable[str]:
    yield "Readable: " + ("yes" if standing else "no")
    yield from (f"Problem: {text}" for text in standing.problems)
    yield from (f"Warning: {text}" for text in standing.warnings)


def change_line(change: PartitionChange) -> str:
    before = "-" if change.before is None else str(change.before.end)
    after = "-" if change.after is None else str(change.after.end)
    return (
        f"Partition: {change.topic_partition}\tChange: {change.change.value}"
        f"\tOffsets: {change.offsets:+d}\tEnd: {before} -> {after}"
    )


def change_document(change: PartitionChange) -> dict[str, object]:
    return {
        "topic": change.topic_partition.topic,
        "partition": change.topic_partition.partition,
        "change": change.change.value,
        "offsets": change.offsets,
        "endBefore": None if change.before is None else change.before.end,
        "endAfter": None if change.after is None else change.after.end,
    }
