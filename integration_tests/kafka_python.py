"""How kafka-python 3.0.12 has to be polled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import kafka
import kafka.errors

POLL_MS: Final = 5_000
"""Long after a group's first rebalances, however busy the machine. A leader forgets a rebalance
that new metadata began when `poll` times out between its assignment, with which it counts as
joined, and the answer to SyncGroup: it then neither takes its partitions nor sends heartbeats. Its
first metadata begins one, right after it has joined."""


def polled(consumer: kafka.KafkaConsumer) -> Mapping[Any, Sequence[Any]]:
    """Records by partition. While it looks for the coordinator, `poll` raises what befell its
    question to a broker that is dead or stands still, though others are there: the next call asks
    those."""
    try:
        found: Mapping[Any, Sequence[Any]] = consumer.poll(timeout_ms=POLL_MS)
    except kafka.errors.RetriableError:
        return {}
    return found
