"""The producer id and epoch of an idempotent producer."""

from __future__ import annotations

from pybroker.client.cluster import Cluster
from pybroker.client.errors import ResponseError
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse

EPOCH_MAX = 32_767
NO_TRANSACTION_TIMEOUT_MS = 2**31 - 1
"""The transaction timeout, which brokers ignore without a transactional id."""


class ProducerIdentity:
    """The producer id and epoch of an idempotent producer. Without a transactional id, the producer
    itself raises the epoch (KIP-360)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.producer_id = -1
        self.producer_epoch = -1

    @property
    def known(self) -> bool:
        return self.producer_id >= 0

    async def obtain(self) -> None:
        """Get a new producer id from any broker. Raises ClientError."""
        connection = await self._cluster.any_connection()
        answer = await connection.send(
            ApiKey.INIT_PRODUCER_ID,
            InitProducerIdRequest(
                transactional_id=None, transaction_timeout_ms=NO_TRANSACTION_TIMEOUT_MS
            ),
            InitProducerIdResponse,
            timeout_s=self._cluster.options.request_timeout_ms / 1_000,
        )
        if answer.error_code != ErrorCode.NONE:
            raise ResponseError(error_code(answer.error_code))
        self.producer_id = answer.producer_id
        self.producer_epoch = answer.producer_epoch

    def surpass(self, producer_id: int, producer_epoch: int) -> None:
        """Raise the epoch above `producer_epoch`, if `producer_id` is the current id. If the epoch
        is already the maximum, drop the id: `obtain` must then get a new id."""
        if producer_id != self.producer_id or producer_epoch < self.producer_epoch:
            return
        if self.producer_epoch >= EPOCH_MAX:
            self.producer_id = self.producer_epoch = -1
        else:
            self.producer_epoch += 1
