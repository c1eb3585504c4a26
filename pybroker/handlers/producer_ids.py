"""InitProducerId without a transactional id: returns a producer id that no other producer has
received.

Without a transactional id, the transaction timeout of the request has no meaning and is ignored.
"""

from __future__ import annotations

import logging

from pybroker.errors import BrokerError, CoordError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

log = logging.getLogger(__name__)


async def handle_init_producer_id(
    services: Services, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse:
    if message.transactional_id is not None:
        empty = not message.transactional_id
        return _refused(ErrorCode.INVALID_REQUEST if empty else ErrorCode.COORDINATOR_NOT_AVAILABLE)
    try:
        producer_id = await services.producer_ids()
    except BrokerError as error:
        left_out = services.log_limit.allow("producer id not allocated")
        if left_out is not None:
            log.warning("producer id not allocated error=%s lines_left_out=%d", error, left_out)
        return _refused(error.code)
    except CoordError:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
