"""Formats the records of `__transaction_state` as Kafka's DumpLogSegments does."""

from __future__ import annotations

from pybroker.coordinator.transactions.records import decode_key, decode_value
from pybroker.coordinator.transactions.transaction import Transaction
from pybroker.errors import MalformedInput
from pybroker.records.record import Record
from pybroker.tools._cli import Failure

_VERSION_SIZE = 2


def transaction_record_text(record: Record) -> tuple[str | None, str | None]:
    """Return a record's key and value as text; (error message, None) if the record cannot be
    decoded. Raises Failure for a record without a key."""
    if record.key is None:
        raise Failure(
            f"the record at offset {record.offset} has no key: --transaction-log-decoder is for"
            " the segments of __transaction_state"
        )
    try:
        name = decode_key(record.key)
        if name is None:
            version = int.from_bytes(record.key[:_VERSION_SIZE], "big", signed=True)
            return f"unknown::version={version}", None
        return f"transaction_metadata::transactionalId={name}", _value_text(name, record.value)
    except MalformedInput as error:
        return f"Error at offset {record.offset}, skipping. {error}", None


def _value_text(name: str, value: bytes | None) -> str:
    return "<DELETE>" if value is None else _text(decode_value(name, value))


def _text(found: Transaction) -> str:
    return (
        f"producerId:{found.producer.producer_id},producerEpoch:{found.producer.epoch},"
        f"state={found.state.value},partitions=[{','.join(map(str, sorted(found.partitions)))}],"
        f"txnLastUpdateTimestamp={found.updated_ms},txnTimeoutMs={found.timeout_ms}"
    )
