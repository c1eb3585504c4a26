"""A task that fetches records from one leader broker, and appends them to this broker's follower
replicas.

One request fetches all partitions. After an error of one partition, only this partition pauses. If
the leader broker cannot be reached, the fetcher pauses.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.metrics import FetcherCounters
from pybroker.model import TopicPartition
from pybroker.ports import (
    Blocking,
    Clock,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    LeaderChannel,
)
from pybroker.replication.catch_up import CatchUp
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.replication.follower import (
    Append,
    AskEnds,
    Pause,
    StartOver,
    TruncateTo,
    after_answer,
    after_ends,
    first_epoch,
    position,
)
from pybroker.replication.partition import Partition
from pybroker.replication.spread import persist_epochs
from pybroker.replication.truncation import Truncator

log = logging.getLogger(__name__)

_TURN_BYTES: Final = 2 * 1024 * 1024
"""After appending this many bytes, the fetcher lets other tasks of the event loop run."""
_TURN_PARTITIONS: Final = 200
_PAUSE_FIRST_S: Final = 0.02
"""The pause after the first failure. It doubles after each failure in a row, up to
replica.fetch.backoff.ms."""
_ROUND_MS_MIN: Final = 10
"""The lower limit of a fetch's wait at the leader for records. A fetch waits no longer than until
the next pause of a partition ends, but at least this long."""
_BUSY_S: Final = 0.02
"""How long a partition is not fetched while its log is being truncated or synced."""
_SYNC_GRACE_S: Final = 0.005
"""The longest wait for the sync of appended records before the next fetch, so that this fetch
reports them to the leader."""
_GRACE_S: Final = 0.01
"""How long a fetch that waits at the leader goes on after partitions were added to the fetcher. The
controller may add more partitions in this time; then one new fetch includes all of them."""
_QUIET_FAILURES: Final = 4
"""The first failures in a row of one partition, up to this number, are logged less severely: a
corrupt batch as a warning, because another fetch may return the batch intact; the errors of a
leader change not at all."""
_QUIET_FETCHES: Final = 4
"""After this many fetches in a row without a change, the next ones wait longer at the leader."""
_IDLE_SHARE: Final = 1 / 5
"""The longest wait of a fetch at the leader, as a share of replica.lag.time.max.ms. Two such waits
must be shorter than the time without fetches after which a leader asks ZooKeeper whether it still
leads (LOOK_SHARE)."""

_OF_CHANGES: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.OFFSET_OUT_OF_RANGE,
    }
)
"""The errors of a leader whose last LeaderAndIsr is older or newer than that of this follower."""
_PASSING: Final = _OF_CHANGES | {ErrorCode.COORDINATOR_NOT_AVAILABLE}
"""Errors that are no defect of this broker: those of leader changes, and those of a ZooKeeper that
does not answer."""


class Fetcher:
    """Fetches partitions from one other broker, the leader of these partitions. A fetcher runs from
    its creation until `stop`."""

    def __init__(
        self,
        leader: int,
        channel: LeaderChannel,
        truncator: Truncator,
        catch_up: CatchUp,
        blocking: Blocking,
        clock: Clock,
        config: BrokerConfig,
        counters: FetcherCounters,
    ) -> None:
        self.leader = leader
        self.copies: dict[TopicPartition, FollowedPartition] = {}
        self._positions: dict[TopicPartition, FetchPosition] = {}
        """The positions in the last fetch. A partition that pauses is not in it."""
        self._changed: dict[TopicPartition, FollowedPartition] = {}
        """The partitions whose position the fetcher determines before the next fetch. All other
        partitions are watched: a change of a partition adds it here."""
        self._removed: list[TopicPartition] = []
        """The partitions that were removed from the fetcher since the last fetch."""
        self._channel = channel
        self._truncator = truncator
        self._catch_up = catch_up
        self._blocking = blocking
        self._clock = clock
        self._limits = FetchLimits(
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
        )
        idle_ms = min(
            config.pybroker_replica_fetch_idle_wait_max_ms,
            int(config.replica_lag_time_max_ms * _IDLE_SHARE),
        )
        self._idle_limits = replace(
            self._limits, max_wait_ms=max(idle_ms, config.replica_fetch_wait_max_ms)
        )
        self._quiet_fetches = 0
        """The number of fetches in a row without a change: the follower reported no new position,
        and the leader returned nothing new."""
        self._pause_s_max = config.replica_fetch_backoff_ms / 1000
        self._counters = counters
        self._cut: asyncio.Timeout | None = None
        """The timeout of the fetch under way, or None between fetches. It has no time limit until a
        partition is added to the fetcher."""
        self._wake = asyncio.Event()
        self._syncing = False
        """Whether the fetcher has appended records that are not durable yet."""
        self._failures = 0
        self._task = BackgroundTask(f"fetcher {leader}")
        self._task.start(self._run)

    def add(self, partitions: Iterable[Partition]) -> None:
        """Fetch these partitions as well. If the fetcher pauses because requests to the leader
        failed, end the pause."""
        for partition in partitions:
            key = partition.topic_partition
            self.copies[key] = self._changed[key] = FollowedPartition(partition, self._look_at)
        self._failures = 0
        if self._cut is not None and self._cut.when() is None:
            self._cut.reschedule(asyncio.get_running_loop().time() + _GRACE_S)
        self._wake.set()

    def remove(self, key: TopicPartition) -> None:
        """Stop fetching the partition. The fetcher ignores a later answer for this partition."""
        followed = self.copies.pop(key, None)
        if followed is not None:
            followed.partition.unwatch(followed)
            self._changed.pop(key, None)
            self._positions.pop(key, None)
            self._removed.append(key)

    def synced(self) -> None:
        """Tell the fetcher that the log of a fetched partition was synced to disk. If the fetcher
        is waiting between two fetches, the fetcher continues at once."""
        self._wake.set()

    async def stop(self) -> None:
        await self._task.stop()
        await self._channel.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = loop.time()
            changed, due = self._determine_positions(now)
            if not self._positions:
                self._removed += changed
                await self._rest(due - now)
                continue
            self._quiet_fetches = 0 if changed else self._quiet_fetches + 1
            limits = self._limits
            if self._quiet_fetches > _QUIET_FETCHES:
                limits = self._idle_limits
            if due - now < limits.max_wait_ms / 1000:
                until_due_ms = max(int((due - now) * 1000), _ROUND_MS_MIN)
                limits = replace(limits, max_wait_ms=until_due_ms)
            try:
                answers = await self._ask(changed, limits)
                if answers or answers is None:
                    self._quiet_fetches = 0
                if answers is not None:
                    self._reached()
                    await self._ask_ends(await self._take(answers))
                    if await self._catch_up.look(self.copies, self._channel):
                        self._quiet_fetches = 0
                    if self._syncing:
                        self._syncing = False
                        await self._rest(_SYNC_GRACE_S)
            except (PybrokerError, OSError, TimeoutError) as error:
                await self._leader_failed(error)
            except Exception as error:
                # Without this task the broker would copy nothing from that leader any more.
                log.exception("copying failed, trying again leader=%d", self.leader)
                await self._leader_failed(error)

    def _determine_positions(self, now: float) -> tuple[list[TopicPartition], float]:
        """Update the fetch positions at `now` (loop seconds). Return the partitions whose position
        may have changed since the last fetch, and the time at which the first paused partition is
        due (infinity if none)."""
        changed, self._removed = self._removed, []
        due = math.inf
        for key, copy in list(self._changed.items()):
            replica = copy.partition.log
            if self._truncator.is_busy(key) or replica.durable_end < replica.log_end_offset:
                due = min(due, now + _BUSY_S)
            elif copy.not_before <= now:
                del self._changed[key]
                copy.partition.watch(copy)
                self._positions[key] = position(replica, copy.leader_epoch)
                changed.append(key)
                continue
            else:
                due = min(due, copy.not_before)
            if self._positions.pop(key, None) is not None:
                changed.append(key)
        return changed, due

    def _look_at(self, copy: FollowedPartition) -> None:
        key = copy.partition.topic_partition
        if self.copies.get(key) is copy:
            copy.partition.unwatch(copy)
            self._changed[key] = copy

    async def _rest(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(None if longest_s == math.inf else longest_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _ask(
        self, changed: Sequence[TopicPartition], limits: FetchLimits
    ) -> Sequence[FetchedPartition] | None:
        """Fetch from the leader, and return an answer for each partition. Return None if the fetch
        was ended early, because partitions were added to the fetcher."""
        self._counters.requests += 1
        # A timeout without a time limit needs no task and no timer. `add` gives it a limit.
        self._cut = asyncio.timeout(None)
        try:
            async with self._cut:
                return await self._channel.fetch(self._positions, limits, changed)
        except TimeoutError:
            if self._cut.expired():
                return None
            raise
        finally:
            self._cut = None

    def _reached(self) -> None:
        if self._failures:
            log.info("leader answers again leader=%d", self.leader)
        self._failures = 0

    async def _leader_failed(self, error: Exception) -> None:
        self._counters.failures += 1
        self._quiet_fetches = 0
        if not self._failures:
            log.warning("fetch failed, trying again leader=%d error=%s", self.leader, error)
        pause_s = self._pause_s(self._failures)
        self._failures += 1
        await self._rest(pause_s)

    def _pause_s(self, failures: int) -> float:
        longest_s = self._pause_s_max
        return min(math.ldexp(_PAUSE_FIRST_S, min(failures, 20)), longest_s)

    async def _take(self, answers: Sequence[FetchedPartition]) -> list[FollowedPartition]:
        """Apply the leader's answers to the followers' logs. Return the partitions that the leader
        answered with OFFSET_OUT_OF_RANGE."""
        await self._begin_epochs(answers)
        now_ms = self._clock.wall_ms()
        ask_ends = []
        taken_bytes = taken = 0
        for answer in answers:
            key = answer.topic_partition
            copy, asked = self.copies.get(key), self._positions.get(key)
            if copy is None or asked is None or not self._still(copy, asked):
                continue
            step = after_answer(copy.partition.log, answer)
            if isinstance(step, Append):
                self._append(copy, answer, now_ms)
            elif isinstance(step, AskEnds):
                ask_ends.append(copy)
            else:
                self._carry_out(copy, step, answer)
            taken_bytes += len(answer.records)
            taken += 1
            if taken_bytes >= _TURN_BYTES or taken >= _TURN_PARTITIONS:
                taken_bytes = taken = 0
                await asyncio.sleep(0)
        return ask_ends

    async def _begin_epochs(self, answers: Sequence[FetchedPartition]) -> None:
        """Find the answers whose first batch begins a new leader epoch in the follower's log. Write
        these leader epochs to disk, in threads."""
        logs = []
        for answer in answers:
            key, epoch = answer.topic_partition, first_epoch(answer.records)
            copy, asked = self.copies.get(key), self._positions.get(key)
            if copy is None or asked is None or not asked.last_epoch < epoch <= copy.leader_epoch:
                continue
            replica = copy.partition.log
            if self._still(copy, asked) and isinstance(after_answer(replica, answer), Append):
                replica.begin_epoch(epoch, replica.log_end_offset)
                self._positions[key] = position(replica, copy.leader_epoch)
                logs.append(replica)
        if logs:
            await persist_epochs(self._blocking, logs)

    def _still(self, copy: FollowedPartition, asked: FetchPosition) -> bool:
        """Return whether the leader's answer to `asked` can be applied: the replica's log end
        offset and leader epochs are still those in `asked`, and no truncation is running."""
        now = position(copy.partition.log, copy.leader_epoch)
        return (
            asked.fetch_offset == now.fetch_offset
            and asked.leader_epoch == now.leader_epoch
            and asked.last_epoch == now.last_epoch
            and not self._truncator.is_busy(copy.partition.topic_partition)
        )

    def _append(self, copy: FollowedPartition, answer: FetchedPartition, now_ms: int) -> None:
        try:
            copy.partition.append_replicated(
                answer.records,
                leader_high_watermark=answer.high_watermark,
                leader_log_start=answer.log_start_offset,
                now_ms=now_ms,
            )
        except BrokerError as error:
            self._pause(copy, Pause(error.code, error.detail))
            return
        self._counters.bytes += len(answer.records)
        replica = copy.partition.log
        self._syncing |= replica.durable_end < replica.log_end_offset
        copy.lag = max(answer.high_watermark - copy.partition.log.log_end_offset, 0)
        copy.failures, copy.told, copy.agrees = 0, None, True

    async def _ask_ends(self, copies: Sequence[FollowedPartition]) -> None:
        for copy in copies:
            key = copy.partition.topic_partition
            asked = position(copy.partition.log, copy.leader_epoch)
            try:
                start = await self._channel.earliest_offset(key, copy.leader_epoch)
                end = await self._channel.latest_offset(key, copy.leader_epoch)
            except BrokerError as error:
                self._pause(copy, Pause(error.code, error.detail))
                continue
            if self.copies.get(key) is copy and self._still(copy, asked):
                self._carry_out(copy, after_ends(copy.partition.log, start, end))

    def _carry_out(
        self,
        copy: FollowedPartition,
        step: TruncateTo | StartOver | Pause,
        answer: FetchedPartition | None = None,
    ) -> None:
        if isinstance(step, Pause):
            self._pause(copy, step)
            return
        kept = None
        if answer is not None and answer.records:
            kept = answer._replace(records=bytes(answer.records))

        def done(pause: Pause | None) -> None:
            if self.copies.get(copy.partition.topic_partition) is copy:
                self._look_at(copy)
                if pause is not None:
                    self._pause(copy, pause)
                elif kept is not None:
                    self._append(copy, kept, self._clock.wall_ms())
            self._wake.set()

        self._look_at(copy)
        self._truncator.begin(copy.partition, step, done)

    def _pause(self, copy: FollowedPartition, step: Pause) -> None:
        pause_s = self._pause_s(copy.failures)
        copy.not_before = asyncio.get_running_loop().time() + pause_s
        self._look_at(copy)
        copy.failures += 1
        is_young = copy.failures <= _QUIET_FAILURES
        passes = step.error in _PASSING or (is_young and step.error is ErrorCode.CORRUPT_MESSAGE)
        level = logging.WARNING if passes else logging.ERROR
        told = (step.error, level)
        if copy.told == told or (is_young and step.error in _OF_CHANGES):
            return
        copy.told = told
        log.log(
            level,
            "copying pauses partition=%s leader=%d leader_epoch=%d offset=%d error=%s reason=%s",
            copy.partition.topic_partition,
            self.leader,
            copy.leader_epoch,
            copy.partition.log.log_end_offset,
            step.error.name,
            step.reason,
        )
