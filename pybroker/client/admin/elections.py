"""Leader elections that the user requests: of the preferred leader, or of any live replica."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from pybroker.client.admin.calls import Calls, controller_moved
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError
from pybroker.client.leader_calls import response_error
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.reassignment import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)


class ElectionType(enum.IntEnum):
    """The type of an election. PREFERRED elects the first assigned replica. UNCLEAN elects any live
    replica of a partition without a leader, and may lose records."""

    PREFERRED = 0
    UNCLEAN = 1


async def elect_leaders(
    calls: Calls,
    election_type: ElectionType,
    partitions: Iterable[TopicPartition] | None,
    *,
    timeout_ms: int | None,
) -> dict[TopicPartition, ClientError | None]:
    """Ask the controller to elect leaders, as `Admin.elect_leaders` describes. Raises ClientError
    if the whole request fails."""
    topics: dict[str, TopicPartitions] = {}
    for name, number in dict.fromkeys(partitions or ()):
        topics.setdefault(name, TopicPartitions(topic=name)).partitions.append(number)
    request = ElectLeadersRequest(
        election_type=election_type,
        topic_partitions=None if partitions is None else list(topics.values()),
        timeout_ms=calls.wait_ms(timeout_ms),
    )

    async def ask(connection: Connection, timeout_s: float) -> ElectLeadersResponse:
        answer = await connection.send(
            ApiKey.ELECT_LEADERS, request, ElectLeadersResponse, timeout_s=timeout_s
        )
        if error := response_error(answer.error_code):
            raise error
        controller_moved(
            (row.error_code, row.error_message)
            for topic in answer.replica_election_results
            for row in topic.partition_result
        )
        return answer

    response = await calls.controller(ask, timeout_ms)
    return {
        TopicPartition(topic.topic, row.partition_id): response_error(
            row.error_code, row.error_message
        )
        for topic in response.replica_election_results
        for row in topic.partition_result
    }
