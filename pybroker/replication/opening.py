"""Opens the logs of replicas for a LeaderAndIsr command, in several threads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

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
from pybroker.replication.spread import spread
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.manager import LogManager
from pybroker.storage.replica_health import Event, Health

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

TopicConfigReader = Callable[[Collection[str]], Awaitable[dict[str, LogConfig]]]
"""Returns the effective log configuration of each topic, as ZooKeeper stores it now. A lagging
ZooKeeper server may not have a new topic yet; the implementation must not use its answer."""


def cannot_exist(key: TopicPartition) -> bool:
    """Return whether the topic name or the partition number is invalid."""
    negative = "the partition number is negative" if key.partition < 0 else ""
    fault = topic_name_fault(key.topic) or negative
    if fault:
        topic, number = key
        state_change.warning(
            "LeaderAndIsr refused topic=%.100r partition=%d reason=%.200s", topic, number, fault
        )
    return bool(fault)


class LogOpener:
    """Opens or creates the logs of this broker's replicas. Does not change the replicas' roles."""

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
        """Return topic -> its log configuration, by one call of the TopicConfigReader."""
        names = sorted(topics)
        return await self._topic_configs(names) if names else {}

    async def configs_of(
        self, news: Sequence[PartitionFacts], open_here: Mapping[TopicPartition, Partition]
    ) -> dict[str, LogConfig]:
        """Return topic -> log configuration for the topics in `news`. Open replicas supply their
        configuration without a request to ZooKeeper. Raises BrokerError NETWORK_EXCEPTION if
        ZooKeeper does not answer."""
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
                f"the configuration of topics cannot be read from ZooKeeper: {error!r}",
            ) from error

    async def open(
        self, orders: Sequence[tuple[PartitionFacts, LogConfig]]
    ) -> list[Log | PybrokerError]:
        """Open or create the log of each partition. Return one log or error for each partition, in
        order."""
        return await spread(self._blocking, self._open, orders)

    def _open(self, order: tuple[PartitionFacts, LogConfig]) -> Log | PybrokerError:
        """Return the opened or created log of one partition, or the error. Waits for the disk."""
        facts, config = order
        key = facts.topic_partition
        opened = self._logs.log(key)
        known = (None, facts.topic_id)
        is_anothers = (
            opened is not None and facts.topic_id != NO_TOPIC_ID and opened.topic_id not in known
        )
        if opened is not None and is_anothers:
            log.warning(
                "log renamed to stray partition=%s topic_id=%s current_topic_id=%s: its topic was"
                " deleted",
                key,
                opened.topic_id,
                facts.topic_id,
            )
        try:
            is_copied = facts.state.leader not in (NO_LEADER, self._broker_id)
            health = self._logs.health[key]
            is_replaced = is_copied and not is_anothers and health is Health.REPLACEABLE
            if is_anothers or is_replaced:
                self._logs.set_aside(key, is_replaced=is_replaced)
            if is_copied and health is Health.ELECTABLE:
                self._logs.health.move(key, Event.FOLLOWS, health)
            may_lead = is_orphaned(facts.state) or health is Health.ELECTABLE
            if opened is not None and not is_copied and may_lead:
                # Now no replica is in sync or eligible: each reports its log end, and the longest
                # log leads. An incomplete one may lead too; it may have copied the most records.
                self._logs.health.complete(opened)
            made = self._logs.create(
                key,
                config,
                facts.topic_id,
                is_new=facts.is_new,
                is_copied=is_copied,
            )
        except (BrokerError, StorageError) as error:
            return error
        return self._usable(made, facts)

    def _usable(self, made: Log, facts: PartitionFacts) -> Log | BrokerError:
        """Return the log `made`, or an error if the log is damaged and other replicas have the
        records."""
        key = facts.topic_partition
        if made.damage is not None and made.damage.is_whole and len(facts.replicas) == 1:
            # Wrong epochs are harmless without a follower that would truncate its log by them.
            log.warning(
                "leader epochs cannot be checked partition=%s: the broker uses the log, "
                "because no other replica exists",
                key,
            )
            made.damage = None
        if made.damage is not None and len(facts.replicas) > 1:
            return BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{made.damage.as_error(key).detail}. The broker does not use this "
                "replica. It copies the whole log again when a replica that has the "
                "records leads: start the broker of such a replica, or elect another "
                "replica uncleanly",
            )
        return made
