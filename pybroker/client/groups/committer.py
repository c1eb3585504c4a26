"""Commits a consumer's positions: on request, and automatically while it reads on.

A record counts as handled when the user requests the next one, so automatic commits happen during
calls of the user, never by a timer of their own.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError, RebalanceInProgress
from pybroker.client.groups.offsets import GroupOffsets, OffsetAndMetadata, Offsets
from pybroker.client.options import ConsumerOptions
from pybroker.client.subscription import PartitionReader
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

LAST_COMMIT_LIMIT_MS: Final = 5_000
"""The limit of the commit when partitions are handed over or the consumer ends."""
GivenOffsets = Mapping[TopicPartition, "int | OffsetAndMetadata"]
CommitCallback = Callable[
    [dict[TopicPartition, OffsetAndMetadata], ClientError | None], Awaitable[None] | None
]
"""A plain or an async function of the offsets and of the error, if they were not committed."""


class Committer:
    """A consumer with a group has one. `readers` returns the readers of its partitions; `news` is
    called when an automatic commit has ended, since the next one may be due."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        offsets: GroupOffsets,
        readers: Callable[[], Mapping[TopicPartition, PartitionReader]],
        news: Callable[[], None],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._offsets = offsets
        self._readers = readers
        self._news = news
        self._interval_s = options.auto_commit_interval_ms / 1_000
        self._next_s = cluster.clock.monotonic() + self._interval_s
        self._running = False
        self._told: dict[TopicPartition, tuple[int, int | None]] = {}
        """Era and position of a partition at the user's last commit."""
        self._tasks = TaskOwner()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the positions of all partitions that are read at the moment."""
        return {
            key: OffsetAndMetadata(reader.position, "", reader.position_epoch)
            for key, reader in self._readers().items()
            if reader.position is not None
        }

    def handled(
        self, in_hand: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit at the end: the positions, but the records from the offsets
        `in_hand` on count as not handled. A commit of the user after those records were returned
        prevails."""
        handled, places = self.positions(), self._places()
        for key in in_hand.keys() & handled.keys():
            if self._told.get(key) == places[key]:
                del handled[key]
            else:
                handled[key] = OffsetAndMetadata(in_hand[key])
        return handled

    async def commit(self, offsets: GivenOffsets | None, deadline: Deadline) -> None:
        """Commit and wait. Raises the errors of `Consumer.commit`."""
        await self._offsets.commit(self._chosen(offsets), deadline)

    def commit_async(self, offsets: GivenOffsets | None, callback: CommitCallback | None) -> None:
        """Commit without waiting. Raises ValueError."""
        chosen = self._chosen(offsets)
        work = self._offsets.commit(chosen, self._deadline(), once=True)
        self._tasks.start(self._report(work, chosen, callback), "commit")

    # Automatic

    def due(self, now: float) -> bool:
        return self._options.enable_auto_commit and now >= self._next_s and not self._running

    def due_in_s(self, now: float) -> float | None:
        """Return in how many seconds a commit is `due`, None if never by itself."""
        if not self._options.enable_auto_commit or self._running:
            return None
        return max(self._next_s - now, 0.0)

    def postpone(self) -> None:
        """Restart the interval."""
        self._next_s = self._cluster.clock.monotonic() + self._interval_s

    def commit_if_due(self) -> None:
        """Commit if the interval is over, without waiting for the outcome."""
        if self.due(self._cluster.clock.monotonic()):
            self.commit_now()

    def commit_now(self) -> None:
        """Commit if commits are automatic, due or not, without waiting for the outcome."""
        self.postpone()
        positions = self.positions()
        if self._options.enable_auto_commit and positions:
            self._running = True
            work = self._offsets.commit(positions, self._deadline(), once=True, automatic=True)
            self._tasks.start(self._report(work, positions, self._automatic), "automatic commit")

    def _automatic(
        self, offsets: dict[TopicPartition, OffsetAndMetadata], error: ClientError | None
    ) -> None:
        self._running = False
        if error is not None and error.retriable:
            self._next_s = self._cluster.clock.monotonic() + self._cluster.pause_s(1)
        if error is not None and not isinstance(error, RebalanceInProgress):
            log.warning("auto commit failed reason=%s", error)
        self._news()

    async def commit_last(self, offsets: Offsets, limit_ms: int = LAST_COMMIT_LIMIT_MS) -> None:
        """Commit if commits are automatic, before partitions are given back and at the end. A
        failure is logged; the records are then read again."""
        if not self._options.enable_auto_commit:
            return
        try:
            deadline = Deadline(self._cluster.clock, limit_ms)
            await self._offsets.commit(offsets, deadline, automatic=True)
        except ClientError as error:
            log.warning("auto commit failed reason=%s", error)

    async def settle(self) -> None:
        """Give commits in flight a moment to arrive: the coordinator accepts none from a member
        that has left."""
        await self._tasks.finish(LAST_COMMIT_LIMIT_MS / 1_000)

    async def close(self) -> None:
        """Give commits in flight a moment to arrive."""
        try:
            await self.settle()
        finally:
            await self._tasks.close()

    # Inside

    def _chosen(self, offsets: GivenOffsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that the user commits."""
        positions = self.positions()
        chosen = {}
        for key, given in (positions if offsets is None else offsets).items():
            found = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            if found.offset < 0:
                raise ValueError(f"the offset of {key} is {found.offset}, expected 0 or more")
            chosen[TopicPartition(*key)] = found
        self._told |= {key: place for key, place in self._places().items() if key in chosen}
        return chosen

    def _places(self) -> dict[TopicPartition, tuple[int, int | None]]:
        """Return era and position of each partition: a jump may lead back to a position, and to
        records before it."""
        return {key: (reader.era, reader.position) for key, reader in self._readers().items()}

    def _deadline(self) -> Deadline:
        return Deadline(self._cluster.clock, self._options.default_api_timeout_ms)

    @staticmethod
    async def _report(
        work: Awaitable[object],
        offsets: dict[TopicPartition, OffsetAndMetadata],
        callback: CommitCallback | None,
    ) -> None:
        problem: ClientError | None = None
        try:
            await work
        except ClientError as error:
            problem = error
        if callback is not None:
            outcome = callback(offsets, problem)
            if inspect.isawaitable(outcome):
                await outcome
        elif problem is not None:
            log.warning("commit failed reason=%s", problem)
