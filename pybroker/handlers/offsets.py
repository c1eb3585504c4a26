"""OffsetCommit, OffsetFetch and OffsetDelete: the committed offsets of groups. Every broker answers
version 0 of OffsetCommit and OffsetFetch, because version 0 keeps the offsets in ZooKeeper
(/consumers/GROUP/offsets)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from pybroker.coordinator.groups.calls import Identity
from pybroker.coordinator.groups.coordinator import GroupCoordinator
from pybroker.coordinator.groups.dependencies import GroupFacts
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.states import GroupState
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.model import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP, TopicPartition
from pybroker.replication.authority import NEEDED
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from pybroker.wire.messages.transactions import TxnOffsetCommitRequestPartition
from pybroker.yield_every import yield_every

_FIRST_WITH_ERROR_FOR_ALL = 2
_FIRST_WITH_GROUPS = 8
_CONSUMER = "consumer"
_TIME_MAX_MS = 2**63 - 1

ItemT = TypeVar("ItemT", OffsetCommitRequestPartition, TxnOffsetCommitRequestPartition)
Found = Mapping[TopicPartition, CommittedOffset | ErrorCode]
"""Partition -> its committed offset, or an error. A partition without a committed offset has no
entry."""


# ---- OffsetCommit


async def handle_offset_commit(
    services: Services, request: Request, message: OffsetCommitRequest
) -> OffsetCommitResponse:
    items = ((topic.name, item) for topic in message.topics for item in topic.partitions)
    codes, wanted = await checked(services, items)
    if wanted:
        codes.update(await _commit(services, request, message, wanted))
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=item.partition_index,
                        error_code=codes[TopicPartition(topic.name, item.partition_index)],
                    )
                    for item in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


async def checked(
    services: Services, items: Iterable[tuple[str, ItemT]]
) -> tuple[dict[TopicPartition, ErrorCode], dict[TopicPartition, ItemT]]:
    """Check the requests of a commit. `items` has pairs (topic name, request for one partition).
    Return each partition's error code, and the requests that have no error. The last request for a
    partition counts."""
    codes: dict[TopicPartition, ErrorCode] = {}
    wanted: dict[TopicPartition, ItemT] = {}
    async for name, item in yield_every(items):
        key = TopicPartition(name, item.partition_index)
        codes[key] = offset_fault(services, key, item.committed_metadata)
        wanted.pop(key, None)
        if codes[key] is ErrorCode.NONE:
            wanted[key] = item
    return codes, wanted


def offset_fault(services: Services, key: TopicPartition, metadata: str | None) -> ErrorCode:
    """Return the error that prevents the commit of an offset with this metadata, or NONE."""
    if not services.metadata.exists(key):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(metadata or "") > services.config.offset_metadata_max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def require_lease(services: Services) -> None:
    """Raise BrokerError COORDINATOR_NOT_AVAILABLE if this broker must not commit offsets at
    present, because ZooKeeper has not answered the broker recently (`ZooKeeperLease`)."""
    if services.replicas.lease < NEEDED["OffsetCommit"]:
        raise BrokerError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "this broker cannot commit offsets now, because ZooKeeper does not answer it",
        )


async def _commit(
    services: Services,
    request: Request,
    message: OffsetCommitRequest,
    wanted: Mapping[TopicPartition, OffsetCommitRequestPartition],
) -> Mapping[TopicPartition, ErrorCode]:
    try:
        require_lease(services)
        if request.version == 0:
            services.groups.check_group_id(message.group_id)
            return await services.classic_offsets.write(
                message.group_id, {key: item.committed_offset for key, item in wanted.items()}
            )
        shard = services.groups.shard_of(message.group_id)
        who = Identity(message.member_id, message.group_instance_id)
        code = shard.may_commit(message.group_id, who, message.generation_id)
        if code is not ErrorCode.NONE:
            return dict.fromkeys(wanted, code)
        now_ms = services.clock.wall_ms()
        values = {key: _value(item, message, now_ms) for key, item in wanted.items()}
        return await shard.offsets.commit(message.group_id, values)
    except BrokerError as error:
        return dict.fromkeys(wanted, error.code)


def _value(
    item: OffsetCommitRequestPartition, message: OffsetCommitRequest, now_ms: int
) -> CommittedOffset:
    own_time = item.commit_timestamp != NO_TIMESTAMP
    retention_ms = message.retention_time_ms
    return CommittedOffset(
        item.committed_offset,
        item.committed_leader_epoch,
        item.committed_metadata or "",
        item.commit_timestamp if own_time else now_ms,
        NO_TIMESTAMP if retention_ms < 0 else min(now_ms + retention_ms, _TIME_MAX_MS),
    )


# ---- OffsetFetch


async def handle_offset_fetch(
    services: Services, request: Request, message: OffsetFetchRequest
) -> OffsetFetchResponse:
    if request.version == 0:
        return await _fetch_classic(services, message)
    if request.version >= _FIRST_WITH_GROUPS:
        groups = []
        for group_id, topics in _by_group(message.groups).items():
            groups.append(await _fetch_group(services, group_id, topics, message.require_stable))
        return OffsetFetchResponse(groups=groups)
    wanted = None if message.topics is None else _keys(message.topics)
    try:
        found = await _fetch(services, message.group_id, wanted, message.require_stable)
    except BrokerError as error:
        return await _failed_fetch(request.version, message, error.code)
    return OffsetFetchResponse(topics=await _topics(message.topics, found))


def _by_group(
    groups: Iterable[OffsetFetchRequestGroup],
) -> dict[str, list[OffsetFetchRequestTopics] | None]:
    """Return group id -> requested topics of the group. The value None requests all topics.
    Repetitions of a group are merged, because they could cause a very large response."""
    wanted: dict[str, list[OffsetFetchRequestTopics] | None] = {}
    for group in groups:
        if group.topics is None:
            wanted[group.group_id] = None
        elif (known := wanted.setdefault(group.group_id, [])) is not None:
            known += group.topics
    return wanted


async def _failed_fetch(
    version: int, message: OffsetFetchRequest, code: ErrorCode
) -> OffsetFetchResponse:
    """Return the response to an OffsetFetch that failed with `code`: one error, or in old versions
    an error for each partition."""
    if version >= _FIRST_WITH_ERROR_FOR_ALL:
        return OffsetFetchResponse(error_code=code)
    return OffsetFetchResponse(
        topics=await _topics(message.topics, dict.fromkeys(_keys(message.topics or []), code))
    )


async def _fetch_group(
    services: Services,
    group_id: str,
    topics: list[OffsetFetchRequestTopics] | None,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    try:
        wanted = None if topics is None else _keys(topics)
        found = await _fetch(services, group_id, wanted, require_stable)
    except BrokerError as error:
        return OffsetFetchResponseGroup(group_id=group_id, error_code=error.code)
    return OffsetFetchResponseGroup(
        group_id=group_id,
        topics=[
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=part.partition_index,
                        committed_offset=part.committed_offset,
                        committed_leader_epoch=part.committed_leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in await _topics(topics, found)
        ],
    )


async def _fetch(
    services: Services,
    group_id: str,
    wanted: Collection[TopicPartition] | None,
    require_stable: bool,
) -> Found:
    """Return the group's offsets for the partitions `wanted` (None: all). If `require_stable` is
    True, pending transactional commits give UNSTABLE_OFFSET_COMMIT. Raise BrokerError if this
    broker is not the coordinator."""
    shard = services.groups.shard_of(group_id)
    unstable = set(shard.offsets.undecided(group_id)) if require_stable else set()
    found: dict[TopicPartition, CommittedOffset | ErrorCode] = {
        **await shard.offsets.fetch(group_id, wanted)
    }
    for key in unstable if wanted is None else unstable.intersection(wanted):
        found[key] = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return found


async def _fetch_classic(services: Services, message: OffsetFetchRequest) -> OffsetFetchResponse:
    keys = _keys(message.topics or [])
    found: dict[TopicPartition, CommittedOffset | ErrorCode]
    found = dict.fromkeys(keys, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    try:
        services.groups.check_group_id(message.group_id)
        known = [key for key in found if services.metadata.exists(key)]
        values = await services.classic_offsets.read(message.group_id, known)
        for key, value in zip(known, values, strict=True):
            if isinstance(value, ErrorCode):
                found[key] = value
            elif value is not None:
                found[key] = CommittedOffset(value)
    except BrokerError as error:
        found = dict.fromkeys(keys, error.code)
    return OffsetFetchResponse(topics=await _topics(message.topics, found))


def _keys(
    topics: Iterable[OffsetFetchRequestTopic | OffsetFetchRequestTopics],
) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes
    ]


async def _topics(
    wanted: Sequence[OffsetFetchRequestTopic | OffsetFetchRequestTopics] | None, found: Found
) -> list[OffsetFetchResponseTopic]:
    """Return the results for the partitions in `wanted` (None: all in `found`). Each partition
    occurs once, as in Kafka, since repetitions could cause a very large response."""
    asked: dict[str, dict[int, None]] = {}
    if wanted is None:
        for key in sorted(found):
            asked.setdefault(key.topic, {})[key.partition] = None
    else:
        for topic in wanted:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    answers = {name: OffsetFetchResponseTopic(name=name, partitions=[]) for name in asked}
    items = (TopicPartition(name, number) for name, numbers in asked.items() for number in numbers)
    async for key in yield_every(items):
        answers[key.topic].partitions.append(_answer(key.partition, found.get(key)))
    return [*answers.values()]


def _answer(
    partition: int, found: CommittedOffset | ErrorCode | None
) -> OffsetFetchResponsePartition:
    if isinstance(found, CommittedOffset):
        return OffsetFetchResponsePartition(
            partition_index=partition,
            committed_offset=found.offset,
            committed_leader_epoch=found.leader_epoch,
            metadata=found.metadata,
        )
    return OffsetFetchResponsePartition(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_EPOCH,
        metadata="",
        error_code=ErrorCode.NONE if found is None else found,
    )


# ---- OffsetDelete


async def handle_offset_delete(
    services: Services, request: Request, message: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    codes: dict[TopicPartition, ErrorCode] = {}
    items = ((topic.name, item) for topic in message.topics for item in topic.partitions)
    try:
        shard = services.groups.shard_of(message.group_id)
        is_read = await _topics_in_use(shard, message.group_id)
        async for name, item in yield_every(items):
            key = TopicPartition(name, item.partition_index)
            codes[key] = _deletion_fault(services, key, is_read)
        wanted = [key for key, code in codes.items() if code is ErrorCode.NONE]
        if wanted:
            codes.update(await shard.offsets.delete(message.group_id, wanted))
    except BrokerError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=item.partition_index,
                        error_code=codes[TopicPartition(topic.name, item.partition_index)],
                    )
                    for item in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _deletion_fault(
    services: Services, key: TopicPartition, is_read: Callable[[str], bool]
) -> ErrorCode:
    if not services.metadata.exists(key):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if is_read(key.topic) else ErrorCode.NONE


async def _topics_in_use(shard: GroupCoordinator, group_id: str) -> Callable[[str], bool]:
    """Return a function that says whether the group is subscribed to a topic. Raise BrokerError
    GROUP_ID_NOT_FOUND if the group does not exist or is being deleted. Raise BrokerError
    NON_EMPTY_GROUP if the members are not consumers."""
    facts: GroupFacts | None = shard.facts(group_id)
    if facts is None:
        if not await shard.has_offsets(group_id):
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return lambda topic: False
    if facts.state is GroupState.DEAD:
        raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"the group {group_id} is being deleted")
    if facts.state is GroupState.EMPTY:
        return lambda topic: False
    if facts.protocol_type != _CONSUMER:
        raise BrokerError(
            ErrorCode.NON_EMPTY_GROUP, f"the group {group_id} has members that are not consumers"
        )
    topics = facts.topics
    return lambda topic: topics is None or topic in topics
