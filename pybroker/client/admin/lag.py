"""The lag of groups, in records, bytes and time. Committed offsets are read before log offsets, so
a record that is consumed in between may count as lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pybroker.client.admin.calls import Calls
from pybroker.client.admin.group_offsets import committed_offsets
from pybroker.client.admin.log_dirs import describe_log_dirs
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, ResponseError
from pybroker.client.leader_calls import response_error
from pybroker.client.offset_lookup import EARLIEST, LATEST, OffsetAnswer, list_offsets
from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.group_lag import LogSpan, bytes_behind, records_behind, seconds_behind
from pybroker.model import NO_TIMESTAMP, TopicPartition
from pybroker.records.batch import iter_headers
from pybroker.records.record import decode_records
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

BATCHES_MAX: Final = 8
"""The maximum number of batches that the client fetches to find the first record at or after an
offset. It may need several, because transaction markers and batches emptied by compaction have no
records."""
TOGETHER_MAX: Final = 16
"""The maximum number of batches that the client fetches at the same time, each of another
partition. A batch may have more than a megabyte."""
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024

Position = tuple[TopicPartition, int]
"""A partition, and the offset of the next record that a consumer reads from it."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition.

    - `records`: the number of offsets from `committed` to `end_offset`, the high watermark.
    - `stable_records`: the number of offsets from `committed` to `last_stable_offset`, for
      read_committed.
    - `bytes`: estimated from the size of the leader's log; None if unknown.
    - `seconds`: the age of the oldest unread record; 0.0 if all records are read, None if unknown.

    If `error` is set, unknown offsets are -1 and the lag is None.
    """

    committed: int
    start_offset: int = -1
    last_stable_offset: int = -1
    end_offset: int = -1
    records: int | None = None
    stable_records: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    error: ClientError | None = None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group by partition. If the request failed, only `error` is set."""

    group_id: str
    partitions: Mapping[TopicPartition, PartitionLag] = field(default_factory=dict)
    error: ClientError | None = None

    def check(self) -> GroupLag:
        """Return the lag by partition. Raises `error`, or the first error of a partition."""
        for error in (self.error, *(row.error for row in self.partitions.values())):
            if error is not None:
                raise error
        return self


async def group_lag(
    calls: Calls, groups: Iterable[str], *, timeout_ms: int | None
) -> dict[str, GroupLag]:
    """Return the lag of each group, in each partition with a committed offset."""
    answers = await committed_offsets(
        calls, dict.fromkeys(groups), require_stable=False, timeout_ms=timeout_ms
    )
    rows = [
        (group, key, row)
        for group, answer in answers.items()
        for key, row in answer.offsets.items()
    ]
    positions = [(key, row.offset) for _, key, row in rows if row.error is None]
    found = iter(await position_lag(calls, positions, timeout_ms=timeout_ms))
    lags: dict[str, dict[TopicPartition, PartitionLag]] = {group: {} for group in answers}
    for group, key, row in rows:
        unknown = row.error is not None
        lags[group][key] = PartitionLag(-1, error=row.error) if unknown else next(found)
    return {group: GroupLag(group, lags[group], answer.error) for group, answer in answers.items()}


async def partition_lag(
    calls: Calls,
    committed: Mapping[TopicPartition, int],
    *,
    details: bool = True,
    timeout_ms: int | None,
) -> dict[TopicPartition, PartitionLag]:
    """Return for each partition the lag of its offset in `committed`."""
    lags = await position_lag(calls, [*committed.items()], details=details, timeout_ms=timeout_ms)
    return dict(zip(committed, lags, strict=True))


async def position_lag(
    calls: Calls,
    positions: Sequence[Position],
    *,
    details: bool = True,
    timeout_ms: int | None,
) -> list[PartitionLag]:
    """Return the lag of each (partition, offset) pair, in the given order. Without `details`, the
    lag in bytes and in seconds is None."""
    calls.check_opened()
    spans, problems = await _spans(calls, {key for key, _ in positions}, timeout_ms)
    behind = {
        (key, max(offset, spans[key].start))
        for key, offset in positions
        if key in spans and offset < spans[key].end
    }
    sizes = await _sizes(calls, spans, timeout_ms) if details else {}
    times = await _timestamps(calls, behind, timeout_ms) if details else {}
    now_ms = calls.cluster.clock.wall_ms()

    def one(key: TopicPartition, offset: int) -> PartitionLag:
        if key in problems:
            return PartitionLag(offset, error=problems[key])
        span = replace(spans[key], size_bytes=sizes.get(key))
        timestamp = times.get((key, max(offset, span.start)), NO_TIMESTAMP)
        return PartitionLag(
            offset,
            span.start,
            span.stable,
            span.end,
            records_behind(offset, span.end),
            records_behind(offset, span.stable),
            bytes_behind(offset, span),
            seconds_behind(timestamp, now_ms) if offset < span.end else 0.0,
        )

    return [one(*position) for position in positions]


async def _spans(
    calls: Calls, partitions: Iterable[TopicPartition], timeout_ms: int | None
) -> tuple[dict[TopicPartition, LogSpan], dict[TopicPartition, ClientError]]:
    """Return the log start offset, last stable offset and high watermark of each partition, and the
    errors of the partitions that failed."""
    wanted = sorted(partitions)
    starts = await _ends(calls, wanted, EARLIEST, "read_uncommitted", timeout_ms)
    stables = await _ends(calls, wanted, LATEST, "read_committed", timeout_ms)
    ends = await _ends(calls, wanted, LATEST, "read_uncommitted", timeout_ms)
    spans: dict[TopicPartition, LogSpan] = {}
    problems: dict[TopicPartition, ClientError] = {}
    for key in wanted:
        answers = (starts[key], stables[key], ends[key])
        error = next((answer.error for answer in answers if answer.error is not None), None)
        if error is not None:
            problems[key] = error
        else:
            spans[key] = _span(answers)
    return spans, problems


async def _ends(
    calls: Calls,
    partitions: Iterable[TopicPartition],
    moment: int,
    isolation_level: str,
    timeout_ms: int | None,
) -> dict[TopicPartition, OffsetAnswer]:
    return await list_offsets(
        calls.cluster,
        dict.fromkeys(partitions, moment),
        isolation_level=isolation_level,
        deadline=calls.deadline(timeout_ms),
    )


def _span(answers: Sequence[OffsetAnswer]) -> LogSpan:
    """Return the log start offset, the last stable offset and the high watermark. `answers` has
    them in this order, from one request each. The leader can change between the requests. So if an
    offset is smaller than the offset before it, it is replaced by that offset."""
    start, stable, end = (answer.offset for answer in answers)
    return LogSpan(start, max(start, stable), max(start, stable, end))


async def _sizes(
    calls: Calls, partitions: Iterable[TopicPartition], timeout_ms: int | None
) -> dict[TopicPartition, int]:
    """Return partition -> size of its log on the leader, in bytes. Failed partitions are
    omitted."""
    wanted = list(partitions)
    leaders = {key: calls.cluster.view.leader(key) for key in wanted}
    brokers = {node for node in leaders.values() if node is not None}
    if not brokers:
        return {}
    answers = await describe_log_dirs(calls, brokers, wanted, timeout_ms=timeout_ms)
    return {
        key: replica.size
        for broker, answer in answers.items()
        for directory in answer.dirs
        for key, replica in directory.replicas.items()
        if leaders.get(key) == broker and not replica.future
    }


async def _timestamps(
    calls: Calls, positions: Iterable[Position], timeout_ms: int | None
) -> dict[Position, int]:
    """Return for each (partition, offset) position the timestamp, in ms since 1970, of the first
    record at or after the offset. Positions whose request failed are omitted."""
    offsets: dict[TopicPartition, list[int]] = {}
    for key, offset in sorted(positions):
        offsets.setdefault(key, []).append(offset)

    async def ask(
        connection: Connection, partitions: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, dict[int, int] | ClientError]:
        wanted = [(key, offset) for key in partitions for offset in offsets[key]]
        found: dict[TopicPartition, dict[int, int] | ClientError] = {key: {} for key in partitions}
        for index in range(0, len(wanted), TOGETHER_MAX):
            some = wanted[index : index + TOGETHER_MAX]
            answers = await asyncio.gather(
                *(_timestamp(connection, key, offset, timeout_s) for key, offset in some)
            )
            for (key, offset), answer in zip(some, answers, strict=True):
                times = found[key]
                if isinstance(answer, ClientError):
                    found[key] = answer
                elif not isinstance(times, ClientError):
                    times[offset] = answer
        return found

    answers = await calls.leaders(offsets, ask, timeout_ms)
    return {
        (key, offset): timestamp
        for key, times in answers.items()
        if not isinstance(times, ClientError)
        for offset, timestamp in times.items()
    }


async def _timestamp(
    connection: Connection, key: TopicPartition, offset: int, timeout_s: float
) -> int | ClientError:
    """Return the timestamp, in ms since 1970, of the first record at or after `offset`, or the
    error of the request. NO_TIMESTAMP means that no such record was found."""
    position = offset
    for _ in range(BATCHES_MAX):
        answer = await connection.send(
            ApiKey.FETCH, _fetch(key, position), FetchResponse, timeout_s=timeout_s
        )
        data = next((row for topic in answer.responses for row in topic.partitions), None)
        error = response_error(answer.error_code or (data.error_code if data else 0))
        if error is not None:
            return error
        records = data.records if data is not None else None
        if not records:
            break
        try:
            timestamp, position = _first_timestamp(memoryview(records), offset)
        except (CorruptionError, BrokerError) as problem:
            return ResponseError(ErrorCode.CORRUPT_MESSAGE, f"{key} at {position}: {problem}")
        if timestamp is not None:
            return timestamp
    return NO_TIMESTAMP


def _first_timestamp(records: memoryview, offset: int) -> tuple[int | None, int]:
    """Return two values: the timestamp (ms since 1970) of the first record at or after `offset`
    (None: no such record), and the offset after the last batch that was looked at. Raises
    CorruptionError, BrokerError."""
    position = offset
    for start, header in iter_headers(records):
        position = header.next_offset
        if header.is_control or header.last_offset < offset:
            continue
        batch = records[start : start + header.size]
        for record in decode_records(batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX):
            if record.offset >= offset:
                return record.timestamp, position
    return None, position


def _fetch(key: TopicPartition, offset: int) -> FetchRequest:
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        topics=[
            FetchTopic(
                topic=key.topic,
                partitions=[
                    FetchPartition(
                        partition=key.partition, fetch_offset=offset, partition_max_bytes=1
                    )
                ],
            )
        ],
    )
