"""Tests of `delete-records`: it reads Kafka's file format and prints the lines of Kafka's tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.partitions import DeletedRecords
from pybroker.client.errors import ResponseError
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure
from pybroker.tools._json_file import read_file
from pybroker.tools.delete_records import parse_offsets, perform

A0, B7 = TopicPartition("a", 0), TopicPartition("b", 7)


class FakeAdmin(Admin):
    """An admin client that deletes records of partition 0 and fails for other partitions."""

    def __init__(self) -> None:
        self.asked: dict[TopicPartition, int] = {}

    async def delete_records(
        self, before: Mapping[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, DeletedRecords]:
        self.asked = dict(before)
        late = ResponseError(ErrorCode.OFFSET_OUT_OF_RANGE, "too late")
        return {
            key: DeletedRecords(-1, late) if key.partition else DeletedRecords(offset)
            for key, offset in before.items()
        }


async def test_the_result_of_each_partition_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    admin = FakeAdmin()
    await perform(admin, {A0: 5, B7: 9}, as_json=False)
    assert admin.asked == {A0: 5, B7: 9}
    assert capsys.readouterr().out.splitlines() == [
        "Executing records delete operation",
        "Records delete operation completed:",
        "partition: a-0\tlow_watermark: 5",
        "partition: b-7\terror: OFFSET_OUT_OF_RANGE: too late",
    ]


async def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    await perform(FakeAdmin(), {A0: 5, B7: 9}, as_json=True)
    good, bad = json.loads(capsys.readouterr().out)
    assert good == {"topic": "a", "partition": 0, "lowWatermark": 5, "error": None}
    assert (bad["lowWatermark"], bad["error"]) == (-1, "OFFSET_OUT_OF_RANGE: too late")


def row(**changes: object) -> dict[str, object]:
    return {"topic": "a", "partition": 0, "offset": 5, **changes}


@pytest.mark.parametrize(
    "document",
    [
        {"partitions": [row(), row(topic="b", partition=7, offset=-1)], "version": 1},
        {"partitions": [row(more="ignored"), row(topic="b", partition=7, offset=-1)]},
    ],
)
def test_offsets_are_read_from_the_file(document: object) -> None:
    assert parse_offsets(json.dumps(document)) == {A0: 5, B7: -1}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("", "The input string is not a valid JSON"),
        ("{", "The input string is not a valid JSON"),
        ("[" * 100_000, "The input string is not a valid JSON"),
        ([], "Expected JSON object, received []"),
        ({}, "Missing partitions field"),
        ({"partitions": [], "version": 2}, "Not supported version field value 2"),
        ({"partitions": [], "version": "1"}, 'Expected `Integer` value, received "1"'),
        ({"partitions": {}}, "Expected JSON array, received {}"),
        ({"partitions": [1]}, "Expected JSON object, received 1"),
        ({"partitions": [{"topic": "a"}]}, "No such field exists: `partition`"),
        ({"partitions": [row(topic=1)]}, "Expected `String` value, received 1"),
        ({"partitions": [row(partition=True)]}, "Expected `Integer` value, received true"),
        ({"partitions": [row(partition=2**31)]}, "Expected `Integer` value, received 2147483648"),
        ({"partitions": [row(offset=1.5)]}, "Expected `Long` value, received 1.5"),
        ({"partitions": [row(offset=2**63)]}, "Expected `Long` value"),
        (
            {"partitions": [row(), row(offset=6), row(topic="b")]},
            "Offset json file contains duplicate topic partitions: a-0",
        ),
    ],
)
def test_a_malformed_file_is_refused(document: object, text: str) -> None:
    with pytest.raises(Failure) as caught:
        parse_offsets(document if isinstance(document, str) else json.dumps(document))
    assert text in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="nosuch cannot be read: No such file"):
        read_file(str(tmp_path / "nosuch"))
