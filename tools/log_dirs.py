"""The command `pybroker log-dirs`, equivalent to Kafka's kafka-log-dirs (LogDirsCommand)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.log_dirs import BrokerLogDirs, LogDir
from pybroker.client.errors import ResponseError
from pybroker.errors import ErrorCode
from pybroker.tools._cli import (
    Failure,
    Tool,
    bootstrap_option,
    client_options,
    config_file_option,
    run_async,
)

JAVA_ERROR: Final = "org.apache.kafka.common.errors.KafkaStorageException"
"""The error that Kafka's tool prints for a log directory that is offline."""


@click.command("log-dirs", cls=Tool)
@bootstrap_option()
@click.option("--describe", is_flag=True, help="Print the log directories. This flag is required.")
@click.option(
    "--topic-list",
    default="",
    metavar="TOPIC,TOPIC,...",
    help="Print only replicas of these topics. Default: all topics.",
)
@click.option(
    "--broker-list",
    default="",
    metavar="0,1,...",
    help="Ask only the brokers with these ids. Default: all brokers.",
)
@config_file_option("--command-config")
def command(
    bootstrap_server: str,
    describe: bool,
    topic_list: str,
    broker_list: str,
    config_file: str | None,
) -> int:
    """Print the log directories of brokers as JSON, with the size in bytes and the lag in offsets
    of each replica."""
    if not describe:
        raise Failure('Missing required argument "[describe]"')
    brokers = parse_brokers(broker_list)
    topics = {word for word in topic_list.split(",") if word}
    options = client_options(bootstrap_server, config_file)

    async def work() -> int:
        async with Admin(**options) as admin:
            return await show(admin, brokers, topics)

    return run_async(work())


def parse_brokers(text: str) -> set[int]:
    """Return the broker ids in --broker-list. Raises Failure."""
    try:
        return {int(word) for word in text.split(",") if word}
    except ValueError as error:
        raise Failure(
            f"--broker-list is {text}, expected broker ids separated by commas"
        ) from error


async def show(admin: Admin, brokers: set[int], topics: set[str]) -> int:
    """Print the log directories and return the exit code. Raises Failure if a broker does not
    exist, and ClientError if a request fails."""
    existing = {node.id for node in (await admin.describe_cluster()).nodes}
    unknown = brokers - existing
    if unknown:
        raise Failure(
            "ERROR: The given brokers do not exist from --broker-list:"
            f" {_listed(unknown)}. Current existent brokers: {_listed(existing)}"
        )
    asked = brokers or existing
    click.echo("Querying brokers for log directories information")
    found = await admin.describe_log_dirs(sorted(asked))
    answers = [answer.check() for _, answer in sorted(found.items())]
    click.echo(f"Received log directory information from brokers {_listed(asked)}")
    click.echo(json.dumps(document(answers, topics), ensure_ascii=False, separators=(",", ":")))
    return 0


def document(answers: Iterable[BrokerLogDirs], topics: set[str]) -> Mapping[str, object]:
    """Return the JSON document of Kafka's tool. It has the topics in `topics`, or all topics if
    `topics` is empty."""
    brokers = [
        {"broker": answer.broker, "logDirs": [directory_row(row, topics) for row in answer.dirs]}
        for answer in answers
    ]
    return {"brokers": brokers, "version": 1}


def directory_row(row: LogDir, topics: set[str]) -> Mapping[str, object]:
    replicas = [
        {
            "partition": str(key),
            "size": replica.size,
            "offsetLag": replica.offset_lag,
            "isFuture": replica.future,
        }
        for key, replica in sorted(row.replicas.items())
        if not topics or key.topic in topics
    ]
    error = None
    if row.error is not None:
        error = str(row.error)
        if isinstance(row.error, ResponseError) and row.error.code == ErrorCode.KAFKA_STORAGE_ERROR:
            error = JAVA_ERROR
    return {"partitions": replicas, "error": error, "logDir": row.path}


def _listed(ids: Iterable[int]) -> str:
    return ",".join(str(broker) for broker in sorted(ids))
