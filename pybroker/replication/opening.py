"""Opening the logs of replicas when the controller says who leads: in threads, many at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from pybroker.errors import BrokerError, CoordError, ErrorCode, PybrokerError, StorageError
from pybroker.model import (
    NO_LEADER,
    NO_TOPIC_ID,
    PartitionFacts,
    TopicPartition,
    is_orphaned,
    topic_name_fault,
)
from pybroker.ports import Blocking
from pybroker.replication.partition import Partition
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

T = TypeVar("T")
R = TypeVar("R")
_THREADS: Final = 10

TopicConfigReader = Callable[[Collection[str]], Awaitable[dict[str, LogConfig]]]
"""Gives the effective configuration of each topic's logs, as ZooKeeper has it now: not what one of
its members, which lags, had before the topic was made."""


def cannot_exist(key: TopicPartition) -> bool:
    """Whether no partition can be called so, as its directory would be: nobody may make one
    elsewhere."""
    fault = topic_name_fault(key.topic) or ("its number is below 0" if key.partition < 0 else "")
    if fault:
        topic, number = key
        state_change.warning(
            "command refused topic=%.100r partition=%d reason=%.200s", topic, number, fault
        )
    return bool(fault)


class LogOpener:
    """Changes no roles."""

    def __init__(
        self,
        *,
        broker_id: int,
        logs: LogManager,
        blocking: Blocking,
        topic_configs: TopicConfigReader,
    ) -> None:
        self._broker_id = broker_id
        self._logs = logs
        self._blocking = blocking
        self._topic_configs = topic_configs

    async def configs(self, topics: Iterable[str]) -> dict[str, LogConfig]:
        """The configuration of each topic, asked for together."""
        names = sorted(topics)
        return await self._topic_configs(names) if names else {}

    async def configs_of(
        self, news: Sequence[PartitionFacts], open_here: Mapping[TopicPartition, Partition]
    ) -> dict[str, LogConfig]:
        """By topic. What is open here goes by its topic's configuration already, so that a broker
        without ZooKeeper can still be told that it leads no longer. Raises BrokerError
        NETWORK_EXCEPTION if ZooKeeper has to be asked and cannot be."""
        known: dict[str, LogConfig] = {}
        for facts in news:
            partition = open_here.get(facts.topic_partition)
            if partition is not None and partition.topic_id == facts.topic_id:
                known[facts.topic_partition.topic] = partition.log.config
        unknown = {facts.topic_partition.topic for facts in news} - known.keys()
        try:
            return known | await self.configs(unknown)
        except CoordError as error:
            raise BrokerError(
                ErrorCode.NETWORK_EXCEPTION,
                f"the configuration of topics cannot be read: {error!r}",
            ) from error

    async def open(
        self, orders: Sequence[tuple[PartitionFacts, LogConfig]]
    ) -> list[Log | PybrokerError]:
        """The log of each partition, made if it is missing; or why there is none."""
        return await self._spread(self._open, orders)

    async def persist_epochs(self, logs: Sequence[Log]) -> list[PybrokerError | None]:
        """Make the starts of new epochs durable, so that no append has to."""
        return await self._spread(_persist_epochs, logs)

    async def _spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`work` on each item, in a few threads that each take a share: what it waits for is the
        disk, which serves several at a time."""
        share = -(-len(items) // _THREADS) or 1

        def some(start: int) -> list[R]:
            return [work(item) for item in items[start : start + share]]

        starts = range(0, len(items), share)
        parts = await asyncio.gather(*(self._blocking.run(some, start) for start in starts))
        return [result for part in parts for result in part]

    def _open(self, order: tuple[PartitionFacts, LogConfig]) -> Log | PybrokerError:
        """Blocking. A log of an earlier topic of the same name (another topic id) is set aside,
        never served. One with a hole is neither led from nor continued where there are other
        replicas: what the hole held is with them. When it counts for nothing any more and another
        leads, its files are set aside and all is copied."""
        facts, config = order
        key = facts.topic_partition
        opened = self._logs.log(key)
        known = (None, facts.topic_id)
        is_anothers = (
            opened is not None and facts.topic_id != NO_TOPIC_ID and opened.topic_id not in known
        )
        if opened is not None and is_anothers:
            log.warning(
                "log set aside partition=%s topic_id=%s: the topic of that name is now %s",
                key,
                opened.topic_id,
                facts.topic_id,
            )
        try:
            is_copied = facts.state.leader not in (NO_LEADER, self._broker_id)
            if is_anothers or (is_copied and self._is_replaceable(opened)):
                self._logs.set_aside(key)
            if is_copied:
                self._logs.incomplete.released.discard(key)
            elif is_orphaned(facts.state) or key in self._logs.incomplete.released:
                # When a copy began, its leader had all. Now nobody counts for what it had: each
                # says what it has, and the longest log leads, be it a copy.
                self._logs.incomplete.clear(key)
            made = self._logs.create(
                key,
                config,
                facts.topic_id,
                is_new=facts.is_new,
                is_copied=is_copied,
            )
        except (BrokerError, StorageError) as error:
            return error
        if made.damage is not None and made.damage.is_whole and len(facts.replicas) == 1:
            # No other log is cut by what this one says of leader epochs.
            log.warning("batches believed partition=%s: it has no other replica", key)
            made.damage = None
        if made.damage is not None and len(facts.replicas) > 1:
            return BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{made.damage.as_error(key).detail}. This replica is not used; it is copied anew"
                " as soon as another one leads that has the records: bring its broker back, or"
                " elect another replica uncleanly",
            )
        return made

    def _is_replaceable(self, opened: Log | None) -> bool:
        return (
            opened is not None
            and opened.damage is not None
            and opened.topic_partition in self._logs.incomplete.replaceable
        )


def _persist_epochs(leading: Log) -> PybrokerError | None:
    try:
        leading.persist_epochs()
    except (BrokerError, StorageError) as error:
        return error
    return None
