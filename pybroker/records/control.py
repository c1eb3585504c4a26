"""Control records: the markers that end transactions (KIP-98). A marker is a control batch with one
record. Key: version i16, type i16. Value: version i16, coordinator epoch i32."""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from pybroker.records.builder import pack_batch
from pybroker.records.record import Record
from pybroker.records.record_buffer import RecordBuffer

VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class ControlType(enum.IntEnum):
    """The type of a transaction marker: the transaction was committed or aborted."""

    ABORT = 0
    COMMIT = 1


class EndTransaction(NamedTuple):
    """A transaction marker. Leaders reject a marker whose `coordinator_epoch` is lower than that of
    the producer's last marker."""

    type: ControlType
    coordinator_epoch: int


def build_end_transaction(
    marker: EndTransaction, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the encoded control batch that ends a producer's open transaction in one partition."""
    records = RecordBuffer()
    key = _KEY.pack(VERSION, marker.type)
    value = _VALUE.pack(VERSION, marker.coordinator_epoch)
    records.append(timestamp_ms, key, value, (), len(key) + len(value))
    return pack_batch(
        bytes(records.encoded()),
        1,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def parse_control(record: Record) -> EndTransaction | None:
    """Return the transaction marker in the record of a control batch; None for another control
    type. Raises CorruptionError if key or value is null, too short, or of a negative version."""
    key = f"control record at offset {record.offset}: key"
    value = f"control record at offset {record.offset}: value"
    version, number = _unpack(_KEY, record.key, key)
    if version < 0:
        raise CorruptionError(f"{key} has version {version}, expected 0 or more")
    try:
        control_type = ControlType(number)
    except ValueError:
        return None
    version, epoch = _unpack(_VALUE, record.value, value)
    if version < 0:
        raise CorruptionError(f"{value} has version {version}, expected 0 or more")
    return EndTransaction(control_type, epoch)


def _unpack(layout: struct.Struct, data: bytes | None, what: str) -> tuple[int, int]:
    if data is None or len(data) < layout.size:
        found = "is null" if data is None else f"has {len(data)} bytes"
        raise CorruptionError(f"{what} {found}, expected at least {layout.size} bytes")
    first, second = layout.unpack_from(data)
    return first, second
