"""The command `pybroker transactions`, equivalent to Kafka's kafka-transactions of 3.9. It shows
transactions, and aborts a hanging one."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.partitions import ActiveProducer
from pybroker.client.admin.transactions import (
    ALL,
    OpenTransaction,
    TransactionDescription,
    TransactionListing,
)
from pybroker.client.errors import ClientError
from pybroker.model import TopicPartition
from pybroker.tools._cli import (
    Failure,
    Tool,
    client_options,
    config_file_option,
    format_option,
    run_async,
    write_json,
)
from pybroker.tools._hanging_transactions import OpenProducer, Scope, failed, find_hanging

T = TypeVar("T")

NONE: Final = "None"
MINUTE_MS: Final = 60_000
INT16: Final = click.IntRange(-(2**15), 2**15 - 1)
INT32: Final = click.IntRange(-(2**31), 2**31 - 1)
INT64: Final = click.IntRange(-(2**63), 2**63 - 1)
LIST_TITLES: Final = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
DESCRIBE_TITLES: Final = (
    "CoordinatorId",
    "TransactionalId",
    "ProducerId",
    "ProducerEpoch",
    "TransactionState",
    "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs",
    "TransactionDurationMs",
    "TopicPartitions",
)
PRODUCER_TITLES: Final = (
    "ProducerId",
    "ProducerEpoch",
    "LatestCoordinatorEpoch",
    "LastSequence",
    "LastTimestamp",
    "CurrentTransactionStartOffset",
)
HANGING_TITLES: Final = (
    "Topic",
    "Partition",
    "ProducerId",
    "ProducerEpoch",
    "CoordinatorEpoch",
    "StartOffset",
    "LastTimestamp",
    "Duration(min)",
)


class Transactions(Tool, click.Group):
    """The group of subcommands. The group and each subcommand have the options --debug and
    --version."""

    command_class = Tool


@dataclass(frozen=True, slots=True)
class Common:
    """The options before the subcommand."""

    bootstrap_server: str | None
    config_file: str | None
    as_json: bool

    def run(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Call `work` with an admin client, and return the result of `work`. Raises Failure,
        PybrokerError."""
        if self.bootstrap_server is None:
            raise Failure('Missing required argument "[bootstrap-server]"')
        options: dict[str, Any] = client_options(self.bootstrap_server, self.config_file)

        async def run() -> T:
            async with Admin(**options) as admin:
                return await work(admin)

        return run_async(run())


@click.group("transactions", cls=Transactions)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first; they return the addresses of all brokers.",
)
@config_file_option("--command-config", "--admin.config")
@format_option()
@click.pass_context
def command(
    context: click.Context,
    bootstrap_server: str | None,
    config_file: str | None,
    output_format: str,
) -> None:
    """List and describe transactions, and find and abort hanging ones.

    The options below come before the subcommand.
    """
    context.obj = Common(bootstrap_server, config_file, output_format == "json")


@command.command("list")
@click.option(
    "--duration-filter",
    type=INT64,
    default=ALL,
    metavar="MS",
    help="Omit transactions that began at most this number of ms ago. A negative number omits"
    " none. Default: -1.",
)
@click.pass_obj
def list_command(common: Common, duration_filter: int) -> None:
    """List the transactional ids of all coordinators."""

    async def work(admin: Admin) -> Sequence[TransactionListing]:
        try:
            found = await admin.list_transactions(duration_ms=duration_filter)
            return found.check().transactions
        except ClientError as error:
            raise failed("Failed to list transactions", error) from error

    rows = [
        (row.transactional_id, row.coordinator, row.producer_id, row.state)
        for row in common.run(work)
    ]
    show(LIST_TITLES, rows, as_json=common.as_json)


@command.command("describe")
@click.option("--transactional-id", required=True, metavar="ID", help="The id to describe.")
@click.pass_obj
def describe_command(common: Common, transactional_id: str) -> None:
    """Describe the transaction of a transactional id."""

    async def work(admin: Admin) -> TransactionDescription:
        try:
            found = await admin.describe_transactions([transactional_id])
            return found[transactional_id].check()
        except ClientError as error:
            message = (
                f"Failed to describe transaction state of transactional-id `{transactional_id}`"
            )
            raise failed(message, error) from error

    row = description_row(common.run(work), now_ms())
    show(DESCRIBE_TITLES, [row], as_json=common.as_json)


def description_row(found: TransactionDescription, now_ms: int) -> tuple[object, ...]:
    """Return the row of `describe` for a transaction. `now_ms` is the present time in ms since
    1970."""
    has_begun = found.start_ms >= 0
    return (
        found.coordinator,
        found.transactional_id,
        found.producer_id,
        found.producer_epoch,
        found.state,
        found.timeout_ms,
        found.start_ms if has_begun else None,
        now_ms - found.start_ms if has_begun else None,
        ",".join(map(str, found.partitions)),
    )


def partition_options(*, required: bool) -> Callable[[Any], Any]:
    """Return a decorator that adds the options --topic and --partition."""

    def add(function: Any) -> Any:
        topic = click.option("--topic", required=required, metavar="NAME", help="The topic.")
        partition = click.option(
            "--partition",
            required=required,
            type=INT32,
            metavar="NUMBER",
            help="The partition's number.",
        )
        return topic(partition(function))

    return add


@command.command("describe-producers")
@click.option(
    "--broker-id",
    type=INT32,
    metavar="ID",
    help="Ask the replica on this broker. Default: the partition's leader.",
)
@partition_options(required=True)
@click.pass_obj
def describe_producers_command(
    common: Common, broker_id: int | None, topic: str, partition: int
) -> None:
    """Print the producers that a partition's replica knows. For a producer with an open
    transaction, also print the transaction's first offset."""
    key = TopicPartition(topic, partition)

    async def work(admin: Admin) -> Sequence[ActiveProducer]:
        try:
            found = await admin.describe_producers([key], broker=broker_id)
            return found[key].check().producers
        except ClientError as error:
            where = "leader" if broker_id is None else f"broker {broker_id}"
            raise failed(
                f"Failed to describe producers for partition {key} on {where}", error
            ) from (error)

    found = sorted(common.run(work), key=lambda each: each.id)
    rows = [producer_row(each) for each in found]
    show(PRODUCER_TITLES, rows, as_json=common.as_json)


def producer_row(each: ActiveProducer) -> tuple[object, ...]:
    """Return a row of `describe-producers`."""
    return (
        each.id,
        each.epoch,
        max(each.coordinator_epoch, -1),
        each.last_sequence,
        each.last_timestamp,
        each.transaction_start if each.transaction_start >= 0 else None,
    )


@command.command("abort")
@partition_options(required=True)
@click.option(
    "--start-offset",
    type=INT64,
    metavar="OFFSET",
    help="The first offset of the transaction in the partition (brokers of Kafka 3.0 or later).",
)
@click.option(
    "--producer-id",
    type=INT64,
    metavar="ID",
    help="The producer id (older brokers; needs the next two options).",
)
@click.option("--producer-epoch", type=INT16, metavar="EPOCH", help="The producer epoch.")
@click.option("--coordinator-epoch", type=INT32, metavar="EPOCH", help="The coordinator epoch.")
@click.pass_obj
def abort_command(
    common: Common,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """Abort a hanging transaction in one partition. The transaction's coordinator does not check
    the request, so abort only transactions that find-hanging prints."""
    key = TopicPartition(topic, partition)
    given: OpenTransaction | None = None
    if start_offset is None:
        given = named_transaction(key, producer_id, producer_epoch, coordinator_epoch)

    async def work(admin: Admin) -> None:
        transaction = given or await _starting_at(admin, key, start_offset)
        try:
            await admin.abort_transaction(transaction)
        except ClientError as error:
            raise failed(f"Failed to abort transaction {_text(transaction)}", error) from error

    common.run(work)


def named_transaction(
    key: TopicPartition,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> OpenTransaction:
    """Return the transaction that --producer-id, --producer-epoch and --coordinator-epoch identify.
    These options are for brokers older than Kafka 3.0. Raises Failure if one of these options is
    missing."""
    if producer_id is None:
        raise Failure(
            "The transaction to abort must be identified either with --start-offset (for brokers"
            " on 3.0 or above) or with --producer-id, --producer-epoch, and --coordinator-epoch"
            " (for older brokers)"
        )
    if producer_epoch is None:
        raise Failure("Missing required argument --producer-epoch")
    if coordinator_epoch is None:
        raise Failure("Missing required argument --coordinator-epoch")
    # A producer without a marker has coordinator epoch -1. No leader epoch is below 0.
    return OpenTransaction(key, producer_id, producer_epoch, max(coordinator_epoch, 0))


async def _starting_at(admin: Admin, key: TopicPartition, start: int | None) -> OpenTransaction:
    """Return the partition's open transaction whose first offset is `start`. Raises Failure."""
    try:
        found = (await admin.describe_producers([key]))[key].check()
    except ClientError as error:
        raise failed(f"Failed to validate producer state for partition {key}", error) from error
    for each in found.producers:
        if each.transaction_start >= 0 and each.transaction_start == start:
            return OpenTransaction(key, each.id, each.epoch, max(each.coordinator_epoch, 0))
    raise Failure(
        f"Could not find any open transactions starting at offset {start} on partition {key}"
    )


def _text(transaction: OpenTransaction) -> str:
    return (
        f"AbortTransactionSpec(topicPartition={transaction.partition},"
        f" producerId={transaction.producer_id}, producerEpoch={transaction.producer_epoch},"
        f" coordinatorEpoch={transaction.coordinator_epoch})"
    )


@command.command("find-hanging")
@click.option("--broker-id", type=INT32, metavar="ID", help="Search the replicas on this broker.")
@click.option(
    "--max-transaction-timeout",
    type=click.IntRange(0, 2**31 - 1),
    default=15,
    metavar="MINUTES",
    help="Omit transactions whose last batch is at most this number of minutes old. Give the"
    " brokers' transaction.max.timeout.ms in minutes. Default: 15.",
)
@partition_options(required=False)
@click.pass_obj
def find_hanging_command(
    common: Common,
    broker_id: int | None,
    max_transaction_timeout: int,
    topic: str | None,
    partition: int | None,
) -> None:
    """Find hanging transactions: they are open in a partition, and their coordinator will never end
    them."""
    if topic is None and broker_id is None:
        raise Failure(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope"
            " of the search"
        )
    if partition is not None and topic is None:
        raise Failure("The --partition argument requires --topic to be provided")
    scope = Scope(topic, partition, broker_id, max_transaction_timeout * MINUTE_MS)
    found = common.run(lambda admin: find_hanging(admin, scope))
    at_ms = now_ms()
    show(HANGING_TITLES, [hanging_row(each, at_ms) for each in found], as_json=common.as_json)


def hanging_row(each: OpenProducer, now_ms: int) -> tuple[object, ...]:
    """Return a row of `find-hanging`. `now_ms` is the present time in ms since 1970."""
    producer = each.producer
    return (
        each.partition.topic,
        each.partition.partition,
        producer.id,
        producer.epoch,
        max(producer.coordinator_epoch, -1),
        producer.transaction_start,
        producer.last_timestamp,
        (now_ms - producer.last_timestamp) // MINUTE_MS,
    )


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000


def show(titles: Sequence[str], rows: Sequence[Sequence[object]], *, as_json: bool) -> None:
    """Print the table of Kafka's tool. With `as_json`, print one JSON object for each row instead;
    the keys are the titles with a small first letter."""
    if as_json:
        for row in rows:
            write_json(
                {
                    title[0].lower() + title[1:]: value
                    for title, value in zip(titles, row, strict=True)
                }
            )
        return
    for line in table(titles, rows):
        click.echo(line)


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table. Each value is padded to the width of its column. A tab follows
    each value."""
    texts = [titles, *([NONE if value is None else str(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "".join(f"{value:<{width}}\t" for value, width in zip(row, widths, strict=True))
        for row in texts
    ]
