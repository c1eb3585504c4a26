"""The link to the coordinator of a group or a transactional id. After the loss of the coordinator,
the next request finds the new coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from pybroker.client.cluster import Address, Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import (
    ClientError,
    ConnectFailed,
    ConnectionLost,
    NotConnected,
    RequestTimedOut,
    ResponseError,
)
from pybroker.client.metadata import error_code
from pybroker.errors import ErrorCode
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.schema import Message

log = logging.getLogger(__name__)

AnswerT = TypeVar("AnswerT", bound=Message)

Refuse = Callable[[ErrorCode], ClientError]
"""A function that returns the exception for an error code that is not retriable."""

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
"""The key types of FindCoordinator: the key is a group id, or a transactional id."""
VERSION_MAX: Final = 2**15 - 1
KEYS_SINCE: Final = 4
"""The first version of FindCoordinator with several groups in one request."""
GROUP_LANE: Final = "group"
"""The name of the connection for JoinGroup, SyncGroup and Heartbeat requests. A broker responds in
order, and JoinGroup may wait long, so commits use another connection. No heartbeats are sent during
a rebalance."""


class CoordinatorLink:
    """A client's connection to the coordinator of the group or transactional id `key`. `refuse`
    returns the exception for a lookup error that is not retriable."""

    def __init__(
        self, cluster: Cluster, key: str, key_type: int = GROUP_KEY, refuse: Refuse = ResponseError
    ) -> None:
        self.cluster = cluster
        self.key = key
        self._key_type = key_type
        self._refuse = refuse
        self._address: Address | None = None
        self._lost: Address | None = None
        self._finding = asyncio.Lock()

    @property
    def known(self) -> bool:
        return self._address is not None

    def lost(self, reason: object) -> None:
        """Record that the known broker is unreachable or no longer the coordinator. The next
        request looks up the coordinator again."""
        if self._address is not None:
            log.info(
                "coordinator lost, the next request looks it up key=%s reason=%s",
                self.key,
                reason,
            )
            self._lost = self._address
        self._address = None

    async def send(
        self,
        key: ApiKey,
        build: Callable[[int], Message],
        answer: type[AnswerT],
        *,
        timeout_s: float,
        lane: str = "",
        version_max: int = VERSION_MAX,
    ) -> AnswerT:
        """Send one request to the coordinator. `build` makes the request for an API version, at
        most `version_max`. Requests with different values of `lane` use different connections.
        Raises ClientError."""
        address = self._address or await self._find()
        try:
            connection = await self.cluster.connect(address, lane)
            version = min(connection.version_of(key), version_max)
            return await connection.send(
                key, build(version), answer, timeout_s=timeout_s, version=version
            )
        except (ConnectFailed, ConnectionLost, NotConnected, RequestTimedOut) as error:
            if self._address == address:
                self.lost(error)
            raise

    async def _find(self) -> Address:
        """Return the address of the coordinator. If it is unknown, ask a broker by FindCoordinator.
        Raises ClientError."""
        async with self._finding:
            if self._address is None:
                # An isolated broker still returns itself as the coordinator.
                connection = await self.cluster.any_connection(last=self._lost)
                self._address = await self._ask(connection)
            return self._address

    async def _ask(self, connection: Connection) -> Address:
        several = connection.version_of(ApiKey.FIND_COORDINATOR) >= KEYS_SINCE
        answer = await connection.send(
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(
                key="" if several else self.key,
                key_type=self._key_type,
                coordinator_keys=[self.key] if several else [],
            ),
            FindCoordinatorResponse,
            timeout_s=self.cluster.options.request_timeout_ms / 1_000,
        )
        row = answer.coordinators[0] if several and answer.coordinators else answer
        code = error_code(row.error_code)
        if code != ErrorCode.NONE:
            # A broker that is isolated from the cluster cannot find the coordinator. After a
            # refresh the next request goes to another broker.
            self.cluster.request_refresh()
            raise ResponseError(code) if code.retriable else self._refuse(code)
        log.info("coordinator found key=%s broker=%d", self.key, row.node_id)
        return row.host, row.port
