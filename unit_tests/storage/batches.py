"""Batches for the tests of the log."""

from __future__ import annotations

from pybroker.records.batch import BatchHeader, read_header, stamp
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction

FIRST_TIMESTAMP = 1_700_000_000_000


def batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamp: int = FIRST_TIMESTAMP,
    step_ms: int = 1,
    producer: int = -1,
    producer_epoch: int = 0,
    sequence: int = -1,
    transactional: bool = False,
    codec: Codec = Codec.NONE,
) -> bytearray:
    """A batch of `count` records, `step_ms` apart, as a producer sends it."""
    builder = BatchBuilder(codec)
    for number in range(count):
        builder.append(timestamp + number * step_ms, b"key", value, ())
    if producer < 0:
        return bytearray(builder.build())
    return bytearray(builder.build(producer, producer_epoch, sequence, transactional))


def marker(
    producer: int, *, commit: bool, producer_epoch: int = 0, coordinator_epoch: int = 0
) -> bytearray:
    """Return a batch with the marker that ends a transaction."""
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    return bytearray(
        build_end_transaction(
            EndTransaction(kind, coordinator_epoch),
            producer_id=producer,
            producer_epoch=producer_epoch,
            timestamp_ms=FIRST_TIMESTAMP,
        )
    )


def header(
    producer: int, sequence: int, count: int = 1, *, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    """Return only the header of such a batch."""
    data = batch(
        count,
        producer=producer,
        producer_epoch=epoch,
        sequence=sequence,
        transactional=transactional,
    )
    return read_header(data)


def stamped(data: bytearray, offset: int, epoch: int = 0) -> bytes:
    """Return the batch as a leader stores it."""
    stamp(data, 0, offset, epoch)
    return bytes(data)
