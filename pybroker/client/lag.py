"""How far groups are behind: in records, in bytes and in time.

What was committed is read first, and everything about the log after it, so that a record which is
read and committed in between is at worst counted as not yet read. The arithmetic, with what its
numbers mean, is in `pybroker.group_lag`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.admin_calls import Calls
from pybroker.client.admin_group_offsets import committed_offsets
from pybroker.client.admin_log_dirs import describe_log_dirs
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
"""Batches that are looked at for the first record at or after an offset: those of markers of
transactions, and those that compaction has emptied, have none."""
TOGETHER_MAX: Final = 16
"""Partitions of which a batch is fetched at a time; a batch may have a megabyte and more."""
DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind in one partition.

    `records` counts offsets from `committed` to `end_offset`, the high watermark; `stable_records`
    to `last_stable_offset`, which is all that a consumer with isolation level read_committed can
    see. `bytes` is estimated from the size of the leader's log. `seconds` is the age of the oldest
    record that is not consumed, 0.0 if all are; None if it is not known (bytes too). No number is
    negative. With an `error` nothing but `committed` is known, and the offsets are -1.
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
    """The partitions of which a group has committed an offset, or the error."""

    group_id: str
    partitions: Mapping[TopicPartition, PartitionLag] = field(default_factory=dict)
    error: ClientError | None = None

    def check(self) -> GroupLag:
        """Itself; raises `error`, or that of the first partition that has one."""
        for error in (self.error, *(row.error for row in self.partitions.values())):
            if error is not None:
                raise error
        return self


async def group_lag(
    calls: Calls, groups: Iterable[str], *, timeout_ms: int | None
) -> dict[str, GroupLag]:
    """One result a group."""
    committed = await committed_offsets(
        calls, dict.fromkeys(groups), require_stable=False, timeout_ms=timeout_ms
    )
    found: dict[str, GroupLag] = {}
    for group, answer in committed.items():
        good = {key: row.offset for key, row in answer.offsets.items() if row.error is None}
        lags = await partition_lag(calls, good, timeout_ms=timeout_ms)
        for key, row in answer.offsets.items():
            if row.error is not None:
                lags[key] = PartitionLag(-1, error=row.error)
        found[group] = GroupLag(group, dict(sorted(lags.items())), answer.error)
    return found


async def partition_lag(
    calls: Calls,
    committed: Mapping[TopicPartition, int],
    *,
    details: bool = True,
    timeout_ms: int | None,
) -> dict[TopicPartition, PartitionLag]:
    """The lag behind these offsets, which were read before. One result a partition, in their
    order. Without `details` bytes and seconds are not asked for."""
    calls.check_opened()
    starts = await _ends(calls, committed, EARLIEST, "read_uncommitted", timeout_ms)
    stables = await _ends(calls, committed, LATEST, "read_committed", timeout_ms)
    ends = await _ends(calls, committed, LATEST, "read_uncommitted", timeout_ms)
    problems: dict[TopicPartition, ClientError] = {}
    spans: dict[TopicPartition, LogSpan] = {}
    for key in committed:
        answers = (starts[key], stables[key], ends[key])
        error = next((answer.error for answer in answers if answer.error is not None), None)
        if error is not None:
            problems[key] = error
        else:
            spans[key] = _span(answers)
    behind = {
        key: max(committed[key], span.start)
        for key, span in spans.items()
        if committed[key] < span.end
    }
    sizes = await _sizes(calls, spans, timeout_ms) if details else {}
    times = await _timestamps(calls, behind, timeout_ms) if details else {}
    now_ms = calls.cluster.clock.wall_ms()
    found: dict[TopicPartition, PartitionLag] = {}
    for key, offset in committed.items():
        if key in problems:
            found[key] = PartitionLag(offset, error=problems[key])
            continue
        span = LogSpan(spans[key].start, spans[key].stable, spans[key].end, sizes.get(key))
        found[key] = PartitionLag(
            offset,
            span.start,
            span.stable,
            span.end,
            records_behind(offset, span.end),
            records_behind(offset, span.stable),
            bytes_behind(offset, span),
            seconds_behind(times.get(key, NO_TIMESTAMP), now_ms) if key in behind else 0.0,
        )
    return found


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
    """Between two questions the leader may have changed; the later answer cannot be below."""
    start, stable, end = (answer.offset for answer in answers)
    return LogSpan(start, max(start, stable), max(start, stable, end))


async def _sizes(
    calls: Calls, partitions: Iterable[TopicPartition], timeout_ms: int | None
) -> dict[TopicPartition, int]:
    """The bytes of the leaders' logs, as far as they can be had."""
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
    calls: Calls, offsets: Mapping[TopicPartition, int], timeout_ms: int | None
) -> dict[TopicPartition, int]:
    """The time of the first record at or after each offset, in ms; left out where there is none or
    it cannot be had."""

    async def ask(
        connection: Connection, partitions: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, int | ClientError]:
        found: dict[TopicPartition, int | ClientError] = {}
        for index in range(0, len(partitions), TOGETHER_MAX):
            some = partitions[index : index + TOGETHER_MAX]
            answers = await asyncio.gather(
                *(_timestamp(connection, key, offsets[key], timeout_s) for key in some)
            )
            found.update(zip(some, answers, strict=True))
        return found

    answers = await calls.leaders(offsets, ask, timeout_ms)
    return {key: answer for key, answer in answers.items() if not isinstance(answer, ClientError)}


async def _timestamp(
    connection: Connection, key: TopicPartition, offset: int, timeout_s: float
) -> int | ClientError:
    """The leader answers with the batch that holds the offset, however small the limit is."""
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
    """The time of the first record at or after `offset`, if these batches have one, and where to
    go on if not. Raises CorruptionError, BrokerError."""
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
