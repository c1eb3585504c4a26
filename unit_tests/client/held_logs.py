"""Logs of a FakeBroker, and a consumer that reads them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.client.consumer import Consumer
from pybroker.model import TopicPartition
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.records.control import ControlType, EndTransaction, build_end_transaction
from pybroker.wire.messages.fetch import AbortedTransaction
from unit_tests.client.fake_broker import FakeBroker, Partition
from unit_tests.patience import PATIENCE_S

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
QUICK: dict[str, Any] = {
    "retry_backoff_ms": 1,
    "retry_backoff_max_ms": 5,
    "reconnect_backoff_ms": 1,
    "reconnect_backoff_max_ms": 5,
    "fetch_max_wait_ms": 10,
}


def consumer(broker: FakeBroker, **options: Any) -> Consumer:
    return Consumer(broker.address, **{**QUICK, "auto_offset_reset": "earliest", **options})


def batch(*values: bytes, producer: int = -1, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch, which belongs to a transaction if it has a producer. Timestamps begin at
    1000."""
    builder = BatchBuilder(codec)
    for index, value in enumerate(values):
        builder.append(1_000 + index, b"k", value, (("h", b"1"),))
    if producer < 0:
        return builder.build()
    return builder.build(producer, 0, 0, transactional=True)


def marker(kind: ControlType, producer: int) -> bytes:
    return build_end_transaction(
        EndTransaction(kind, 0), producer_id=producer, producer_epoch=0, timestamp_ms=1
    )


def holding(log: Partition, *batches: bytes) -> None:
    for data in batches:
        log.append(data)


def holding_transactions(log: Partition) -> None:
    """Fill the log with one aborted transaction, two committed ones, and records without a
    transaction; see `SEEN`."""
    holding(
        log,
        batch(b"p"),
        batch(b"lost", producer=5),
        batch(b"kept", producer=6),
        marker(ControlType.ABORT, 5),
        marker(ControlType.COMMIT, 6),
        batch(b"q"),
        batch(b"again", producer=5),
        marker(ControlType.COMMIT, 5),
    )
    log.aborted = [AbortedTransaction(producer_id=5, first_offset=1)]


SEEN = pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("read_uncommitted", [b"p", b"lost", b"kept", b"q", b"again"]),
        ("read_committed", [b"p", b"kept", b"q", b"again"]),
    ],
)
"""The values that a consumer of an isolation level gets of `holding_transactions`."""


async def values(target: Consumer, count: int) -> list[bytes | None]:
    """Wait for the next records, and return their values."""
    found = []
    for _ in range(count):
        async with asyncio.timeout(PATIENCE_S):
            found.append((await target.getone()).value)
    return found
