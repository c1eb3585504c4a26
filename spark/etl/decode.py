"""Decodes the keys and values in a DataFrame that has the columns of Spark's Kafka source. A null
key or value is no error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from pybroker.errors import ConfigError
from pybroker.spark.etl.job_model import Decode, Part

ERROR: Final = "pybroker_error"
RAW: Final = "pybroker_raw"
_CORRUPT: Final = "pybroker_corrupt"
_JSON: Final = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
_STRICT: Final = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}


def can_fail(decode: Decode) -> bool:
    """Return whether decoding can fail for some record."""
    return decode.key.format != "raw" or decode.value.format != "raw"


def parse_schema(part: Part, where: str) -> StructType | None:
    """Return the schema that the job declares for a JSON key or value, or None if it declares none.
    Needs a Spark session. Raises ConfigError."""
    if part.schema is None:
        return None
    try:
        found = DataType.fromDDL(part.schema)
    except PySparkException as error:
        raise ConfigError([f"{where}.schema: {first_line(error)}"]) from error
    if not isinstance(found, StructType) or not found.fields:
        raise ConfigError([f"{where}.schema: expected columns such as id BIGINT, name STRING"])
    names = [field.name for field in found.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError([f"{where}.schema: {', '.join(twice)} is given twice"])
    return found


def first_line(error: BaseException) -> str:
    """Return the first line of a Spark error, without query plan and stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def decoded(
    frame: DataFrame, decode: Decode, key: StructType | None, value: StructType | None
) -> DataFrame:
    """Return the frame with decoded `key` and `value`. For a record that cannot be decoded, ERROR
    has the reason, and RAW has the bytes of key and value. For other records, ERROR and RAW are
    null."""
    key_column, key_error = _part("key", decode.key, key)
    value_column, value_error = _part("value", decode.value, value)
    # Two steps, so that Spark computes only once the columns on which the errors depend.
    parsed = frame.withColumns({"pybroker_key": key_column, "pybroker_value": value_column})
    error = F.coalesce(key_error, value_error)
    raw = F.when(F.col(ERROR).isNotNull(), F.struct("key", "value"))
    marked = parsed.withColumn(ERROR, error).withColumn(RAW, raw)
    return marked.withColumns(
        {
            "key": _without_corrupt(F.col("pybroker_key"), key),
            "value": _without_corrupt(F.col("pybroker_value"), value),
        }
    ).drop("pybroker_key", "pybroker_value")


def good(frame: DataFrame) -> DataFrame:
    """Return the records that were decoded without an error, in the form that the transform
    receives."""
    return frame.where(F.col(ERROR).isNull()).drop(ERROR, RAW)


def bad(frame: DataFrame) -> DataFrame:
    """Return the dead letters: topic, partition, offset, bytes and reason of each record that
    cannot be decoded."""
    columns = ["topic", "partition", "offset", "timestamp", f"{RAW}.key", f"{RAW}.value"]
    if "headers" in frame.columns:
        columns.append("headers")
    return frame.where(F.col(ERROR).isNotNull()).select(*columns, F.col(ERROR).alias("error"))


def _without_corrupt(column: Column, schema: StructType | None) -> Column:
    return column if schema is None else column.dropFields(_CORRUPT)


def _part(name: str, part: Part, schema: StructType | None) -> tuple[Column, Column]:
    """Return two columns for `key` or `value`. The first has the decoded values. The second has the
    reason if a record cannot be decoded, and otherwise null."""
    raw = F.col(name)
    if part.format == "raw":
        return raw, F.lit(None).cast("string")
    text = raw.cast("string")
    not_utf8 = F.when(~F.is_valid_utf8(text), F.lit(f"{name}: not UTF-8"))
    if schema is None:
        return text, not_utf8
    parsed = F.from_json(text, _with_corrupt(schema), {**_STRICT, **part.options, **_JSON})
    return parsed, F.coalesce(not_utf8, _json_error(name, text, part, schema))


def _with_corrupt(schema: StructType) -> StructType:
    """Add the column for a text that does not match the schema. All fields become nullable, because
    Spark reads JSON fields as nullable."""
    return StructType([*schema.toNullable().fields, StructField(_CORRUPT, StringType())])


def _json_error(name: str, text: Column, part: Part, schema: StructType) -> Column:
    parsed = F.col(f"pybroker_{name}")
    keys = F.json_object_keys(text)
    # Spark reads the first document of a text and ignores the rest. Inside an array, it does not
    # ignore the rest.
    whole = F.json_array_length(F.concat(F.lit("["), text, F.lit(",0]"))) == 2
    known = F.array(*(F.lit(field.name) for field in schema.fields))
    checks = [
        F.when(~F.coalesce(whole, F.lit(False)), F.lit(f"{name}: not one JSON document")),
        F.when(keys.isNull(), F.lit(f"{name}: not a JSON object")),
        F.when(
            F.size(F.array_distinct(keys)) < F.size(keys), F.lit(f"{name}: a field is given twice")
        ),
    ]
    if part.unknown_fields == "error":
        unknown = F.array_sort(F.array_except(keys, known))
        checks.append(
            F.when(
                F.size(unknown) > 0,
                F.concat(F.lit(f"{name}: fields not in the schema: "), F.array_join(unknown, ", ")),
            )
        )
    checks.append(
        F.when(parsed[_CORRUPT].isNotNull(), _wrong_fields(name, text, keys, parsed, schema))
    )
    checks += [
        F.when(parsed.isNotNull() & missing, F.lit(f"{name}: {path} is missing or null"))
        for path, missing in _required(parsed, schema, "")
    ]
    return F.when(text.isNotNull(), F.coalesce(*checks))


def _wrong_fields(
    name: str, text: Column, keys: Column, parsed: Column, schema: StructType
) -> Column:
    """Return a column with the error message about fields that have a wrong type. Such a field is
    in the JSON text, but null in Spark's result."""
    wrong = F.array_compact(
        F.array(
            *(
                F.when(
                    F.array_contains(keys, field.name)
                    & parsed[field.name].isNull()
                    & F.get_json_object(text, f"$['{field.name}']").isNotNull(),
                    F.lit(f"{field.name} ({field.dataType.simpleString()})"),
                )
                for field in schema.fields
            )
        )
    )
    return F.concat(
        F.lit(f"{name}: not of the type in the schema: "),
        F.when(F.size(wrong) > 0, F.array_join(wrong, ", ")).otherwise(F.lit("a nested field")),
    )


def _required(parent: Column, schema: StructType, above: str) -> Iterator[tuple[str, Column]]:
    """Yield the path of each NOT NULL field, with a column that is true if the field is null but
    its parent is not. Arrays and maps are not searched."""
    for field in schema.fields:
        path, column = f"{above}{field.name}", parent[field.name]
        if not field.nullable:
            yield path, column.isNull()
        if isinstance(field.dataType, StructType):
            for inner, missing in _required(column, field.dataType, f"{path}."):
                yield inner, column.isNotNull() & missing
