"""Lists the invalid records of a rejected batch, with Kafka's error messages (KIP-467). The number
of checked records is limited, because a small batch may decompress to millions of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import NO_TIMESTAMP
from pybroker.records._pure import iter_outlines

NAMED_MAX: Final = 1000
"""The maximum number of records in an error response. Kafka has no such limit. Without it the
response could be far larger than the batch: a record may take 7 bytes, and its error message more
than 100."""
WALKED_MAX: Final = 100_000
_SHOWN_MAX: Final = 3
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1


class RecordError(NamedTuple):
    """The error of one record. `batch_index` is the position of the record in its batch, from 0."""

    batch_index: int
    message: str


class RecordsRefused(BrokerError):
    """Some records of a batch are invalid. `records` is empty until `name_records` has found the
    invalid records."""

    def __init__(self, code: ErrorCode, detail: str, records: Sequence[RecordError] = ()) -> None:
        super().__init__(code, detail)
        self.records = tuple(records)


class Expected(NamedTuple):
    """The conditions that each record must meet. `earliest` and `latest` limit the timestamp, in
    ms; None if timestamps are not checked."""

    needs_key: bool
    earliest: int | None
    latest: int | None
    partition: str


class Times(NamedTuple):
    """The timestamps of the records in a batch: `append_time` (LogAppendTime), or if None, `base`
    plus the record's timestamp delta."""

    base: int
    append_time: int | None


def name_records(
    refused: RecordsRefused, payload: bytes, record_count: int, times: Times, expected: Expected
) -> RecordsRefused:
    """Return an exception with a list of the batch's invalid records; `refused` if none is found.
    Only a limited number of records is checked. Raises CorruptionError if a record is damaged."""
    errors: list[RecordError] = []
    has_wrong_time = False
    count = min(record_count, WALKED_MAX)
    looked_at = 0
    for outline in iter_outlines(payload, record_count):
        if looked_at == count or len(errors) == NAMED_MAX:
            break
        time_delta, offset, key_length, value_length = outline
        timestamp = times.base + time_delta if times.append_time is None else times.append_time
        words = _key_fault(key_length, expected)
        if words is None and times.append_time is not None:
            words = (
                f"Invalid timestamp type in message DefaultRecord(offset={offset},"
                f" timestamp={timestamp}, key={key_length} bytes, value={value_length} bytes)."
                " Producer should not set timestamp type to LogAppendTime."
            )
            has_wrong_time = True
        elif words is None:
            words = _time_fault(timestamp, offset, expected)
            has_wrong_time = has_wrong_time or words is not None
        if words is not None:
            errors.append(RecordError(looked_at, words))
        looked_at += 1
    if not errors:
        return refused
    if has_wrong_time:
        detail = "One or more records have been rejected due to invalid timestamp"
        return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, detail, errors)
    total = str(len(errors)) if looked_at == record_count else f"at least {len(errors)}"
    shown = ", ".join(
        f"RecordError(batchIndex={each.batch_index}, message='{each.message}')"
        for each in errors[:_SHOWN_MAX]
    )
    detail = (
        f"One or more records have been rejected due to {total} record errors in total, and only"
        f" showing the first three errors at most: [{shown}]"
    )
    return RecordsRefused(ErrorCode.INVALID_RECORD, detail, errors)


def _key_fault(key_length: int, expected: Expected) -> str | None:
    if key_length >= 0 or not expected.needs_key:
        return None
    return (
        f"Compacted topic cannot accept message without key in topic partition {expected.partition}"
    )


def _time_fault(timestamp: int, offset: int, expected: Expected) -> str | None:
    if expected.earliest is None or expected.latest is None or timestamp == NO_TIMESTAMP:
        return None
    if expected.earliest <= timestamp <= expected.latest:
        return None
    return (
        f"Timestamp {timestamp} of message with offset {offset} is out of range. The timestamp"
        f" should be within [{max(expected.earliest, _LONG_MIN)},"
        f" {min(expected.latest, _LONG_MAX)}]"
    )
