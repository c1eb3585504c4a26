"""Copies what other brokers lead: one task a source broker, which asks for all partitions at once.

`follower.py` decides what an answer means; this is the shell that asks, waits and lets the log be
written. A partition that fails is left alone for a while, a broker that cannot be reached as well,
each for twice as long as before; a command of the controller ends every pause. A partition that is
added while the leader still holds back its answer (up to replica.fetch.wait.max.ms) does not wait
for that: the fetch is given up and asked again with all partitions.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.model import TopicPartition
from pybroker.ports import (
    Blocking,
    Clock,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    LeaderChannel,
)
from pybroker.replication.follower import (
    Append,
    AskEnds,
    Pause,
    StartOver,
    Step,
    TruncateTo,
    after_answer,
    after_ends,
    position,
)
from pybroker.replication.partition import Partition

log = logging.getLogger(__name__)

_TURN_BYTES: Final = 2 * 1024 * 1024
"""After so much is appended, everybody else has a turn."""
_TURN_PARTITIONS: Final = 200
_PAUSE_FIRST_S: Final = 0.02
"""The first pause after a failure; each further one is twice as long, up to the option's."""
_ROUND_MS_MIN: Final = 10
"""The shortest wait at the leader when a paused partition is due soon."""


@dataclass(frozen=True, slots=True)
class FetcherOptions:
    """How followers fetch, with Kafka's options and defaults."""

    limits: FetchLimits = field(default_factory=FetchLimits)
    """replica.fetch.wait.max.ms, .min.bytes, .response.max.bytes and .max.bytes"""
    backoff_ms: int = 1_000
    """replica.fetch.backoff.ms: the longest pause after a failure."""


class Copy:
    """A partition that is followed, in one leader epoch."""

    __slots__ = ("failures", "leader_epoch", "not_before", "partition", "told")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.failures = 0
        self.not_before = 0.0
        """In the loop's time; infinite while something else is done with the log."""
        self.told: ErrorCode | None = None
        """The failure that has been logged."""


class ReplicaFetchers:
    """Owns the tasks that copy. Used from the event loop only."""

    def __init__(
        self,
        *,
        channel: Callable[[int], LeaderChannel],
        blocking: Blocking,
        clock: Clock,
        options: FetcherOptions,
    ) -> None:
        self._channel = channel
        self._blocking = blocking
        self._clock = clock
        self._options = options
        self._fetchers: dict[int, _Fetcher] = {}
        self._sources: dict[TopicPartition, _Fetcher] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def follow(self, partitions: Iterable[Partition]) -> None:
        """Copy each from the leader that it has now, from the log's end on."""
        if self._stopped:
            return
        by_leader: dict[int, list[Copy]] = {}
        for partition in partitions:
            self._forget(partition.topic_partition)
            assert partition.state is not None and not partition.is_leader
            by_leader.setdefault(partition.state.leader, []).append(Copy(partition))
        for leader, copies in by_leader.items():
            fetcher = self._fetchers.get(leader)
            if fetcher is None:
                fetcher = self._fetchers[leader] = _Fetcher(
                    leader, self._channel(leader), self._blocking, self._clock, self._options
                )
            for copy in copies:
                self._sources[copy.partition.topic_partition] = fetcher
            fetcher.add(copies)
        self._end_idle()

    def leave(self, keys: Iterable[TopicPartition]) -> None:
        """Copy these no more. What has been asked for may still come, and is dropped."""
        for key in keys:
            self._forget(key)
        self._end_idle()

    async def stop(self) -> None:
        """End all copying. Idempotent."""
        self._stopped = True
        self._sources.clear()
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        await asyncio.gather(*(fetcher.stop() for fetcher in fetchers), *self._ending)

    def _forget(self, key: TopicPartition) -> None:
        fetcher = self._sources.pop(key, None)
        if fetcher is not None:
            fetcher.copies.pop(key, None)

    def _end_idle(self) -> None:
        for leader, fetcher in list(self._fetchers.items()):
            if not fetcher.copies:
                del self._fetchers[leader]
                task = asyncio.create_task(fetcher.stop(), name=f"end fetcher {leader}")
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)


class _Fetcher:
    """Copies from one broker, from its making until `stop`."""

    def __init__(
        self,
        leader: int,
        channel: LeaderChannel,
        blocking: Blocking,
        clock: Clock,
        options: FetcherOptions,
    ) -> None:
        self.leader = leader
        self.copies: dict[TopicPartition, Copy] = {}
        self._channel = channel
        self._blocking = blocking
        self._clock = clock
        self._options = options
        self._news = asyncio.Event()
        self._failures = 0
        self._task = asyncio.create_task(self._run(), name=f"fetcher {leader}")

    def add(self, copies: Sequence[Copy]) -> None:
        self.copies.update((copy.partition.topic_partition, copy) for copy in copies)
        self._failures = 0
        self._news.set()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._channel.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            now = loop.time()
            positions, due = self._positions(now)
            if not positions:
                await self._wait_for_news(due - now)
                continue
            limits = self._options.limits
            if due - now < limits.max_wait_ms / 1000:
                until_due_ms = max(int((due - now) * 1000), _ROUND_MS_MIN)
                limits = replace(limits, max_wait_ms=until_due_ms)
            try:
                answers = await self._ask(positions, limits)
            except (PybrokerError, OSError, TimeoutError) as error:
                await self._leader_failed(error)
                continue
            if answers is not None:
                self._failures = 0
                await self._take(positions, answers)

    def _positions(self, now: float) -> tuple[dict[TopicPartition, FetchPosition], float]:
        """What to ask for now, and when the first of the others is due."""
        positions = {}
        due = float("inf")
        for key, copy in self.copies.items():
            if copy.not_before <= now:
                positions[key] = position(copy.partition.log, copy.leader_epoch)
            else:
                due = min(due, copy.not_before)
        return positions, due

    async def _wait_for_news(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s if timeout_s != float("inf") else None):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _ask(
        self, positions: dict[TopicPartition, FetchPosition], limits: FetchLimits
    ) -> Sequence[FetchedPartition] | None:
        """The answers, or None if other partitions were added meanwhile."""
        asked = asyncio.ensure_future(self._channel.fetch(positions, limits))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait([asked, news], return_when=asyncio.FIRST_COMPLETED)
            return asked.result() if asked.done() else None
        finally:
            news.cancel()
            if not asked.done():
                asked.cancel()
                await asyncio.wait([asked])

    async def _leader_failed(self, error: Exception) -> None:
        """Pause; a command of the controller ends it."""
        if not self._failures:
            log.warning("leader cannot be reached broker=%d error=%s", self.leader, error)
        pause_s = self._pause_s(self._failures)
        self._failures += 1
        await self._wait_for_news(pause_s)

    def _pause_s(self, failures: int) -> float:
        longest_s = self._options.backoff_ms / 1000
        return min(math.ldexp(_PAUSE_FIRST_S, min(failures, 20)), longest_s)

    async def _take(
        self, positions: dict[TopicPartition, FetchPosition], answers: Sequence[FetchedPartition]
    ) -> None:
        """Let each answer take effect, in turns."""
        now_ms = self._clock.wall_ms()
        appended = taken = 0
        for answer in answers:
            key = answer.topic_partition
            copy, asked = self.copies.get(key), positions.get(key)
            if copy is None or asked is None:
                continue
            if asked != position(copy.partition.log, copy.leader_epoch):
                continue  # the epoch or the log has changed since
            step = after_answer(copy.partition.log, answer)
            await self._carry_out(copy, step, answer, now_ms)
            appended += len(answer.records)
            taken += 1
            if appended >= _TURN_BYTES or taken >= _TURN_PARTITIONS:
                appended = taken = 0
                await asyncio.sleep(0)

    async def _carry_out(
        self, copy: Copy, step: Step, answer: FetchedPartition, now_ms: int
    ) -> None:
        try:
            if isinstance(step, AskEnds):
                step = await self._after_ends(copy)
            if isinstance(step, Append):
                copy.partition.append_replicated(
                    answer.records,
                    leader_high_watermark=answer.high_watermark,
                    leader_log_start=answer.log_start_offset,
                    now_ms=now_ms,
                )
                copy.failures, copy.told = 0, None
            elif isinstance(step, TruncateTo):
                copy.partition.truncate_to(step.offset)
            elif isinstance(step, StartOver):
                copy.partition.start_over(step.offset)
            elif isinstance(step, Pause):
                self._pause(copy, step)
        except BrokerError as error:
            self._pause(copy, Pause(error.code, error.detail))

    async def _after_ends(self, copy: Copy) -> Step:
        key = copy.partition.topic_partition
        start = await self._channel.earliest_offset(key, copy.leader_epoch)
        end = await self._channel.latest_offset(key, copy.leader_epoch)
        return after_ends(copy.partition.log, start, end)

    def _pause(self, copy: Copy, step: Pause) -> None:
        pause_s = self._pause_s(copy.failures)
        copy.not_before = asyncio.get_running_loop().time() + pause_s
        copy.failures += 1
        if copy.told is not step.error and copy.failures > 1:
            copy.told = step.error
            log.warning(
                "copying pauses partition=%s leader=%d leader_epoch=%d error=%s reason=%s",
                copy.partition.topic_partition,
                self.leader,
                copy.leader_epoch,
                step.error.name,
                step.reason,
            )
