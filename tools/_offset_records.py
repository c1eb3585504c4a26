"""Formats the records of `__consumer_offsets` as JSON, as Kafka's DumpLogSegments does."""

from __future__ import annotations

import json
from typing import Any

from pybroker.coordinator.groups.records import plain_key, plain_value
from pybroker.errors import MalformedInput
from pybroker.records.record import Record
from pybroker.tools._cli import Failure


def offset_record_text(record: Record) -> tuple[str | None, str | None]:
    """Return the key and the value of a record as text. If the record cannot be decoded, return
    (error message, None). Raises Failure for a record without a key."""
    if record.key is None:
        raise Failure(
            f"the record at offset {record.offset} has no key: --offsets-decoder is for the"
            " segments of __consumer_offsets"
        )
    try:
        version, fields = plain_key(record.key)
        if fields is None:
            return f"Unknown record type {version} at offset {record.offset}, skipping.", None
        return _json({"type": str(version), "data": fields}), _value_text(version, record.value)
    except MalformedInput as error:
        return f"Error at offset {record.offset}, skipping. {error}", None


def _value_text(key_version: int, value: bytes | None) -> str:
    if value is None:
        return "<DELETE>"
    version, fields = plain_value(key_version, value)
    return _json({"version": str(version), "data": fields})


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
