"""The command `pybroker leader-election`, equivalent to Kafka's kafka-leader-election, with the
messages of Kafka 3.9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.elections import ElectionType
from pybroker.client.errors import ClientError, RequestTimedOut, ResponseError
from pybroker.errors import ErrorCode
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
from pybroker.tools._election_file import read_partitions

API_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 15_000
DATA = "Replica election data"

Results = Mapping[TopicPartition, ClientError | None]


@click.command("leader-election", cls=Tool)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT[,HOST:PORT]",
    help="Brokers to contact first; they return the addresses of all brokers.",
)
@config_file_option("--admin.config", "--command-config")
@click.option(
    "--election-type",
    type=click.Choice(["preferred", "unclean"], case_sensitive=False),
    help="preferred: elect the first assigned replica of each partition. unclean: elect any"
    " live replica of each partition that has no leader; committed records may be lost.",
)
@click.option(
    "--topic",
    metavar="NAME",
    help="The topic of one partition to elect a leader for; needs --partition.",
)
@click.option(
    "--partition", type=int, metavar="NUMBER", help="The partition's number; needs --topic."
)
@click.option(
    "--path-to-json-file",
    metavar="FILE",
    help='A JSON file with several partitions: {"partitions": [{"topic": "foo", "partition": 1}]}',
)
@click.option(
    "--all-topic-partitions", is_flag=True, help="Elect leaders for all partitions of the cluster."
)
@format_option()
def command(
    bootstrap_server: str | None,
    config_file: str | None,
    election_type: str | None,
    topic: str | None,
    partition: int | None,
    path_to_json_file: str | None,
    all_topic_partitions: bool,
    output_format: str,
) -> None:
    """Elect the preferred leaders, or elect a live replica for partitions without a leader.

    The exit code is 1 if an election failed.
    """
    given = {"bootstrap-server": bootstrap_server, "election-type": election_type}
    if missing := [name for name, value in given.items() if value is None]:
        raise Failure(f"Missing required option(s): {', '.join(missing)}")
    chosen = [topic is not None, all_topic_partitions, path_to_json_file is not None]
    if sum(chosen) != 1:
        raise Failure(
            "One and only one of the following options is required: topic, all-topic-partitions,"
            " path-to-json-file"
        )
    if topic is not None and partition is None:
        raise Failure("Missing required option(s): partition")
    if topic is None and partition is not None:
        raise Failure("Option partition is only allowed if topic is used")
    wanted = None
    if path_to_json_file is not None:
        no_partitions = f'{DATA} is missing "partitions" field'
        wanted = read_partitions(path_to_json_file, DATA, no_partitions=no_partitions)
    elif topic is not None and partition is not None:
        wanted = [TopicPartition(topic, partition)]
    options = client_options(
        str(bootstrap_server),
        config_file,
        default_api_timeout_ms=API_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    kind = ElectionType[str(election_type).upper()]
    results = run_async(elect(options, kind, wanted))
    if output_format == "json":
        write_json([_document(key, error) for key, error in sorted(results.items())])
    else:
        show(results, f"leader election ({kind.name})", "Valid replica")
    check(results, "replica")


async def elect(
    options: dict[str, Any], kind: ElectionType, wanted: list[TopicPartition] | None
) -> Results:
    """Request the elections and return the result for each partition. `wanted` None means all
    partitions. Raises Failure, PybrokerError."""
    async with Admin(**options) as admin:
        try:
            return await admin.elect_leaders(kind, wanted)
        except RequestTimedOut as error:
            raise Failure("Timeout waiting for election results") from error


def show(results: Results, name: str, noop: str) -> None:
    """Print the result for each partition. `noop` is the beginning of the line about partitions
    that needed no election."""
    elected = [key for key, error in results.items() if error is None]
    needless = [key for key, error in results.items() if error is not None and _is_noop(error)]
    if elected:
        click.echo(f"Successfully completed {name} for partitions {_joined(elected)}")
    if needless:
        click.echo(f"{noop} already elected for partitions {_joined(needless)}")
    for key, error in sorted(failed(results).items()):
        click.echo(f"Error completing {name} for partition: {key}: {error}")


def check(results: Results, what: str) -> None:
    """Raise Failure if an election failed. `what` names the replicas in the message, such as
    "preferred replica"."""
    if failures := failed(results):
        raise Failure(f"{len(failures)} {what}(s) could not be elected")


def failed(results: Results) -> dict[TopicPartition, ClientError]:
    """Return the partitions whose election failed, with the error."""
    return {
        key: error for key, error in results.items() if error is not None and not _is_noop(error)
    }


def _is_noop(error: ClientError) -> bool:
    return isinstance(error, ResponseError) and error.code is ErrorCode.ELECTION_NOT_NEEDED


def _joined(keys: list[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(keys)))


def _document(key: TopicPartition, error: ClientError | None) -> dict[str, object]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "elected": error is None,
        "error": None if error is None or _is_noop(error) else str(error),
    }
