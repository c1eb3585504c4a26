"""ControlledShutdown: a stopping broker asks the controller to move its leaderships to other
brokers.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.handlers.control import require_broker
from pybroker.handlers.topics import require_controller
from pybroker.wire.messages.control import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

_WAIT_MAX_S: Final = 30.0
"""How long (s) a stopping broker waits for the answer by default (controller.socket.timeout.ms)."""


async def handle_controlled_shutdown(
    services: Services, request: Request, message: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    try:
        require_broker(services, request)
        require_controller(services)
        if message.broker_epoch < 0:
            raise BrokerError(
                ErrorCode.STALE_BROKER_EPOCH,
                "the ControlledShutdown request has no broker epoch, expected the epoch "
                "of the stopping broker",
            )
        async with asyncio.timeout(_WAIT_MAX_S):
            remaining = await services.controller.controlled_shutdown(
                message.broker_id, message.broker_epoch
            )
    except BrokerError as error:
        return ControlledShutdownResponse(error_code=error.code)
    except TimeoutError:
        return ControlledShutdownResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
    return ControlledShutdownResponse(
        remaining_partitions=[
            RemainingPartition(topic_name=key.topic, partition_index=key.partition)
            for key in remaining
        ]
    )
