"""The part of a rebalance that runs inside the application's own calls. Only `attend` (in reading
calls) and `close` change the assigned partitions, so the partitions of returned records stay
assigned until the next call.

    eager:        release all partitions -> join -> read the assigned partitions
    cooperative:  join and keep all partitions -> release the partitions that move -> join again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pybroker.client.cluster import Cluster
from pybroker.client.fetcher import Fetcher
from pybroker.client.groups.committer import Committer
from pybroker.client.groups.decisions import MemberState
from pybroker.client.groups.member import JoinResult, Membership
from pybroker.client.groups.offsets import Offsets
from pybroker.client.groups.topics import RebalanceCallbacks, TopicChoice, TopicMemory
from pybroker.client.options import ConsumerOptions
from pybroker.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

log = logging.getLogger(__name__)


class GroupSession:
    """The rebalance work of a consumer. `choice` is the subscription; None if there is none."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        fetcher: Fetcher,
        member: Membership,
        committer: Committer,
        memory: TopicMemory,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._fetcher = fetcher
        self._member = member
        self._committer = committer
        self._memory = memory
        self.choice: TopicChoice | None = None
        self._callbacks = RebalanceCallbacks()
        self.topics: frozenset[str] | None = None
        """The subscribed topics, None while a pattern waits for metadata. If the member joined with
        these topics, this is the same object as `_joined_with`: the two are compared for every
        record, and comparing by identity is fast."""
        self._joined_with: frozenset[str] | None = None
        self._lock = asyncio.Lock()
        self._lock_owner: asyncio.Task[object] | None = None
        self._looking: asyncio.TimerHandle | None = None
        cluster.add_listener(self._metadata_changed)

    def subscribe(self, choice: TopicChoice, callbacks: RebalanceCallbacks) -> None:
        """Set the subscription and the callbacks. The consumer joins the group, or rejoins it, in
        its next call that reads records."""
        first = self.choice is None
        self.choice, self._callbacks = choice, callbacks
        self._cluster.watch(choice.topics)
        self._cluster.watch_all(choice.pattern is not None)
        self._resolve()
        if first:
            self._member.last_read = self._cluster.clock.monotonic()
            self._member.request_rejoin("subscribed")
        self._fetcher.news.set()

    # Calls of the application

    def due(self) -> bool:
        """Return whether `attend` has work to do."""
        member = self._member
        return self.choice is not None and (
            member.failure is not None or member.joined is not None or self._must_join()
        )

    async def attend(self) -> None:
        """Do the due work of the membership: join the group, release partitions and accept
        partitions. Raises the error that makes the membership impossible, and the errors of
        callbacks."""
        if not self.due():
            return
        async with self._locked():
            while self.due():
                if self._member.failure is not None:
                    raise self._member.failure
                result = self._member.take()
                if result is not None:
                    await self._complete(result)
                else:
                    await self._prepare()

    async def close(self, handled: Offsets) -> None:
        """Commit `handled` if automatic commits are enabled, release all partitions, and leave the
        group, even if a callback fails. Raises the errors of callbacks."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        async with self._locked():
            if self.choice is None:
                return
            try:
                if self._member.state is MemberState.STABLE:
                    await self._committer.commit_last(handled)
                    await self._committer.settle()
                await self._give_back(self._fetcher.readers)
            finally:
                self.choice = self.topics = self._joined_with = None
                self._fetcher.assign([])
                self._cluster.watch_all(False)
                await self._member.leave("the consumer ends or unsubscribes")

    # Internal

    def _must_join(self) -> bool:
        if self._member.state is MemberState.JOINING or self.topics is None:
            return False
        return self._member.rejoin is not None or self.topics is not self._joined_with

    async def _prepare(self) -> None:
        """Release the partitions that the member must not keep while it joins, then start to
        join."""
        member, topics = self._member, self.topics
        assert topics is not None
        if member.in_generation and self._fetcher.readers:
            await self._committer.commit_last(
                self._committer.positions(),
                min(self._options.request_timeout_ms, self._options.max_poll_interval_ms),
            )
        stay = topics if member.cooperative and member.in_generation else frozenset()
        kept = [key for key in self._fetcher.readers if key.topic in stay]
        try:
            await self._give_back(key for key in self._fetcher.readers if key.topic not in stay)
        finally:
            if self.choice is not None:
                self._fetcher.assign(kept)
                if member.failure is None and (member.in_generation or not kept):
                    self._joined_with = topics
                    member.begin(topics, kept)

    async def _complete(self, result: JoinResult) -> None:
        """Accept the partitions assigned to the member."""
        if result.identity != self._member.identity:
            return
        topics = self._joined_with or frozenset()
        assigned = [key for key in result.partitions if key.topic in topics]
        owned = self._fetcher.readers
        added = [key for key in assigned if key not in owned]
        gone = set(owned) - set(assigned)
        try:
            if gone:
                await self._hand_over(sorted(gone))
        finally:
            if self.choice is not None:
                self._fetcher.assign(assigned)
                self._committer.postpone()
                await self._call(self._callbacks.assigned, added)

    async def _hand_over(self, gone: list[TopicPartition]) -> None:
        """Release the partitions `gone`, and let the member rejoin. Both happen even if the
        application cancels its call meanwhile."""
        self._member.request_rejoin("partitions were released")
        positions = self._committer.positions()
        last = {key: positions[key] for key in gone if key in positions}
        try:
            await self._committer.commit_last(last)
        finally:
            await self._give_back(gone)

    async def _give_back(self, partitions: Iterable[TopicPartition]) -> None:
        given = list(partitions)
        if not given:
            return
        if self._member.in_generation:
            await self._call(self._callbacks.revoked, given)
        else:
            await self._call(self._callbacks.lost, given)

    async def _call(
        self,
        callback: Callable[[Iterable[TopicPartition]], Awaitable[None]],
        partitions: Iterable[TopicPartition],
    ) -> None:
        """Run a rebalance callback, for at most max.poll.interval.ms."""
        reading, self._member.reading = self._member.reading, False
        self._member.last_read = self._cluster.clock.monotonic()
        try:
            await callback(partitions)
        finally:
            self._member.reading = reading

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Return a context manager that acts as a lock: only one task can be in it. This task may
        enter it again, in a rebalance callback."""
        if self._lock_owner is asyncio.current_task():
            yield
            return
        async with self._lock:
            self._lock_owner = asyncio.current_task()
            try:
                yield
            finally:
                self._lock_owner = None

    def _metadata_changed(self) -> None:
        if self.choice is None:
            return
        self._resolve()
        self._member.look_at_partitions()
        if self.due():
            self._fetcher.news.set()

    def _resolve(self) -> None:
        assert self.choice is not None
        self._memory.look(self._cluster.view, self._cluster.clock.monotonic())
        topics = self.choice.resolve(self._memory)
        if topics is None:
            return
        same = topics == self._joined_with
        self.topics = self._joined_with if same else topics
        in_doubt = self._memory.in_doubt or not topics <= self._memory.known.keys()
        if in_doubt and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(
                self._options.retry_backoff_max_ms / 1_000, self._look_again
            )

    def _look_again(self) -> None:
        self._looking = None
        if self.choice is not None:
            self._cluster.request_refresh()
