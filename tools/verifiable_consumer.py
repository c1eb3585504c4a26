"""The command `pybroker verifiable-consumer`, equivalent to Kafka's kafka-verifiable-consumer. It
prints JSON events for system tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from pybroker.client.consumer import Consumer
from pybroker.client.errors import ClientError, FencedInstance
from pybroker.model import TopicPartition
from pybroker.records.consumed import ConsumerRecord
from pybroker.tools._cli import (
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    run_async,
)
from pybroker.tools._stop import Stop
from pybroker.tools._verifiable import print_event

POLL_MS = 500
"""The longest time until a signal takes effect."""
Records = Mapping[TopicPartition, list[ConsumerRecord]]


@dataclass(frozen=True, slots=True)
class Args:
    """The topic and the number of records to read; a negative `record_count` means no limit."""

    topic: str
    record_count: int = -1
    verbose: bool = False
    auto_commit: bool = False


@click.command("verifiable-consumer", cls=Tool, error_prefix="verifiable-consumer: error: ")
@bootstrap_option("--broker-list")
@click.option("--topic", required=True, help="The topic to read.")
@click.option("--group-id", required=True, help="The consumer group to join.")
@click.option(
    "--group-instance-id",
    help="Join the group as a static member with this id. Default: a dynamic member.",
)
@click.option(
    "--group-protocol",
    default="classic",
    metavar="classic",
    help="The group protocol; only classic is supported. Default: classic.",
)
@click.option(
    "--group-remote-assignor", help="No effect: the classic group protocol has no remote assignors."
)
@click.option(
    "--max-messages",
    type=int,
    default=-1,
    help="The number of records to read. Default: -1, no limit.",
)
@click.option(
    "--session-timeout",
    type=click.IntRange(min=1),
    default=30_000,
    metavar="MS",
    help="The session timeout of the member, in ms. Default: 30000.",
)
@click.option("--verbose", is_flag=True, help="Also print an event for each record.")
@click.option(
    "--enable-autocommit",
    is_flag=True,
    help="Commit offsets periodically (enable.auto.commit). Default: commit after each poll.",
)
@click.option(
    "--reset-policy",
    type=click.Choice(["earliest", "latest", "none"]),
    default="earliest",
    help="The position to start from if the group has no committed offset; none is an error."
    " Default: earliest.",
)
@click.option(
    "--assignment-strategy",
    default="range",
    metavar="NAME,...",
    help="The assignors, the preferred assignor first: range, roundrobin, sticky,"
    " cooperative-sticky, or the names of Kafka's classes. Default: range.",
)
@config_file_option("--consumer.config", "--command-config")
def command(bootstrap_server: str, config_file: str | None, **flags: Any) -> int:
    """Read a topic in a group, commit offsets, and print JSON events."""
    if flags["group_protocol"].lower() != "classic":
        raise Failure(
            f"--group-protocol {flags['group_protocol']} is not supported; expected classic"
        )
    options = client_options(bootstrap_server, config_file, leaderless_timeout_ms=0)
    options |= {  # flags win over the file, as with Kafka's tool
        "group_id": flags["group_id"],
        "enable_auto_commit": flags["enable_autocommit"],
        "auto_offset_reset": flags["reset_policy"],
        "session_timeout_ms": flags["session_timeout"],
        "partition_assignment_strategy": flags["assignment_strategy"],
    }
    options.setdefault("client_id", "verifiable-consumer")
    if flags["group_instance_id"] is not None:
        options["group_instance_id"] = flags["group_instance_id"]
    args = Args(flags["topic"], flags["max_messages"], flags["verbose"], flags["enable_autocommit"])
    return run_async(VerifiableConsumer(args, Consumer(**options)).run())


class VerifiableConsumer:
    """Reads records, commits their offsets, and prints events."""

    def __init__(self, args: Args, consumer: Consumer) -> None:
        self._args = args
        self._consumer = consumer
        self._read = 0

    async def run(self) -> int:
        """Read until the limit is reached or a signal arrives, then leave the group. Return the
        exit code. Raises PybrokerError if reading fails."""
        with Stop() as stop:
            try:
                async with self._consumer as consumer:
                    print_event("startup_complete")
                    consumer.subscribe(
                        [self._args.topic], on_assigned=_assigned, on_revoked=_revoked
                    )
                    await self._read_on(stop)
            finally:
                print_event("shutdown_complete")
        return stop.exit_code

    async def _read_on(self, stop: Stop) -> None:
        limit = self._args.record_count
        while not stop.is_set and (limit < 0 or self._read < limit):
            found = await self._consumer.getmany(timeout_ms=POLL_MS)
            if not found:
                continue
            offsets = self._take(found)
            if not self._args.auto_commit:
                await self._commit(offsets)

    def _take(self, found: Records) -> dict[TopicPartition, int]:
        """Count the records of a poll and print their events, up to the number of records that the
        user wants. Return the offsets to commit."""
        offsets: dict[TopicPartition, int] = {}
        summaries = []
        for key, records in found.items():
            room = self._args.record_count - self._read
            chosen = records if self._args.record_count < 0 else records[: max(room, 0)]
            if not chosen:
                continue
            first, last = chosen[0].offset, chosen[-1].offset
            offsets[key] = last + 1
            summaries.append(
                {
                    "topic": key.topic,
                    "partition": key.partition,
                    "count": len(chosen),
                    "minOffset": first,
                    "maxOffset": last,
                }
            )
            if self._args.verbose:
                for record in chosen:
                    _print_record(record)
            self._read += len(chosen)
        print_event("records_consumed", count=sum(map(len, found.values())), partitions=summaries)
        return offsets

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets and print an event with the result. Raises FencedInstance."""
        problem: dict[str, object] = {}
        try:
            await self._consumer.commit(offsets)
        except FencedInstance:
            raise
        except ClientError as error:
            problem = {"error": str(error)}
        print_event(
            "offsets_committed",
            offsets=[
                {"topic": key.topic, "partition": key.partition, "offset": offset}
                for key, offset in offsets.items()
            ],
            **problem,
            success=not problem,
        )


def _print_record(record: ConsumerRecord) -> None:
    print_event(
        "record_data",
        key=_text(record.key),
        value=_text(record.value),
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else bytes(content).decode(errors="replace")


def _assigned(partitions: Iterable[TopicPartition]) -> None:
    print_event("partitions_assigned", partitions=_places(partitions))


def _revoked(partitions: Iterable[TopicPartition]) -> None:
    print_event("partitions_revoked", partitions=_places(partitions))


def _places(partitions: Iterable[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": number} for topic, number in partitions]
