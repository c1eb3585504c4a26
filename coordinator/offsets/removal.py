"""The removal of committed offsets that have expired, or whose topic is deleted.

The controller tells every broker when a topic is deleted. A regular search finds expired offsets,
and deletions that a coordinator missed. The search does not remove an offset that was committed
during the search: the topic may have been recreated, or the consumer may have returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final, Protocol

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.dependencies import GroupFacts
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.states import GroupState
from pybroker.coordinator.offsets.commit_watches import RecentCommits
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import BrokerError, CoordError
from pybroker.model import NO_TIMESTAMP, TopicPartition
from pybroker.ports import Coord

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
_CONSUMER: Final = "consumer"


class Removable(Protocol):
    """The part of an offset store that `OffsetRemoval` needs. Each coroutine may raise BrokerError
    and CoordError."""

    def watch(self) -> RecentCommits:
        """Return a new set, to which the offset store adds the key of each newly committed offset,
        until `unwatch` is called."""

    def unwatch(self, recent_commits: RecentCommits) -> None: ...

    async def group_ids(self) -> Collection[str]: ...

    async def all_group_ids(self) -> Collection[str]:
        """Return every group with offsets, including groups whose consumers (of Kafka 0.8) write
        offsets directly to ZooKeeper."""

    async def names(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which the group has a committed offset, or an offset of an open
        transaction."""

    async def fetch(
        self, group_id: str, partitions: Collection[TopicPartition] | None
    ) -> Mapping[TopicPartition, CommittedOffset]: ...

    def undecided(self, group_id: str) -> Collection[TopicPartition]:
        """See `OffsetStore.undecided`. Committed offsets of these partitions do not expire."""

    async def remove_without_recent_commit(
        self, group_id: str, keys: Collection[TopicPartition], recent_commits: RecentCommits
    ) -> None:
        """Remove the group's offsets of the partitions `keys`. Keep each offset whose key is in
        `recent_commits`."""


def expired(
    offsets: Mapping[TopicPartition, CommittedOffset],
    facts: GroupFacts | None,
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """Return the partitions whose offsets have expired, by Kafka's rule since 2.1 (KIP-211). No
    offset expires while a member of the group subscribes to its topic, or while the subscriptions
    of the members are unknown. The retention time counts:

    - from the commit, if the commit had its own retention time
    - otherwise in an empty group: from when the group became empty, if that time is known
    - otherwise from the commit
    """
    since_ms: int | None = None
    read: Collection[str] = ()
    if facts is not None and facts.state is GroupState.EMPTY:
        since_ms = None if facts.state_ms == NO_TIMESTAMP else facts.state_ms
    elif facts is not None:
        is_known = facts.state is GroupState.STABLE and facts.protocol_type == _CONSUMER
        if not is_known or facts.topics is None:
            return []
        read = facts.topics
    return [
        key
        for key, committed in offsets.items()
        if key.topic not in read and _end_ms(committed, since_ms, retention_ms) <= now_ms
    ]


def _end_ms(committed: CommittedOffset, since_ms: int | None, retention_ms: int) -> int:
    if committed.expire_ms != NO_TIMESTAMP:
        return committed.expire_ms
    return (committed.commit_ms if since_ms is None else since_ms) + retention_ms


class OffsetRemoval:
    """Removes committed offsets of one shard: offsets that have expired, and offsets of deleted
    topics. Works from `begin` to `end`. Owns its tasks."""

    def __init__(
        self, shard: ShardContext, coord: Coord, store: Removable, config: BrokerConfig
    ) -> None:
        self._shard = shard
        self._coord = coord
        self._store = store
        self._interval_s = config.offsets_retention_check_interval_ms / 1000
        self._retention_ms = config.offsets_retention_minutes * 60_000
        self._facts: Callable[[str], GroupFacts | None] = lambda _: None
        self._tasks: set[asyncio.Task[None]] = set()
        self._runs = False

    def begin(self, facts: Callable[[str], GroupFacts | None]) -> None:
        """Begin to search regularly for removable offsets. `facts` takes a group id. It returns
        None if the group is not in memory, for example because the group has only offsets."""
        self._facts = facts
        if not self._runs:
            self._runs = True
            self._look_later()

    def end(self) -> None:
        """Cancel all tasks. Idempotent."""
        self._runs = False
        for task in self._tasks:
            task.cancel()

    def topics_deleted(self, names: Collection[str]) -> None:
        """Begin to remove the offsets of these topics in the background."""
        if self._runs:
            self._do(self._remove_topics(frozenset(names), self._store.watch()))

    async def settled(self) -> None:
        """Wait until no search or removal is under way."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look_later(self) -> None:
        if self._runs:
            self._shard.call_later(self._interval_s, lambda: self._do(self._look()))

    # ---- expiry

    async def _look(self) -> None:
        recent_commits = self._store.watch()
        try:
            existing = set(await self._existing_topics())
            for group_id in sorted(await self._store.group_ids()):
                await self._look_at(group_id, existing, recent_commits)
        except (BrokerError, CoordError) as error:
            log.info(
                "search for expired offsets failed partition=%d reason=%r",
                self._shard.partition,
                error,
            )
        except Exception:
            log.exception("search for expired offsets failed partition=%d", self._shard.partition)
        finally:
            self._store.unwatch(recent_commits)
            self._look_later()

    async def _look_at(
        self, group_id: str, existing: Collection[str], recent_commits: RecentCommits
    ) -> None:
        try:
            offsets = await self._store.fetch(group_id, None)
        except BrokerError as error:
            log.warning("search for expired offsets failed group=%s reason=%r", group_id, error)
            return
        now_ms = self._shard.clock.wall_ms()
        facts = self._facts(group_id)
        undecided = self._store.undecided(group_id)
        old = [
            key
            for key in expired(offsets, facts, now_ms, self._retention_ms)
            if key not in undecided
        ]
        orphaned = [key for key in offsets if key.topic not in existing]
        keys = dict.fromkeys([*old, *orphaned])
        if keys:
            log.info(
                "offsets removed group=%s expired=%d of_deleted_topics=%d",
                group_id,
                len(old),
                len(orphaned),
            )
            await self._store.remove_without_recent_commit(group_id, list(keys), recent_commits)

    async def _existing_topics(self) -> list[str]:
        await self._coord.sync(paths.TOPICS)
        return [paths.decode_name(name) for name in await self._coord.children(paths.TOPICS)]

    # ---- deleted topics

    async def _remove_topics(self, names: frozenset[str], recent_commits: RecentCommits) -> None:
        pause_s = RETRY_S
        try:
            while self._runs:
                try:
                    await self._remove_of(names, recent_commits)
                    return
                except (BrokerError, CoordError) as error:
                    log.info(
                        "offsets of deleted topics not removed topics=%s reason=%r: the"
                        " coordinator tries again after a pause",
                        sorted(names),
                        error,
                    )
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RETRY_MAX_S)
        except Exception:
            log.exception("offsets of deleted topics not removed topics=%s", sorted(names))
        finally:
            self._store.unwatch(recent_commits)

    async def _remove_of(self, names: frozenset[str], recent_commits: RecentCommits) -> None:
        for group_id in sorted(await self._store.all_group_ids()):
            keys = sorted(key for key in await self._store.names(group_id) if key.topic in names)
            if keys:
                log.info("offsets removed group=%s topics=%s", group_id, sorted(names))
                await self._store.remove_without_recent_commit(group_id, keys, recent_commits)
