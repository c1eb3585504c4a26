"""The lookup of end offsets of leader epochs, by OffsetForLeaderEpoch requests to the leaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.client.leader_calls import ask_leaders, response_error
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

CONSUMER: Final = -1


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """A partition's largest leader epoch not above the requested epoch, and the epoch's end offset.
    Both are -1 if there is none."""

    leader_epoch: int
    end_offset: int
    error: ClientError | None = None


async def epoch_ends(
    cluster: Cluster,
    epochs: Mapping[TopicPartition, int],
    *,
    deadline: Deadline,
    once: bool = False,
) -> dict[TopicPartition, EpochEnd]:
    """Return for each partition the end offset of the given leader epoch in the leader's log.
    Errors are retried until the deadline; with `once` they are not retried."""

    async def ask(
        connection: Connection, partitions: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, EpochEnd | ClientError]:
        topics: dict[str, OffsetForLeaderTopic] = {}
        for item in partitions:
            topic = topics.setdefault(item.topic, OffsetForLeaderTopic(topic=item.topic))
            info = cluster.view.partition(item)
            topic.partitions.append(
                OffsetForLeaderPartition(
                    partition=item.partition,
                    current_leader_epoch=info.leader_epoch if info else -1,
                    leader_epoch=epochs[item],
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=list(topics.values()))
        answer = await connection.send(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            request,
            OffsetForLeaderEpochResponse,
            timeout_s=timeout_s,
        )
        return {
            TopicPartition(topic_row.topic, row.partition): response_error(row.error_code)
            or EpochEnd(row.leader_epoch, row.end_offset)
            for topic_row in answer.topics
            for row in topic_row.partitions
        }

    answers = await ask_leaders(cluster, epochs, ask, deadline=deadline, once=once)
    return {
        item: EpochEnd(-1, -1, answer) if isinstance(answer, ClientError) else answer
        for item, answer in answers.items()
    }
