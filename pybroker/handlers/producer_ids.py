"""InitProducerId: returns a producer id and an epoch. If the request has a transactional id, the
transaction coordinator determines both. Otherwise the producer id is new."""

from __future__ import annotations

import logging
from typing import Final

from pybroker.coordinator.transactions.decisions import Init
from pybroker.coordinator.transactions.transaction import ProducerIdAndEpoch
from pybroker.errors import BrokerError, CoordError, ErrorCode
from pybroker.handlers.context import Request, Services
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

log = logging.getLogger(__name__)

_FIRST_WITH_PRODUCER_FENCED: Final = 4


async def handle_init_producer_id(
    services: Services, request: Request, message: InitProducerIdRequest
) -> InitProducerIdResponse:
    has_id, has_epoch = message.producer_id != -1, message.producer_epoch != -1
    if has_id != has_epoch:
        return _refused(ErrorCode.INVALID_REQUEST)
    if message.transactional_id is not None:
        expected = ProducerIdAndEpoch(message.producer_id, message.producer_epoch)
        call = Init(message.transaction_timeout_ms, expected if has_id else None)
        return await _initialized(services, request, message.transactional_id, call)
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


async def _initialized(
    services: Services, request: Request, transactional_id: str, call: Init
) -> InitProducerIdResponse:
    try:
        given = await services.transactions.init_producer_id(transactional_id, call)
    except BrokerError as error:
        is_old = request.version < _FIRST_WITH_PRODUCER_FENCED
        if error.code is ErrorCode.PRODUCER_FENCED and is_old:
            return _refused(ErrorCode.INVALID_PRODUCER_EPOCH)
        return _refused(error.code)
    except CoordError:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=given.producer_id, producer_epoch=given.epoch)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
