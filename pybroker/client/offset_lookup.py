"""Where in a partition a moment lies: ListOffsets, sent to each leader, until all have answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster, leaders
from pybroker.client.errors import (
    ClientError,
    DeadlinePassed,
    ResponseError,
    UnsupportedByBroker,
)
from pybroker.client.metadata import ClusterView, error_code
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
MAX_TIMESTAMP_VERSION: Final = 7
"""Brokers before 3.0 would take -3 for a moment before 1970."""
ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """`offset` is -1 if no record is that late; `timestamp` is that of the record found, -1 for
    LATEST and EARLIEST. `error` is set instead where a partition cannot be asked."""

    offset: int
    timestamp: int
    leader_epoch: int
    error: ClientError | None = None


async def list_offsets(
    cluster: Cluster,
    moments: Mapping[TopicPartition, int],
    *,
    isolation_level: str,
    deadline: Deadline,
) -> dict[TopicPartition, OffsetAnswer]:
    """One answer a partition, in the order of asking. Moments are ms since 1970 or LATEST,
    EARLIEST, MAX_TIMESTAMP. What can be retried is, until the deadline."""
    cluster.watch({topic_partition.topic for topic_partition in moments})
    answers: dict[TopicPartition, OffsetAnswer] = {}
    problems: dict[TopicPartition, ClientError] = {}
    failures = 0
    while len(answers) < len(moments):
        open_ones = [item for item in moments if item not in answers]
        by_node, without_leader = leaders(cluster.view, open_ones)
        for topic_partition in without_leader:
            problems[topic_partition] = _no_leader(cluster.view, topic_partition)
        await asyncio.gather(
            *(
                _ask(
                    cluster,
                    node,
                    {item: moments[item] for item in partitions},
                    ISOLATION_LEVELS[isolation_level],
                    answers,
                    problems,
                )
                for node, partitions in by_node.items()
            )
        )
        if len(answers) == len(moments):
            break
        failures += 1
        if deadline.remaining_s() <= cluster.pause_s(failures):
            break
        await asyncio.sleep(cluster.pause_s(failures))
        try:
            await cluster.refreshed(deadline.remaining_s())
        except (TimeoutError, ClientError):
            pass
    missing = DeadlinePassed("no broker answered in time")
    return {
        item: answers.get(item) or OffsetAnswer(-1, -1, -1, problems.get(item, missing))
        for item in moments
    }


async def _ask(
    cluster: Cluster,
    node: int,
    moments: Mapping[TopicPartition, int],
    isolation_level: int,
    answers: dict[TopicPartition, OffsetAnswer],
    problems: dict[TopicPartition, ClientError],
) -> None:
    """Fills `answers` with what is final, and `problems` with what may be tried again."""
    try:
        connection = await cluster.connection(node)
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        if version < MAX_TIMESTAMP_VERSION and MAX_TIMESTAMP in moments.values():
            raise UnsupportedByBroker("the broker cannot look up the largest timestamp")
        response = await connection.send(
            ApiKey.LIST_OFFSETS,
            _request(cluster.view, moments, isolation_level),
            ListOffsetsResponse,
            timeout_s=cluster.options.request_timeout_ms / 1_000,
        )
    except ClientError as error:
        for topic_partition in moments:
            if error.retriable:
                problems[topic_partition] = error
            else:
                answers[topic_partition] = OffsetAnswer(-1, -1, -1, error)
        return
    for topic in response.topics:
        for row in topic.partitions:
            topic_partition = TopicPartition(topic.name, row.partition_index)
            code = error_code(row.error_code)
            if code.retriable:
                problems[topic_partition] = ResponseError(code)
            elif code != ErrorCode.NONE:
                answers[topic_partition] = OffsetAnswer(-1, -1, -1, ResponseError(code))
            else:
                answers[topic_partition] = OffsetAnswer(row.offset, row.timestamp, row.leader_epoch)


def _request(
    view: ClusterView, moments: Mapping[TopicPartition, int], isolation_level: int
) -> ListOffsetsRequest:
    topics: dict[str, ListOffsetsTopic] = {}
    for topic_partition, timestamp in moments.items():
        info = view.partition(topic_partition)
        topic = topics.setdefault(topic_partition.topic, ListOffsetsTopic(name=topic_partition[0]))
        topic.partitions.append(
            ListOffsetsPartition(
                partition_index=topic_partition.partition,
                current_leader_epoch=info.leader_epoch if info else -1,
                timestamp=timestamp,
            )
        )
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=list(topics.values())
    )


def _no_leader(view: ClusterView, topic_partition: TopicPartition) -> ClientError:
    topic = view.topics.get(topic_partition.topic)
    if topic is not None and topic.error != ErrorCode.NONE:
        return ResponseError(topic.error)
    if topic is not None and topic_partition.partition not in topic.partitions:
        return ResponseError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return ResponseError(ErrorCode.LEADER_NOT_AVAILABLE)
