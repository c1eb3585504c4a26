"""Workarounds for polling with kafka-python 3.0.12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka
import kafka.errors

POLL_MS: Final = 5_000
"""A timeout of `poll` in ms that is far longer than a group's first rebalances, however busy the
machine is. New metadata starts a rebalance, and the first metadata comes right after the join. If
`poll` of a group leader times out between its assignment and the answer to SyncGroup, the leader
drops the rebalance: it gets no partitions and sends no heartbeats.
"""


def polled(consumer: kafka.KafkaConsumer) -> Mapping[Any, Sequence[Any]]:
    """Poll, and return the records by partition. While kafka-python searches for the coordinator,
    `poll` raises the error of a request to a dead or paused broker; then return no records, because
    the next call asks another broker.
    """
    try:
        found: Mapping[Any, Sequence[Any]] = consumer.poll(timeout_ms=POLL_MS)
    except kafka.errors.RetriableError:
        return {}
    return found
