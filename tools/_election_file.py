"""Reads the partitions of an election from a file, in the format of Kafka's election tools:
{"partitions": [{"topic": ..., "partition": ...}]}."""

from __future__ import annotations

import json

from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure
from pybroker.tools._json_file import (
    INT32,
    json_array,
    json_field,
    json_integer,
    json_object,
    json_text,
    read_file,
)


def read_partitions(path: str, data: str, *, no_partitions: str) -> list[TopicPartition]:
    """Return the partitions in the order of the file. `data` names the content in error messages,
    such as "Replica election data". `no_partitions` is the error message if the field "partitions"
    is missing. Raises Failure."""
    try:
        content: object = json.loads(read_file(path))
    except (ValueError, RecursionError):
        raise Failure(f"{data} is empty") from None
    document = json_object(content)
    if "partitions" not in document:
        raise Failure(no_partitions)
    found: dict[TopicPartition, None] = {}
    twice: dict[TopicPartition, None] = {}
    for row in json_array(document["partitions"]):
        fields = json_object(row)
        topic = json_text(json_field(fields, "topic"))
        number = json_integer(json_field(fields, "partition"), "Integer", INT32)
        key = TopicPartition(topic, number)
        (twice if key in found else found)[key] = None
    if twice:
        names = ",".join(map(str, twice))
        raise Failure(f"{data} contains duplicate partitions: {names}")
    return list(found)
