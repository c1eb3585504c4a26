"""Tests of Arrow's record batches: types that Spark takes, and the values of the records."""

from __future__ import annotations

import datetime
import importlib
import sys
from typing import Any

import pytest

import pybroker.client
from pybroker.client import arrow as arrow_module
from pybroker.client.arrow import arrow_schema, record_batch
from pybroker.records import columns as columns_module
from pybroker.records.batch import read_header
from pybroker.records.columns import ColumnBuilder, Columns
from unit_tests.records.vocabulary import LIMIT, NOW_MS, TRICKY, Fields, batch_of

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra arrow")

TIME = datetime.datetime.fromtimestamp(NOW_MS / 1000, datetime.UTC)
FIELDS: list[Fields] = [item for item in TRICKY if item[0] == NOW_MS] + [(NOW_MS, None, None, ())]


def columns_of(fields: list[Fields], **wanted: bool) -> Columns:
    builder = ColumnBuilder(**wanted)
    if fields:
        batch = batch_of(*fields)
        builder.add(batch, read_header(batch), 0, len(fields), decompressed_bytes_max=LIMIT)
    return builder.finish()


@pytest.fixture(params=["_numpy_columns", "_speedups"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"pybroker.records.{request.param}"
    pytest.importorskip(name)
    monkeypatch.setattr(columns_module, "_IMPLEMENTATIONS", (name,))


def test_a_row_for_each_record(form: None) -> None:
    batch = record_batch("orders", 3, columns_of(FIELDS, headers=True))
    batch.validate(full=True)
    assert batch.schema == arrow_schema(headers=True)
    assert batch.to_pylist() == [
        {
            "key": key,
            "value": value,
            "topic": "orders",
            "partition": 3,
            "offset": offset,
            "timestamp": TIME,
            "timestampType": 0,
            "headers": [{"key": name, "value": item} for name, item in headers] or None,
        }
        for offset, (_, key, value, headers) in enumerate(FIELDS)
    ]


def test_without_headers_there_is_no_such_column(form: None) -> None:
    batch = record_batch("orders", 3, columns_of(FIELDS))
    assert batch.schema == arrow_schema()
    assert batch.num_rows == len(FIELDS)
    assert "headers" not in batch.schema.names


@pytest.mark.parametrize("headers", [True, False])
def test_no_rows(form: None, headers: bool) -> None:
    batch = record_batch("orders", 0, columns_of([], headers=headers))
    batch.validate(full=True)
    assert batch.num_rows == 0
    assert batch.schema == arrow_schema(headers=headers)


def test_columns_are_chosen_by_name_and_order(form: None) -> None:
    batch = record_batch("orders", 3, columns_of(FIELDS, keys=False), ["offset", "value"])
    batch.validate(full=True)
    assert batch.schema.names == ["offset", "value"]
    assert batch.column(0).to_pylist() == list(range(len(FIELDS)))
    assert batch.column(1).to_pylist() == [fields[2] for fields in FIELDS]
    assert record_batch("t", 0, columns_of(FIELDS, keys=False)).schema.names[0] == "value"


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["offset", "colour"], "'colour' is unknown, expected one of key, value, topic"),
        (["headers"], "'headers' was not built"),
        (["key"], "'key' was not built"),
    ],
)
def test_a_column_that_is_not_there(names: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        record_batch("orders", 3, columns_of(FIELDS, keys=False), names)


def test_keys_and_values_are_not_copied() -> None:
    columns = columns_of(FIELDS)
    batch = record_batch("orders", 3, columns)
    for name, column in (("key", columns.keys), ("value", columns.values)):
        assert column is not None
        data: Any = batch.column(name).buffers()[2]
        assert data.address == pyarrow.py_buffer(column.data).address


def test_spark_takes_the_schema() -> None:
    types: Any = pytest.importorskip("pyspark.sql.types", reason="needs the extra spark")
    to_arrow: Any = importlib.import_module("pyspark.sql.pandas.types").to_arrow_schema
    plain = types.StructType(
        [
            types.StructField("key", types.BinaryType()),
            types.StructField("value", types.BinaryType()),
            types.StructField("topic", types.StringType()),
            types.StructField("partition", types.IntegerType()),
            types.StructField("offset", types.LongType()),
            types.StructField("timestamp", types.TimestampType()),
            types.StructField("timestampType", types.IntegerType()),
        ]
    )
    assert arrow_schema().equals(to_arrow(plain, timezone="UTC"), check_metadata=True)
    header = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    full = plain.add("headers", types.ArrayType(header))
    assert arrow_schema(headers=True).equals(to_arrow(full, timezone="UTC"), check_metadata=True)


def test_the_client_works_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arrow_module._pyarrow.cache_clear()
    arrow_module._types.cache_clear()
    assert pybroker.client.Consumer is not None
    with pytest.raises(ImportError, match=r"pip install 'pybroker\[arrow\]'"):
        arrow_schema()
