"""LeaderAndIsr, StopReplica and UpdateMetadata: the controller's requests, accepted only on the
inter-broker listener. `model.py` defines the commands that they contain.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.model import (
    Broker,
    Endpoint,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.wire.messages.control import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)

log = logging.getLogger(__name__)

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The names of the security protocols. The index of a name is its number in the requests."""


async def _require_controller(services: Services, request: Request, controller_epoch: int) -> None:
    require_broker(services, request)
    await services.prove_controller(controller_epoch)


def require_broker(services: Services, request: Request) -> None:
    """Raise BrokerError CLUSTER_AUTHORIZATION_FAILED unless the request arrived on the inter-broker
    listener."""
    expected = services.config.inter_broker_listener
    if request.listener != expected:
        left_out = services.log_limit.allow("only for brokers")
        if left_out is not None:
            log.warning(
                "inter-broker request rejected listener=%s lines_left_out=%d: the inter-broker"
                " listener is %s, and inter.broker.listener.name has to be the same on all brokers",
                request.listener,
                left_out,
                expected,
            )
        raise BrokerError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"the request is allowed only on the inter-broker listener {expected}, "
            f"but it arrived on the listener {request.listener}",
        )


async def handle_leader_and_isr(
    services: Services, request: Request, message: LeaderAndIsrRequest
) -> LeaderAndIsrResponse:
    try:
        command = LeaderAndIsr(
            message.controller_id,
            message.controller_epoch,
            message.broker_epoch,
            tuple(
                _facts(topic, part)
                for topic in message.topic_states
                for part in topic.partition_states
            ),
            _extent(message.extent),
        )
        await _require_controller(services, request, message.controller_epoch)
        answers = await services.commands.leader_and_isr(command)
    except BrokerError as error:
        return LeaderAndIsrResponse(error_code=error.code)
    return LeaderAndIsrResponse(
        topics=[_errors(topic, answers) for topic in message.topic_states],
    )


def _errors(
    topic: LeaderAndIsrTopicState, answers: Mapping[TopicPartition, ErrorCode]
) -> LeaderAndIsrTopicError:
    return LeaderAndIsrTopicError(
        topic_id=topic.topic_id,
        partition_errors=[
            LeaderAndIsrPartitionError(
                partition_index=part.partition_index,
                error_code=answers[TopicPartition(topic.topic_name, part.partition_index)],
            )
            for part in topic.partition_states
        ],
    )


def _facts(topic: LeaderAndIsrTopicState, part: LeaderAndIsrPartitionState) -> PartitionFacts:
    return PartitionFacts(
        topic_partition=TopicPartition(topic.topic_name, part.partition_index),
        topic_id=topic.topic_id,
        state=PartitionState(
            leader=part.leader,
            leader_epoch=part.leader_epoch,
            isr=tuple(part.isr),
            controller_epoch=part.controller_epoch,
            eligible=tuple(part.eligible),
        ),
        partition_epoch=part.partition_epoch,
        replicas=tuple(part.replicas),
        is_new=part.is_new,
    )


async def handle_stop_replica(
    services: Services, request: Request, message: StopReplicaRequest
) -> StopReplicaResponse:
    command = StopReplica(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        tuple(
            StopReplicaPartition(
                TopicPartition(topic.topic_name, part.partition_index),
                part.leader_epoch,
                part.delete_partition,
            )
            for topic in message.topic_states
            for part in topic.partition_states
        ),
    )
    try:
        await _require_controller(services, request, message.controller_epoch)
        answers = await services.commands.stop_replica(command)
    except BrokerError as error:
        return StopReplicaResponse(error_code=error.code)
    return StopReplicaResponse(
        partition_errors=[
            StopReplicaPartitionError(
                topic_name=key.topic, partition_index=key.partition, error_code=code
            )
            for key, code in answers.items()
        ]
    )


async def handle_update_metadata(
    services: Services, request: Request, message: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    try:
        await _require_controller(services, request, message.controller_epoch)
        await services.commands.update_metadata(_description(message))
    except BrokerError as error:
        return UpdateMetadataResponse(error_code=error.code)
    return UpdateMetadataResponse()


def _description(message: UpdateMetadataRequest) -> UpdateMetadata:
    return UpdateMetadata(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        tuple(
            _described(topic, part)
            for topic in message.topic_states
            for part in topic.partition_states
        ),
        tuple(
            Broker(
                broker.id,
                tuple(
                    Endpoint(each.listener, each.host, each.port, _protocol(each.security_protocol))
                    for each in broker.endpoints
                ),
                broker.rack,
            )
            for broker in message.live_brokers
        ),
        _extent(message.extent),
    )


def _described(
    topic: UpdateMetadataTopicState, part: UpdateMetadataPartitionState
) -> PartitionFacts:
    return PartitionFacts(
        topic_partition=TopicPartition(topic.topic_name, part.partition_index),
        topic_id=topic.topic_id,
        state=PartitionState(
            leader=part.leader,
            leader_epoch=part.leader_epoch,
            isr=tuple(part.isr),
            controller_epoch=part.controller_epoch,
        ),
        partition_epoch=part.zk_version,
        replicas=tuple(part.replicas),
        offline_replicas=tuple(part.offline_replicas),
    )


def _extent(number: int) -> Extent:
    try:
        return Extent(number)
    except ValueError:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"the field 'extent' of the controller's request is {number}, expected 0 to 4",
        ) from None


def _protocol(number: int) -> str:
    if not 0 <= number < len(SECURITY_PROTOCOLS):
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"the security protocol in the controller's request is {number}, expected 0 to 3",
        )
    return SECURITY_PROTOCOLS[number]
