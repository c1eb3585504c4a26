"""Control records: the markers that end transactions (KIP-98).

A marker is a batch of exactly one record whose key is version i16 and type i16 and whose value is
version i16 and coordinator epoch i32. Only brokers write them; consumers skip them.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from pybroker.errors import CorruptionError
from pybroker.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from pybroker.records.builder import pack_batch
from pybroker.records.loops import append_record
from pybroker.records.record import Record

VERSION: Final = 0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class ControlType(enum.IntEnum):
    """How a transaction ended: by a commit or an abort."""

    ABORT = 0
    COMMIT = 1


class EndTransaction(NamedTuple):
    """A marker. `coordinator_epoch` fences replaced coordinators."""

    type: ControlType
    coordinator_epoch: int


def build_end_transaction(
    marker: EndTransaction, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the batch that ends the open transaction of that producer in a partition."""
    record = bytearray()
    key = _KEY.pack(VERSION, marker.type)
    append_record(record, 0, 0, key, _VALUE.pack(VERSION, marker.coordinator_epoch), ())
    return pack_batch(
        bytes(record),
        1,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def parse_control(record: Record) -> EndTransaction | None:
    """Return the marker in the record of a control batch; None for a type that does not end a
    transaction (later versions of Kafka have more). Later versions of key and value may be longer.

    Raises CorruptionError if key or value are missing, cut off or of a negative version.
    """
    version, number = _unpack(_KEY, record.key, f"key of the control record at {record.offset}")
    if version < 0:
        raise CorruptionError(f"control record at {record.offset}: version is {version}")
    try:
        control_type = ControlType(number)
    except ValueError:
        return None
    version, epoch = _unpack(_VALUE, record.value, f"end of transaction at {record.offset}")
    if version < 0:
        raise CorruptionError(f"end of transaction at {record.offset}: version is {version}")
    return EndTransaction(control_type, epoch)


def _unpack(layout: struct.Struct, data: bytes | None, what: str) -> tuple[int, int]:
    if data is None or len(data) < layout.size:
        found = "nothing" if data is None else f"{len(data)} bytes"
        raise CorruptionError(f"{what}: found {found}, expected {layout.size} bytes")
    first, second = layout.unpack_from(data)
    return first, second
