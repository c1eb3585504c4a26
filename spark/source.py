"""The data source that Spark registers: `spark.read.format("pybroker").option(...).load()`.

Spark imports this module in every session. To keep the import fast, the module `reading` is
imported only at its first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pybroker.spark.failures import hide_stack_trace

if TYPE_CHECKING:
    from pybroker.spark.reading import FrozenRead


class PybrokerDataSource(DataSource):
    """Reads Kafka topics in batch, with the columns and options of Spark's own Kafka source."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Determine the offsets to read; the offsets do not change afterwards. Spark creates this
        object once, at `load()`."""
        super().__init__(options)
        self._frozen: FrozenRead = _reading().freeze(dict(options))

    @classmethod
    def name(cls) -> str:
        return "pybroker"

    def schema(self) -> StructType:
        found: StructType = _reading().schema_of(self._frozen.request.columns)
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        found: DataSourceReader = _reading().FrozenReader(self._frozen, schema)
        return found

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _NoStream()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise _refusal()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise _refusal()


class _NoStream(DataSourceStreamReader):
    """A stream reader whose methods raise the error that streams are not supported. If
    `streamReader` raised the error, Spark would hide the error's message."""

    def initialOffset(self) -> dict[str, Any]:
        raise _refusal()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        raise _refusal()


def _refusal() -> Exception:
    found: Exception = hide_stack_trace(_reading().BatchOnly())
    return found


def _reading() -> Any:
    return importlib.import_module("pybroker.spark.reading")
