"""Polling of kafka-python 3.0.12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka
import kafka.errors

POLL_MS: Final = 5_000
"""A metadata age that is far beyond a group's first rebalances, however busy the machine is. New
metadata begins a rebalance, the first metadata right after the join. If `poll` of a leader then
times out between its assignment and the answer to SyncGroup, the leader forgets the rebalance: it
neither takes its partitions nor sends heartbeats."""


def polled(consumer: kafka.KafkaConsumer) -> Mapping[Any, Sequence[Any]]:
    """Records by partition. While kafka-python looks for the coordinator, `poll` raises the error
    of a request to a dead or paused broker, although others are available: the next call asks
    those."""
    try:
        found: Mapping[Any, Sequence[Any]] = consumer.poll(timeout_ms=POLL_MS)
    except kafka.errors.RetriableError:
        return {}
    return found
