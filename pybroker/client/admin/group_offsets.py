"""Committed offsets of groups, read and changed by an admin client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.client.admin.calls import Calls
from pybroker.client.admin.log_dirs import by_topic
from pybroker.client.connection import Connection
from pybroker.client.coordinator_calls import ask_coordinators
from pybroker.client.errors import ClientError, ResponseError, UnsupportedByBroker
from pybroker.client.leader_calls import response_error
from pybroker.client.metadata import Node
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

ALL_VERSION: Final = 2
STABLE_VERSION: Final = 7
SEVERAL_GROUPS_VERSION: Final = 8


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in a partition. `offset` is the next offset to read.
    `leader_epoch` is that of the last read record, -1 if unknown. `metadata` is the consumer's
    text. If the request failed, only `error` is set."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    error: ClientError | None = None


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The committed offsets of a group by partition. If the request failed, only `error` is set."""

    group_id: str
    offsets: Mapping[TopicPartition, CommittedOffset] = field(default_factory=dict)
    error: ClientError | None = None

    def check(self) -> GroupOffsets:
        """Return the offsets by partition. Raises `error`, or the first error of a partition."""
        for error in (self.error, *(row.error for row in self.offsets.values())):
            if error is not None:
                raise error
        return self


async def committed_offsets(
    calls: Calls,
    groups: Mapping[str, Iterable[TopicPartition] | None],
    *,
    require_stable: bool,
    timeout_ms: int | None,
) -> dict[str, GroupOffsets]:
    """Return one result for each group, with the offsets in the given partitions (None: all). With
    `require_stable`, wait until these partitions have no pending transactional offset commits."""
    calls.check_opened()
    wanted = {
        group: None if partitions is None else by_topic(partitions)
        for group, partitions in groups.items()
    }

    async def ask(
        connection: Connection, _: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, GroupOffsets | ClientError]:
        version = connection.version_of(ApiKey.OFFSET_FETCH)
        needed = STABLE_VERSION if require_stable else ALL_VERSION
        if version < needed:
            purpose = "require_stable" if require_stable else "all offsets of a group"
            raise UnsupportedByBroker(
                f"the broker supports OffsetFetch up to version {version}, but the call "
                f"needs version {needed} or above for {purpose}"
            )
        several = version >= SEVERAL_GROUPS_VERSION
        requests = [chosen] if several else [(group,) for group in chosen]
        found: dict[str, GroupOffsets | ClientError] = {}
        for groups_together in requests:
            answer = await connection.send(
                ApiKey.OFFSET_FETCH,
                _fetch_request({name: wanted[name] for name in groups_together}, require_stable)
                if several
                else _single_fetch_request(groups_together[0], wanted, require_stable),
                OffsetFetchResponse,
                timeout_s=timeout_s,
            )
            if several:
                for row in answer.groups:
                    found[row.group_id] = _offsets(row.group_id, row.error_code, row.topics)
            else:
                name = groups_together[0]
                found[name] = _offsets(name, answer.error_code, answer.topics)
        return found

    answers = await ask_coordinators(
        calls.cluster, wanted, ask, deadline=calls.deadline(timeout_ms)
    )
    return {
        group: GroupOffsets(group, error=answer) if isinstance(answer, ClientError) else answer
        for group, answer in answers.items()
    }


async def alter_offsets(
    calls: Calls,
    group: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    *,
    timeout_ms: int | None,
) -> dict[TopicPartition, ClientError | None]:
    """Commit offsets for a group without members. Return None for each committed offset, else the
    error. Raises ClientError if the coordinator does not answer."""
    calls.check_opened()
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, number), row in offsets.items():
        topics.setdefault(name, OffsetCommitRequestTopic(name=name)).partitions.append(
            OffsetCommitRequestPartition(
                partition_index=number,
                committed_offset=row.offset,
                committed_leader_epoch=row.leader_epoch,
                committed_metadata=row.metadata,
            )
        )
    request = OffsetCommitRequest(group_id=group, topics=list(topics.values()))

    async def ask(
        connection: Connection, _: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, dict[TopicPartition, ClientError | None] | ClientError]:
        answer = await connection.send(
            ApiKey.OFFSET_COMMIT, request, OffsetCommitResponse, timeout_s=timeout_s
        )
        refusal = _refusal(row.error_code for topic in answer.topics for row in topic.partitions)
        found: dict[TopicPartition, ClientError | None] = {
            TopicPartition(topic.name, row.partition_index): response_error(row.error_code)
            for topic in answer.topics
            for row in topic.partitions
        }
        return {group: refusal or found}

    answers = await ask_coordinators(
        calls.cluster, [group], ask, deadline=calls.deadline(timeout_ms)
    )
    return _by_partition(answers[group], offsets)


async def delete_offsets(
    calls: Calls,
    group: str,
    partitions: Iterable[TopicPartition],
    *,
    timeout_ms: int | None,
) -> dict[TopicPartition, ClientError | None]:
    """Delete a group's committed offsets, as `Admin.delete_offsets` describes. Raises ClientError
    if the whole request fails."""
    calls.check_opened()
    wanted = list(dict.fromkeys(partitions))
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name,
                partitions=[
                    OffsetDeleteRequestPartition(partition_index=number) for number in numbers
                ],
            )
            for name, numbers in by_topic(wanted).items()
        ],
    )

    async def ask(
        connection: Connection, _: Node, chosen: tuple[str, ...], timeout_s: float
    ) -> dict[str, dict[TopicPartition, ClientError | None] | ClientError]:
        answer = await connection.send(
            ApiKey.OFFSET_DELETE, request, OffsetDeleteResponse, timeout_s=timeout_s
        )
        found: dict[TopicPartition, ClientError | None] = {
            TopicPartition(topic.name, row.partition_index): response_error(row.error_code)
            for topic in answer.topics
            for row in topic.partitions
        }
        return {group: response_error(answer.error_code) or found}

    answers = await ask_coordinators(
        calls.cluster, [group], ask, deadline=calls.deadline(timeout_ms)
    )
    return _by_partition(answers[group], wanted)


_NOT_ANSWERED = ResponseError(
    ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator's response has no result for the partition"
)
_FOR_THE_WHOLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""The error codes that a coordinator returns for each partition although the reason concerns the
whole group. The coordinator changed nothing, so the client retries the request."""


def _refusal(codes: Iterable[int]) -> ResponseError | None:
    return next((response_error(code) for code in codes if code in _FOR_THE_WHOLE), None)


def _by_partition(
    answer: dict[TopicPartition, ClientError | None] | ClientError,
    wanted: Iterable[TopicPartition],
) -> dict[TopicPartition, ClientError | None]:
    if isinstance(answer, ClientError):
        raise answer
    return {item: answer.get(item, _NOT_ANSWERED) for item in wanted}


def _fetch_request(
    wanted: Mapping[str, Mapping[str, list[int]] | None], require_stable: bool
) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else [
                    OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                    for name, numbers in topics.items()
                ],
            )
            for group, topics in wanted.items()
        ],
        require_stable=require_stable,
    )


def _single_fetch_request(
    group: str, wanted: Mapping[str, Mapping[str, list[int]] | None], require_stable: bool
) -> OffsetFetchRequest:
    topics = wanted[group]
    return OffsetFetchRequest(
        group_id=group,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
            for name, numbers in topics.items()
        ],
        require_stable=require_stable,
    )


def _offsets(
    group: str,
    error_code: int,
    topics: Iterable[OffsetFetchResponseTopic | OffsetFetchResponseTopics],
) -> GroupOffsets | ClientError:
    """Return the offsets of one group in an OffsetFetch response. If a partition has a retriable
    error, return only this error, so that the whole group is requested again."""
    if error := response_error(error_code):
        return error
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in topics:
        for row in topic.partitions:
            problem = response_error(row.error_code)
            if problem is not None and problem.code in _FOR_THE_WHOLE:
                return problem
            if problem is not None or row.committed_offset >= 0:
                found[TopicPartition(topic.name, row.partition_index)] = CommittedOffset(
                    row.committed_offset, row.committed_leader_epoch, row.metadata or "", problem
                )
    return GroupOffsets(group, dict(sorted(found.items())))
