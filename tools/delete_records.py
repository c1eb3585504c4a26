"""The command `pybroker delete-records`, equivalent to Kafka's kafka-delete-records, with the
messages of Kafka 3.9."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.partitions import DeletedRecords
from pybroker.client.errors import ClientError
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
from pybroker.tools._json_file import (
    INT32,
    INT64,
    json_array,
    json_field,
    json_integer,
    json_object,
    json_text,
    read_file,
)

VERSION = 1


@click.command("delete-records", cls=Tool)
@bootstrap_option()
@click.option(
    "--offset-json-file",
    required=True,
    metavar="FILE",
    help="A JSON file with the new log start offset of each partition; -1 deletes all"
    " records below the high watermark:"
    ' {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}',
)
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(
    bootstrap_server: str, offset_json_file: str, config_file: str | None, output_format: str
) -> None:
    """For each partition in the JSON file, delete the records below the given offset.

    If the deletion fails for a partition, the partition's line contains the error. The exit code is
    0 even then.
    """
    options = client_options(bootstrap_server, config_file)
    offsets = parse_offsets(read_file(offset_json_file))

    async def work() -> None:
        async with Admin(**options) as admin:
            await perform(admin, offsets, as_json=output_format == "json")

    run_async(work())


async def perform(admin: Admin, offsets: Mapping[TopicPartition, int], *, as_json: bool) -> None:
    """Delete records, and print the result for each partition. Raises PybrokerError."""
    if not as_json:
        click.echo("Executing records delete operation")
    results = await admin.delete_records(offsets)
    if as_json:
        write_json([result_document(key, result) for key, result in results.items()])
        return
    click.echo("Records delete operation completed:")
    for key, result in results.items():
        click.echo(result_line(key, result))


def result_line(key: TopicPartition, result: DeletedRecords) -> str:
    if result.error is not None:
        return f"partition: {key}\terror: {result.error}"
    return f"partition: {key}\tlow_watermark: {result.low_watermark}"


def result_document(key: TopicPartition, result: DeletedRecords) -> dict[str, object]:
    error: ClientError | None = result.error
    return {
        "topic": key.topic,
        "partition": key.partition,
        "lowWatermark": result.low_watermark,
        "error": None if error is None else str(error),
    }


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the offset of each partition, in the order of the JSON text. Raises Failure."""
    try:
        document = json_object(json.loads(text))
    except (ValueError, RecursionError):
        raise Failure("The input string is not a valid JSON") from None
    version = json_integer(document.get("version", VERSION), "Integer", INT32)
    if version != VERSION:
        raise Failure(f"Not supported version field value {version}")
    if "partitions" not in document:
        raise Failure("Missing partitions field")
    offsets: dict[TopicPartition, int] = {}
    twice: dict[TopicPartition, None] = {}
    for row in json_array(document["partitions"]):
        fields = json_object(row)
        topic = json_text(json_field(fields, "topic"))
        number = json_integer(json_field(fields, "partition"), "Integer", INT32)
        offset = json_integer(json_field(fields, "offset"), "Long", INT64)
        key = TopicPartition(topic, number)
        if key in offsets:
            twice[key] = None
        offsets[key] = offset
    if twice:
        names = ",".join(map(str, twice))
        raise Failure(f"Offset json file contains duplicate topic partitions: {names}")
    return offsets
