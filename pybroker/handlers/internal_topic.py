"""An internal topic of coordinators: each group id or transactional id maps to a partition. A
broker reads the number of partitions once, from ZooKeeper, and keeps the number. If two brokers
used different numbers, both could coordinate the same group."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.applog.rate_limit import LogLimit
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.errors import BrokerError, CoordError, ErrorCode, MalformedNode
from pybroker.handlers.context import TopicAdmin
from pybroker.handlers.metadata import has_leaders
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import NO_LEADER
from pybroker.ports import Clock

log = logging.getLogger(__name__)

_TRY_AGAIN_S: Final = 0.5
"""The pause (s) after a failed creation of the topic. Requests during the pause do not try to
create it again, and get COORDINATOR_NOT_AVAILABLE."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """The properties of a new internal topic."""

    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


class InternalTopic:
    """Creates one internal topic, such as `__consumer_offsets`, and looks up its partitions and
    leaders. Used on the event loop only."""

    def __init__(
        self,
        name: str,
        *,
        metadata: MetadataView,
        topics: TopicAdmin,
        new_topic: Callable[[], NewTopic],
        clock: Clock,
        log_limit: LogLimit,
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._topics = topics
        self._new_topic = new_topic
        self._clock = clock
        self._log_limit = log_limit
        self._topic_id: uuid.UUID | None = None
        """The topic id for which `_count` was read. A recreated topic has another id."""
        self._count = 0
        self._making = asyncio.Lock()
        self._failed_until = -1.0
        self._why_not = "this broker has not read the topic's number of partitions yet"

    @property
    def is_known(self) -> bool:
        """Whether the topic's number of partitions is known."""
        topic = self._metadata.topic(self.name)
        return topic is not None and topic.topic_id == self._topic_id

    def partition_of(self, key: str) -> int:
        """Return the partition to which a group id or transactional id maps. Raise BrokerError
        COORDINATOR_NOT_AVAILABLE while the number of partitions is unknown."""
        if not self.is_known:
            raise self._not_available(self._why_not)
        return partition_of(key, self._count)

    def leader_of(self, partition: int) -> int:
        """Return the broker id of the partition's leader. Raise BrokerError
        COORDINATOR_NOT_AVAILABLE if the metadata has no leader."""
        topic = self._metadata.topic(self.name)
        facts = None if topic is None else topic.partitions.get(partition)
        if facts is None or facts.state.leader == NO_LEADER:
            raise self._not_available(f"partition {partition} has no leader")
        return facts.state.leader

    async def learn(self, topic_id: uuid.UUID) -> None:
        """Read the number of partitions from ZooKeeper, unless it is known for `topic_id`. Raise
        BrokerError COORDINATOR_NOT_AVAILABLE if the topic is missing or has another id. Raise
        CoordError or MalformedNode if the read fails."""
        if topic_id == self._topic_id:
            return
        found = await self._topics.stored_count(self.name)
        if found is None or found[0] not in (None, topic_id):
            raise self._not_available(
                "the topic was deleted or recreated after this broker received the topic's metadata"
            )
        self._topic_id, self._count = topic_id, found[1]

    async def settle(self, wait_s: float) -> None:
        """Create the topic if it is missing, wait for its leaders, and read its number of
        partitions. Raise BrokerError COORDINATOR_NOT_AVAILABLE if that fails or takes longer than
        `wait_s` seconds."""
        async with self._making:
            if self._clock.monotonic() < self._failed_until:
                raise self._not_available(self._why_not)
            try:
                if self._metadata.topic(self.name) is None:
                    await self._make()
                await self._metadata.wait_until(
                    lambda: has_leaders(self._metadata.topic(self.name)), wait_s
                )
                topic = self._metadata.topic(self.name)
                if topic is None:
                    raise self._not_available("the topic is not in the metadata of this broker yet")
                await self.learn(topic.topic_id)
            except (BrokerError, CoordError, MalformedNode) as error:
                self._failed_until = self._clock.monotonic() + _TRY_AGAIN_S
                self._why_not = error.detail if isinstance(error, BrokerError) else str(error)
                left_out = self._log_limit.allow(f"no {self.name}")
                if left_out is not None:
                    log.warning(
                        "internal topic not available topic=%s error=%r lines_left_out=%d",
                        self.name,
                        error,
                        left_out,
                    )
                raise self._not_available(self._why_not) from error

    async def _make(self) -> None:
        wanted = self._new_topic()
        try:
            await self._topics.create(
                self.name,
                partitions=wanted.partitions,
                replication_factor=wanted.replication_factor,
                assignment=None,
                configs=wanted.configs,
                validate_only=False,
            )
            log.info("internal topic created topic=%s partitions=%d", self.name, wanted.partitions)
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise

    def _not_available(self, reason: str) -> BrokerError:
        detail = reason if self.name in reason else f"{self.name}: {reason}"
        return BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, detail)
