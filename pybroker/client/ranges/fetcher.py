"""Reads one range by Fetch requests. Before the first batch, after each change of leader, and after
the last batch, the reader checks that the range is still valid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError, ConnectionLost, ResponseError
from pybroker.client.metadata import error_code
from pybroker.client.offset_lookup import ISOLATION_LEVELS
from pybroker.client.options import ConsumerOptions
from pybroker.client.ranges.counts import CountCheck, Difference, compacted
from pybroker.client.ranges.cursor import Batch, Gap, RangeCursor
from pybroker.client.ranges.model import PartitionRange, RangeFailed, RangeFault
from pybroker.client.ranges.validity import (
    aged_out,
    current_partitions,
    faults,
    from_metadata,
    gone,
)
from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.model import NO_EPOCH, NO_OFFSET
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

Deliver = Callable[[int, list[Batch]], Awaitable[None]]
"""A function that gets the next batches of the range, and the first offset that belongs to the
range. It returns when the reader wants more batches."""

FETCH_LANE: Final = "fetch"
NO_SESSION_EPOCH: Final = -1
NO_REPLICA: Final = -1
FETCH_BYTES_MIN: Final = 64 * 1024
RECORD_BYTES_GUESS: Final = 1024
"""The assumed size of a record, from which the first request computes its byte limit."""


@dataclass(frozen=True, slots=True)
class Patience:
    """For how many seconds a problem of each kind is tolerated before the reading fails. A problem
    may go away, because brokers learn of changes at different times."""

    stalled_s: float = 120.0
    """The maximum time without progress (kafkaConsumer.pollTimeoutMs)."""
    gone_s: float = 10.0
    recreated_s: float = 1.0
    corrupt_s: float = 10.0
    """The maximum time for which a batch stays damaged. The leader of a damaged log resigns if
    another replica can lead."""
    bare_s: float = 2.0
    """The maximum time for which the leader returns no batch although the whole range is
    readable."""

    def of(self, reason: RangeFault) -> float:
        known = {
            RangeFault.GONE: self.gone_s,
            RangeFault.RECREATED: self.recreated_s,
            RangeFault.CORRUPT: self.corrupt_s,
        }
        return known.get(reason, 0.0)


class _Doubtful(ClientError):
    """A problem that may be temporary. `failed` is the error that the reader raises if the problem
    lasts."""

    retriable = True

    def __init__(self, failed: RangeFailed) -> None:
        super().__init__(str(failed))
        self.failed = failed


class _NothingYet(ClientError):
    """The leader returned no batch, although the range is not read completely: ask again."""

    retriable = True


class RangeFetcher:
    """Fetches one range. Offsets of the range may be lost, and parts of the range may have been
    compacted since their records were counted. With `fail_on_data_loss`, lost offsets and compacted
    parts raise RangeFailed. Otherwise `lost` gets the offsets, and `compacted` the parts."""

    def __init__(
        self,
        cluster: Cluster,
        options: ConsumerOptions,
        wanted: PartitionRange,
        *,
        fail_on_data_loss: bool,
        patience: Patience,
    ) -> None:
        self.lost: list[Gap] = []
        self.compacted: list[Difference] = []
        self._cluster = cluster
        self._options = options
        self._wanted = wanted
        self._key = wanted.topic_partition
        self._fail_on_data_loss = fail_on_data_loss
        self._patience = patience
        self._cursor = RangeCursor(
            wanted, committed_only=options.isolation_level == "read_committed"
        )
        self._checked_epoch: int | None = None
        """The leader epoch of the last successful validity check."""
        self._bare_since: tuple[int, float] | None = None
        """The leader epoch, and the time at which the leader began to return no batch although the
        whole range is readable. None after any other response."""
        self._bytes_read = 0
        self._check = CountCheck(wanted.counts)

    async def read(self, deliver: Deliver) -> None:
        """Pass all batches of the range to `deliver`. Raises RangeFailed, and ClientErrors that are
        not retriable."""
        try:
            await self._read(deliver)
        except RangeFailed as failed:
            if not self._may_end_early(failed.reason):
                raise
            self._lose(self._cursor.position, self._cursor.end)

    async def _read(self, deliver: Deliver) -> None:
        cursor = self._cursor
        if cursor.done:
            return
        await self._watch_topic()
        await self._persist(self._look)
        while not cursor.done:
            batches = await self._persist(self._fetch)
            first = cursor.first
            different = self._compared(batches)
            if different and self._fail_on_data_loss:
                await self._report_differences(different)
            if batches:
                await deliver(first, batches)
            if different:  # after the check, which may move the cursor or end the reading
                await self._report_differences(different)
        await self._persist(self._look)

    def _compared(self, batches: list[Batch]) -> list[Difference]:
        """Compare the batches with the earlier record counts. Return the parts of the range whose
        records have changed since they were counted. A part is returned only after it was read
        completely. Raises RangeFailed for a batch that cannot be decoded."""
        cursor, check = self._cursor, self._check
        for header, batch in batches:
            try:
                check.add(header, batch, cursor.first)
            except (CorruptionError, BrokerError) as error:
                raise RangeFailed(
                    self._key,
                    header.base_offset,
                    RangeFault.CORRUPT,
                    f"the batch cannot be decoded: {error}; read the offsets before and after"
                    " this batch",
                ) from None
        return check.passed(cursor.position)

    async def _report_differences(self, different: list[Difference]) -> None:
        """First check the range: if the topic was recreated, this check raises RangeFailed. Then
        report the parts in `different`, except parts with lost offsets (`lost`). With
        `fail_on_data_loss`, raise RangeFailed for the first reported part. Otherwise add the
        reported parts to `compacted`."""
        await self._persist(self._look)
        for difference in different:
            counted = difference.counted
            if any(first < counted.beyond and counted.first < end for first, end in self.lost):
                continue
            if self._fail_on_data_loss:
                raise compacted(self._key, difference)
            self.compacted.append(difference)

    async def _watch_topic(self) -> None:
        """Add the topic to the metadata requests. If the metadata does not have the topic, wait for
        one refresh. A failed refresh is only logged."""
        cluster, topic = self._cluster, self._key.topic
        cluster.watch([topic])
        if topic not in cluster.view.topics:
            try:
                await cluster.refreshed(self._patience.stalled_s)
            except (TimeoutError, ClientError) as error:
                log.debug("topic not in the metadata yet partition=%s reason=%s", self._key, error)

    def _may_end_early(self, reason: RangeFault) -> bool:
        """Return whether `reason` ends the reading early without an error. With `fail_on_data_loss`
        the result is False. Otherwise the result is True if the partition no longer exists, or if
        the topic was recreated before the first batch was delivered."""
        if self._fail_on_data_loss:
            return False
        nothing_given = self._cursor.delivered == NO_OFFSET
        return reason is RangeFault.GONE or (reason is RangeFault.RECREATED and nothing_given)

    async def _persist(self, step: Callable[[], Awaitable[T]]) -> T:
        """Call `step` until it succeeds, and return its result. Raises RangeFailed if a problem
        lasts longer than `Patience` allows."""
        clock = self._cluster.clock
        deadline = Deadline(clock, int(self._patience.stalled_s * 1_000))
        doubted: RangeFault | None = None
        doubted_since = 0.0
        failures = 0
        problem: ClientError = _NothingYet("no broker responded")
        while True:
            try:
                async with asyncio.timeout(deadline.remaining_s()):
                    return await step()
            except TimeoutError:
                raise self._stalled(problem) from problem
            except _Doubtful as error:
                problem = error
                reason = error.failed.reason
                if reason is not doubted:
                    doubted, doubted_since = reason, clock.monotonic()
                elif clock.monotonic() - doubted_since >= self._patience.of(reason):
                    raise error.failed from None
            except ClientError as error:
                if not error.retriable or isinstance(error, RangeFailed):
                    raise
                problem, doubted = error, None
            failures += 1
            log.debug(
                "range not read, the reader repeats the step partition=%s reason=%s",
                self._key,
                problem,
            )
            pause = self._cluster.pause_s(failures)
            if deadline.remaining_s() <= pause:
                raise self._stalled(problem) from problem
            await asyncio.sleep(pause)
            try:
                await self._cluster.refreshed(deadline.remaining_s())
            except (TimeoutError, ClientError):
                pass

    def _stalled(self, problem: ClientError) -> RangeFailed:
        if isinstance(problem, _Doubtful):
            return problem.failed
        limit = f"{self._patience.stalled_s:g} s"
        return self._failed(
            RangeFault.STALLED,
            f"the client read nothing for {limit} ({problem}): check the partition's "
            "leader, or wait longer (kafkaConsumer.pollTimeoutMs)",
        )

    def _failed(self, reason: RangeFault, text: str) -> RangeFailed:
        return RangeFailed(self._key, self._cursor.position, reason, text)

    # The validity of the range

    async def _look(self) -> None:
        deadline = Deadline(self._cluster.clock, self._options.request_timeout_ms)
        epoch = self._epoch()
        answers = await current_partitions(self._cluster, [self._wanted], deadline, once=True)
        current = answers[self._key]
        if isinstance(current, ClientError):
            raise current
        for fault in faults(self._wanted, self._cursor.position, current):
            if fault.reason is RangeFault.AGED_OUT:
                self._pass_over_aged_out(current.log_start)
            elif fault.reason is RangeFault.TRUNCATED:
                self._cut_off(fault, current.epoch_end)
            else:
                raise _Doubtful(fault)
        if NO_EPOCH < epoch < self._wanted.leader_epoch:
            # The broker may have lost the leadership before the range was created.
            raise _NothingYet(
                f"the client's metadata has leader epoch {epoch}, which is below "
                f"the leader epoch {self._wanted.leader_epoch} of the range"
            )
        self._settle(self._cursor.gaps, current.log_start)
        self._cursor.gaps = []
        self._checked_epoch = epoch

    def _epoch(self) -> int:
        info = self._cluster.view.partition(self._key)
        return info.leader_epoch if info else NO_EPOCH

    def _pass_over_aged_out(self, log_start: int) -> None:
        cursor = self._cursor
        if self._fail_on_data_loss:
            raise aged_out(self._wanted, cursor.position, log_start)
        self._lose(cursor.position, min(log_start, cursor.end))
        cursor.skip_to(log_start)

    def _cut_off(self, fault: RangeFailed, end: int) -> None:
        """Shorten the range to `end`, where an unclean election has truncated the log. Raises
        `fault` if `fail_on_data_loss` is true, or if a record at or above `end` was already
        delivered."""
        cursor = self._cursor
        if cursor.end <= end:
            return  # the range was shortened before
        if self._fail_on_data_loss or cursor.delivered > end:
            raise fault
        cursor.end = max(end, self._wanted.start)
        cursor.position = min(cursor.position, cursor.end)
        self._lose(cursor.end, self._wanted.end)

    def _settle(self, gaps: list[Gap], log_start: int) -> None:
        """Record the offsets of `gaps` below `log_start` as lost. With `fail_on_data_loss`, raise
        RangeFailed for the first gap with such offsets. All other offsets were compacted, which is
        no loss."""
        for first, beyond in gaps:
            if log_start > first:
                if self._fail_on_data_loss:
                    raise aged_out(self._wanted, first, log_start)
                self._lose(first, min(log_start, beyond))

    def _lose(self, first: int, beyond: int) -> None:
        if first < beyond:
            self.lost.append((first, beyond))

    # Fetching

    async def _fetch(self) -> list[Batch]:
        """Send one Fetch request, and return the data batches of the response. The list may be
        empty."""
        cluster, key = self._cluster, self._key
        current = from_metadata(cluster.view, key)
        if current is not None and not current.known:
            raise _Doubtful(gone(self._wanted, self._cursor.position))
        leader, epoch = cluster.view.leader(key), self._epoch()
        if leader is None:
            raise ResponseError(ErrorCode.LEADER_NOT_AVAILABLE, f"{key} has no leader")
        if epoch != self._checked_epoch:
            await self._look()
            if self._cursor.done:
                return []
        node = cluster.view.nodes[leader]
        connection = await cluster.connect((node.host, node.port), FETCH_LANE)
        options = self._options
        response = await connection.send(
            ApiKey.FETCH,
            self._request(epoch),
            FetchResponse,
            timeout_s=(options.request_timeout_ms + options.fetch_max_wait_ms) / 1_000,
        )
        if response.error_code:
            code = error_code(response.error_code)
            raise ResponseError(code, place=f"fetching from broker {leader}")
        for topic in response.responses:
            for answer in topic.partitions:
                if (topic.topic, answer.partition_index) == key:
                    is_throttled = response.throttle_time_ms > 0
                    return await self._accept(answer, epoch, is_throttled)
        raise ConnectionLost(f"broker {leader} returned no result for {key}")

    def _request(self, leader_epoch: int) -> FetchRequest:
        options, cursor = self._options, self._cursor
        partition = FetchPartition(
            partition=self._key.partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=cursor.position,
            partition_max_bytes=self._bytes_due(),
        )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=options.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=options.fetch_max_bytes,
            isolation_level=ISOLATION_LEVELS[options.isolation_level],
            session_epoch=NO_SESSION_EPOCH,
            topics=[FetchTopic(topic=self._key.topic, partitions=[partition])],
        )

    def _bytes_due(self) -> int:
        """Return the number of bytes to request: the estimated size of the rest of the range."""
        cursor = self._cursor
        offsets_read = cursor.position - self._wanted.start
        each = self._bytes_read // offsets_read + 1 if self._bytes_read else RECORD_BYTES_GUESS
        due = (cursor.end - cursor.position) * each
        return min(max(due, FETCH_BYTES_MIN), self._options.max_partition_fetch_bytes)

    async def _accept(self, answer: PartitionData, epoch: int, is_throttled: bool) -> list[Batch]:
        cursor = self._cursor
        before = cursor.position
        code = error_code(answer.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._look()
            if cursor.position == before and not cursor.done:
                raise _NothingYet(f"offset {before} is outside the leader's log")
            return []
        if code == ErrorCode.CORRUPT_MESSAGE:
            raise _Doubtful(
                self._corrupt(f"the leader reports that the batch at offset {before} is corrupt")
            )
        if code:
            raise ResponseError(code, f"{self._key}, fetch at offset {before}: {code.text}")
        gaps, cursor.gaps = cursor.gaps, []
        aborted = [(row.first_offset, row.producer_id) for row in answer.aborted_transactions or ()]
        batches = cursor.accept(answer.records or b"", aborted, answer.high_watermark)
        self._settle([*gaps, *cursor.gaps], answer.log_start_offset)
        if cursor.position > before:
            self._bytes_read += len(answer.records or b"")
            self._bare_since = None
            return batches
        if cursor.damage is not None:
            raise _Doubtful(self._corrupt(cursor.damage))
        self._wait_or_pass_over(answer, epoch, is_throttled)
        return []

    def _corrupt(self, text: str) -> RangeFailed:
        return self._failed(
            RangeFault.CORRUPT,
            f"{text}. Elect another replica as the leader, or see the cause in the "
            "leader's log output",
        )

    def _wait_or_pass_over(self, answer: PartitionData, epoch: int, is_throttled: bool) -> None:
        """Handle a Fetch response without a batch. Raise _NothingYet if the request is to be
        repeated. If the whole range is readable at the leader, but the leader has returned no batch
        for some time, conclude that compaction has removed the rest of the range, and skip it."""
        cursor, now = self._cursor, self._cluster.clock.monotonic()
        committed = self._options.isolation_level == "read_committed"
        end = answer.last_stable_offset if committed else answer.high_watermark
        elsewhere = answer.preferred_read_replica != NO_REPLICA
        if end < cursor.end or is_throttled or elsewhere or answer.records:
            self._bare_since = None
            what = "last stable offset" if committed else "high watermark"
            raise _NothingYet(
                f"the leader returned no records: its {what} is {end}, and the range ends "
                f"at {cursor.end}"
            )
        if self._bare_since is None or self._bare_since[0] != epoch:
            self._bare_since = epoch, now
        if now - self._bare_since[1] < self._patience.bare_s or self._bare_since[1] == now:
            raise _NothingYet(
                f"the leader returned no records from offset {cursor.position} on, although the"
                f" offsets below {end} are readable"
            )
        cursor.gaps.append((cursor.position, cursor.end))
        cursor.skip_to(cursor.end)
