"""`pybroker delete-records`: Kafka's kafka-delete-records. Texts are those of its release 3.9."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from pybroker.client.admin import Admin
from pybroker.client.admin_partitions import DeletedRecords
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

VERSION = 1
INT32 = range(-(2**31), 2**31)
INT64 = range(-(2**63), 2**63)


@click.command("delete-records", cls=Tool)
@bootstrap_option()
@click.option(
    "--offset-json-file",
    required=True,
    metavar="FILE",
    help="Where each partition shall begin; offset -1 deletes all that is committed:"
    ' {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}',
)
@config_file_option("--command-config", "--admin.config")
@format_option()
def command(
    bootstrap_server: str, offset_json_file: str, config_file: str | None, output_format: str
) -> None:
    """Delete the records of partitions below the offsets that a file names.

    A partition that fails has its error in its line; the exit code is that of the whole command.
    """
    options = client_options(bootstrap_server, config_file)
    offsets = parse_offsets(read(offset_json_file))

    async def work() -> None:
        async with Admin(**options) as admin:
            await perform(admin, offsets, as_json=output_format == "json")

    run_async(work())


async def perform(admin: Admin, offsets: Mapping[TopicPartition, int], *, as_json: bool) -> None:
    """Delete, and print what became of each. Raises PybrokerError."""
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


def read(path: str) -> str:
    """Raises Failure."""
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not UTF-8 text") from error


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """The content of the file: partition -> offset, in its order. Raises Failure."""
    try:
        document = _object(json.loads(text))
    except (ValueError, RecursionError):
        raise Failure("The input string is not a valid JSON") from None
    version = _integer(document.get("version", VERSION), "Integer", INT32)
    if version != VERSION:
        raise Failure(f"Not supported version field value {version}")
    if "partitions" not in document:
        raise Failure("Missing partitions field")
    offsets: dict[TopicPartition, int] = {}
    twice: dict[TopicPartition, None] = {}
    for row in _array(document["partitions"]):
        fields = _object(row)
        topic = _text(_field(fields, "topic"))
        number = _integer(_field(fields, "partition"), "Integer", INT32)
        offset = _integer(_field(fields, "offset"), "Long", INT64)
        key = TopicPartition(topic, number)
        if key in offsets:
            twice[key] = None
        offsets[key] = offset
    if twice:
        names = ",".join(map(str, twice))
        raise Failure(f"Offset json file contains duplicate topic partitions: {names}")
    return offsets


def _field(fields: Mapping[str, object], name: str) -> object:
    if name not in fields:
        raise Failure(f"No such field exists: `{name}`")
    return fields[name]


def _integer(value: object, kind: str, bounds: range) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value in bounds:
        return value
    raise _unexpected(f"`{kind}` value", value)


def _object(value: object) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise _unexpected("JSON object", value)


def _array(value: object) -> list[object]:
    if isinstance(value, list):
        return value
    raise _unexpected("JSON array", value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _unexpected("`String` value", value)


def _unexpected(kind: str, value: object) -> Failure:
    return Failure(f"Expected {kind}, received {json.dumps(value)}")
