"""Opens the logs of replicas for a LeaderAndIsr command: in several threads at once."""

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

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

TopicConfigReader = Callable[[Collection[str]], Awaitable[dict[str, LogConfig]]]
"""Returns the effective log configuration of each topic, as ZooKeeper has it now. A lagging server
of the ensemble must not answer with its state from before the topic's creation."""


def cannot_exist(key: TopicPartition) -> bool:
    """Return whether the name is invalid. The check keeps a command from creating a directory
    outside the log directory."""
    fault = topic_name_fault(key.topic) or ("its number is below 0" if key.partition < 0 else "")
    if fault:
        topic, number = key
        state_change.warning(
            "command refused topic=%.100r partition=%d reason=%.200s", topic, number, fault
        )
    return bool(fault)


class LogOpener:
    """Opens logs; it changes no roles."""

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
        """Return the configuration of each topic, read together."""
        names = sorted(topics)
        return await self._topic_configs(names) if names else {}

    async def configs_of(
        self, news: Sequence[PartitionFacts], open_here: Mapping[TopicPartition, Partition]
    ) -> dict[str, LogConfig]:
        """Return the configuration by topic. That of an open replica is known already, so that the
        controller can depose a leader that has no ZooKeeper connection. Raises BrokerError
        NETWORK_EXCEPTION if a topic has to be read from ZooKeeper, and cannot be."""
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
        """Return the log of each partition, created if it is missing; or the error."""
        return await spread(self._blocking, self._open, orders)

    def _open(self, order: tuple[PartitionFacts, LogConfig]) -> Log | PybrokerError:
        """Blocking. A log of a deleted topic of the same name (another topic id) is set aside,
        never served. A damaged log neither leads nor follows if there are other replicas: they have
        the missing records. Once it is neither in the ISR nor eligible, and another replica leads,
        its files are set aside and all is copied."""
        facts, config = order
        key = facts.topic_partition
        opened = self._logs.log(key)
        known = (None, facts.topic_id)
        is_anothers = (
            opened is not None and facts.topic_id != NO_TOPIC_ID and opened.topic_id not in known
        )
        if opened is not None and is_anothers:
            log.warning(
                "log set aside partition=%s topic_id=%s current_topic_id=%s",
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
                # When the copy began, its leader had all records. Now no replica counts as in sync:
                # each reports its log end, and the longest log leads, even an incomplete one.
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
            # There is no follower that would truncate its log by the epochs of this one.
            log.warning("epochs not checked partition=%s reason=it has no other replica", key)
            made.damage = None
        if made.damage is not None and len(facts.replicas) > 1:
            return BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{made.damage.as_error(key).detail}. This replica is not used; it is copied anew"
                " once a replica with the records leads: restart the broker of that replica, or"
                " elect another replica uncleanly",
            )
        return made

    def _is_replaceable(self, opened: Log | None) -> bool:
        return (
            opened is not None
            and opened.damage is not None
            and opened.topic_partition in self._logs.incomplete.replaceable
        )
