"""ElectLeaders (KIP-460): the controller elects leaders, and waits until its metadata has the new
leaders. A request for all partitions gets results only for partitions that needed an election."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from pybroker.coordinator.controller.events import Election, ElectionType
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.handlers.topics import require_controller
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.wire.messages.reassignment import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_TIMED_OUT = Election(ErrorCode.REQUEST_TIMED_OUT)


async def handle_elect_leaders(
    services: Services, request: Request, message: ElectLeadersRequest
) -> ElectLeadersResponse:
    deadline = services.clock.monotonic() + max(message.timeout_ms, 0) / 1000
    try:
        election_type = ElectionType(message.election_type)
    except ValueError:
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    wanted = _wanted(services, message)
    held = await _hold(services, election_type, wanted, deadline)
    await _wait_for_leaders(services, held, deadline)
    if message.topic_partitions is None:
        held = {
            key: each
            for key, each in held.items()
            if each.code is not ErrorCode.ELECTION_NOT_NEEDED
        }
    return ElectLeadersResponse(replica_election_results=_results(held))


def _wanted(services: Services, message: ElectLeadersRequest) -> list[TopicPartition]:
    if message.topic_partitions is None:
        return [
            TopicPartition(name, number)
            for name, topic in sorted(services.metadata.topics.items())
            for number in sorted(topic.partitions)
        ]
    named = (
        TopicPartition(topic.topic, number)
        for topic in message.topic_partitions
        for number in topic.partitions
    )
    return list(dict.fromkeys(named))


async def _hold(
    services: Services,
    election_type: ElectionType,
    wanted: Iterable[TopicPartition],
    deadline: float,
) -> dict[TopicPartition, Election]:
    keys = list(wanted)
    try:
        require_controller(services)
    except BrokerError as error:
        return dict.fromkeys(keys, Election(error.code, error.detail))
    asking = asyncio.ensure_future(services.controller.elect_leaders(election_type, keys))
    try:
        # The elections continue if the client's time limit expires first.
        remaining_s = max(deadline - services.clock.monotonic(), 0)
        done, _ = await asyncio.wait([asking], timeout=remaining_s)
        if not done:
            return dict.fromkeys(keys, _TIMED_OUT)
        return dict(asking.result())
    except BrokerError as error:
        return dict.fromkeys(keys, Election(error.code, error.detail))
    finally:
        asking.cancel()


async def _wait_for_leaders(
    services: Services, held: dict[TopicPartition, Election], deadline: float
) -> None:
    """Wait until this broker's metadata has the elected leaders. `held` has the elections. If the
    metadata still lacks a leader at `deadline` (monotonic s), set REQUEST_TIMED_OUT in `held` for
    this partition."""
    waiting = {key: each.leader for key, each in held.items() if each.code is ErrorCode.NONE}

    def are_known() -> bool:
        for key in [key for key, leader in waiting.items() if _leader(services, key) == leader]:
            del waiting[key]
        return not waiting

    await services.metadata.wait_until(are_known, deadline - services.clock.monotonic())
    held.update(dict.fromkeys(waiting, _TIMED_OUT))


def _leader(services: Services, key: TopicPartition) -> int:
    topic = services.metadata.topic(key.topic)
    facts = None if topic is None else topic.partitions.get(key.partition)
    return NO_LEADER if facts is None else facts.state.leader


def _results(held: Mapping[TopicPartition, Election]) -> list[ReplicaElectionResult]:
    by_topic: dict[str, ReplicaElectionResult] = {}
    for key, each in held.items():
        topic = by_topic.setdefault(key.topic, ReplicaElectionResult(topic=key.topic))
        topic.partition_result.append(
            PartitionResult(
                partition_id=key.partition,
                error_code=each.code,
                error_message=each.message or (each.code.text if each.code else None),
            )
        )
    return list(by_topic.values())
