"""The lookup of offsets by timestamp, by ListOffsets requests to the leaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, UnsupportedByBroker
from pybroker.client.leader_calls import ask_leaders, response_error
from pybroker.client.metadata import ClusterView
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
"""The first version of ListOffsets in which the timestamp -3 (MAX_TIMESTAMP) asks for the record
with the largest timestamp. Brokers before Kafka 3.0 treat -3 like any other timestamp."""
ISOLATION_LEVELS: Final = {"read_uncommitted": 0, "read_committed": 1}


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """The result of a lookup in one partition. `offset` is -1 if no record is at or after the
    requested timestamp. `timestamp` is in ms since 1970 (-1 for LATEST and EARLIEST). On failure
    only `error` is set."""

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
    once: bool = False,
) -> dict[TopicPartition, OffsetAnswer]:
    """Return each partition's offset for its timestamp (ms since 1970, or LATEST, EARLIEST,
    MAX_TIMESTAMP). Errors are retried until the deadline, unless `once`."""
    level = ISOLATION_LEVELS[isolation_level]

    async def ask(
        connection: Connection, partitions: tuple[TopicPartition, ...], timeout_s: float
    ) -> dict[TopicPartition, OffsetAnswer | ClientError]:
        chosen = {item: moments[item] for item in partitions}
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        if version < MAX_TIMESTAMP_VERSION and MAX_TIMESTAMP in chosen.values():
            raise UnsupportedByBroker(
                f"the broker supports ListOffsets up to version {version}, but version "
                f"{MAX_TIMESTAMP_VERSION} or above is needed to look up MAX_TIMESTAMP"
            )
        response = await connection.send(
            ApiKey.LIST_OFFSETS,
            _request(cluster.view, chosen, level),
            ListOffsetsResponse,
            timeout_s=timeout_s,
        )
        return {
            TopicPartition(topic.name, row.partition_index): response_error(row.error_code)
            or OffsetAnswer(row.offset, row.timestamp, row.leader_epoch)
            for topic in response.topics
            for row in topic.partitions
        }

    answers = await ask_leaders(cluster, moments, ask, deadline=deadline, once=once)
    return {
        item: OffsetAnswer(-1, -1, -1, answer) if isinstance(answer, ClientError) else answer
        for item, answer in answers.items()
    }


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
