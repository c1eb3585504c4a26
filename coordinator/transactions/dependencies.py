"""The functions and the configuration that the transaction coordinators of a broker share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.transactions.markers import Completion


@dataclass(frozen=True, slots=True)
class TransactionDependencies:
    """The configuration and the functions that all transaction coordinators of a broker share."""

    config: BrokerConfig
    new_producer_id: Callable[[], Awaitable[int]]
    """Returns an unused producer id, or raises BrokerError."""
    send: Callable[[Completion], None]
    """Begins to send the markers of an ended transaction."""
    take_memory: Callable[[int], None]
    """Reserves a number of bytes for partitions of transactions, or raises BrokerError."""
    take_memory_for_new: Callable[[int], None]
    """Reserves a number of bytes for a new transactional id, or raises BrokerError."""
