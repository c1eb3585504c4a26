"""Tests of the schema of a read, and of the check of a user's own schema."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from pybroker.client.arrow import arrow_schema as client_schema
from pybroker.errors import ConfigError
from pybroker.spark.options import COLUMNS, read_request
from pybroker.spark.rows import arrow_schema, check_schema, spark_schema


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    assert spark_schema(COLUMNS).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


REQUEST = read_request({"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders"})


@pytest.mark.parametrize("headers", [False, True])
def test_client_schema_equals_sparks_schema(headers: bool) -> None:
    names = COLUMNS if headers else COLUMNS[:-1]
    assert arrow_schema(spark_schema(names)).equals(client_schema(headers=headers))


@pytest.mark.parametrize(
    "fields",
    [
        [StructField("offset", LongType())],
        [StructField("offset", LongType(), nullable=False), StructField("key", BinaryType())],
        spark_schema(COLUMNS).fields,
    ],
)
def test_a_users_schema_may_choose_columns(fields: list[StructField]) -> None:
    check_schema(StructType(fields), REQUEST)


HEADER = StructType([StructField("key", StringType(), False), StructField("value", BinaryType())])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ([], "the schema has no column"),
        ([StructField("price", LongType())], "column price: expected one of key, value"),
        ([StructField("Key", BinaryType())], "column Key: expected one of key, value"),
        ([StructField("value", StringType())], "column value is binary, not string: leave the"),
        ([StructField("offset", IntegerType())], "column offset is bigint, not int"),
        ([StructField("value", BinaryType(), nullable=False)], "column value may be null"),
        ([StructField("offset", LongType())] * 2, "column offset is given twice"),
        ([StructField("headers", ArrayType(HEADER))], "column headers is array<struct<key"),
    ],
)
def test_user_schema_with_other_columns_is_refused(fields: list[StructField], fault: str) -> None:
    with pytest.raises(ConfigError, match=f"schema: {fault}") as raised:
        check_schema(StructType(fields), REQUEST)
    assert len(raised.value.faults) == 1


@pytest.mark.parametrize(
    ("option", "names", "fault"),
    [
        (
            {"columns": "key,offset"},
            ["offset", "key"],
            "the schema has offset, key, but the option columns",
        ),
        (
            {"includeHeaders": "true"},
            ["key"],
            "the schema has no column headers, but includeHeaders=true",
        ),
        ({"includeHeaders": "true"}, ["headers"], ""),
        ({"columns": "key,offset"}, ["key", "offset"], ""),
        ({}, ["headers"], ""),
    ],
)
def test_user_schema_that_contradicts_options_is_refused(
    option: dict[str, str], names: list[str], fault: str
) -> None:
    request = read_request(
        {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "orders", **option}
    )
    if not fault:
        check_schema(spark_schema(names), request)
        return
    with pytest.raises(ConfigError, match=fault):
        check_schema(spark_schema(names), request)
