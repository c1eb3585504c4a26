"""The commits of a consumer's positions. A record counts as processed when the application requests
the next record, so automatic commits happen during calls that read, not in a timer."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from pybroker.background import TaskOwner
from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError, RebalanceInProgress
from pybroker.client.group_values import OffsetAndMetadata
from pybroker.client.groups.offsets import GroupOffsets, Offsets
from pybroker.client.options import ConsumerOptions
from pybroker.client.subscription import PartitionReader
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

LAST_COMMIT_LIMIT_MS: Final = 5_000
"""The time limit of the commit that precedes the release of partitions and the close of the
consumer. The wait for earlier commits in flight has the same limit."""
QUICK_COMMIT_LIMIT_MS: Final = 1_000
"""The same limit for a consumer that closes because of an exception."""
GivenOffsets = Mapping[TopicPartition, "int | OffsetAndMetadata"]
CommitCallback = Callable[
    [dict[TopicPartition, OffsetAndMetadata], ClientError | None], Awaitable[None] | None
]
"""The application's callback for a commit, a plain or an async function. It gets the committed
offsets, and the error or None."""


class Committer:
    """Sends a consumer's commits. `readers` returns the state of each assigned partition. `news` is
    called after each automatic commit."""

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
        self._last_limit_ms = LAST_COMMIT_LIMIT_MS
        self._gave_up = False
        """Whether `settle` has waited in vain since the last call of `commit_last`."""
        self._requested: dict[TopicPartition, tuple[int, int | None]] = {}
        """For each partition that the application has committed, the value that `_places` had for
        it at the last such commit."""
        self._tasks = TaskOwner()

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the position of each assigned partition as the offset to commit."""
        return {
            key: OffsetAndMetadata(reader.position, "", reader.position_epoch)
            for key, reader in self._readers().items()
            if reader.position is not None
        }

    def handled(
        self, in_hand: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit when the consumer closes. `in_hand` maps a partition to the
        offset of its first record that may be unprocessed: this offset is returned for the
        partition. For other partitions the position is returned.

        The result omits a partition of `in_hand` if the application has committed it, and its
        position has not changed since: that commit stays.
        """
        handled, places = self.positions(), self._places()
        for key in in_hand.keys() & handled.keys():
            if self._requested.get(key) == places[key]:
                del handled[key]
            else:
                handled[key] = OffsetAndMetadata(in_hand[key])
        return handled

    async def commit(self, offsets: GivenOffsets | None, deadline: Deadline) -> None:
        """Commit `offsets` (None: the positions). Raises the errors of `Consumer.commit`."""
        await self._offsets.commit(self._chosen(offsets), deadline)

    def commit_async(self, offsets: GivenOffsets | None, callback: CommitCallback | None) -> None:
        """Commit `offsets` (None: the positions), without waiting; `callback` gets the result.
        Raises ValueError for a negative offset."""
        chosen = self._chosen(offsets)
        work = self._offsets.commit(chosen, self._deadline(), once=True)
        self._tasks.start(self._report(work, chosen, callback), "commit")

    # Automatic

    def due(self, now: float) -> bool:
        return self._options.enable_auto_commit and now >= self._next_s and not self._running

    def due_in_s(self, now: float) -> float | None:
        """Return the seconds from `now` to the next automatic commit; None if automatic commits are
        disabled, or if one is in flight."""
        if not self._options.enable_auto_commit or self._running:
            return None
        return max(self._next_s - now, 0.0)

    def postpone(self) -> None:
        """Restart auto.commit.interval.ms."""
        self._next_s = self._cluster.clock.monotonic() + self._interval_s

    def commit_if_due(self) -> None:
        """Begin an automatic commit of the positions if auto.commit.interval.ms has passed since
        the last automatic commit."""
        if self.due(self._cluster.clock.monotonic()):
            self.commit_now()

    def commit_now(self) -> None:
        """If automatic commits are enabled, begin an automatic commit of the positions."""
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
            log.warning("automatic commit failed, a later one follows reason=%s", error)
        self._news()

    def hurry(self) -> None:
        """Set a short time limit for the final commit, and for the wait for commits in flight."""
        self._last_limit_ms = QUICK_COMMIT_LIMIT_MS

    async def commit_last(self, offsets: Offsets, limit_ms: int | None = None) -> None:
        """Commit `offsets` if automatic commits are enabled. Call this before partitions are
        released, and before the consumer closes. A failure is only logged."""
        self._gave_up = False
        if not self._options.enable_auto_commit:
            return
        try:
            limit_ms = self._last_limit_ms if limit_ms is None else limit_ms
            deadline = Deadline(self._cluster.clock, limit_ms)
            await self._offsets.commit(offsets, deadline, automatic=True)
        except ClientError as error:
            log.warning("final commit failed, records may be read twice reason=%s", error)

    async def settle(self) -> None:
        """Wait for commits in flight, at most for the time limit of the final commit. Call this
        before the member leaves the group: the coordinator rejects later commits."""
        self._gave_up = not await self._tasks.finish(self._last_limit_ms / 1_000)

    async def close(self) -> None:
        """Call `settle`, unless the previous call of `settle` reached its time limit. Then cancel
        the commits that have not ended."""
        try:
            if not self._gave_up:
                await self.settle()
        finally:
            await self._tasks.close()

    # Internal

    def _chosen(self, offsets: GivenOffsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to commit: `offsets`, or the positions if None. Also record the
        present position of each partition in the result, for a later comparison in `handled`.
        Raises ValueError for a negative offset."""
        positions = self.positions()
        chosen = {}
        for key, given in (positions if offsets is None else offsets).items():
            found = given if isinstance(given, OffsetAndMetadata) else OffsetAndMetadata(given)
            if found.offset < 0:
                raise ValueError(
                    f"the offset to commit for {key} is {found.offset}, expected 0 or more"
                )
            chosen[TopicPartition(*key)] = found
        self._requested |= {key: place for key, place in self._places().items() if key in chosen}
        return chosen

    def _places(self) -> dict[TopicPartition, tuple[int, int | None]]:
        """Return partition -> (number of seeks and resets so far, position). A seek to the present
        position changes only the number."""
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
            log.warning(
                "commit without callback failed, the consumer does not repeat it reason=%s", problem
            )
