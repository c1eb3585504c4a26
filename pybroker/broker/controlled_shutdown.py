"""Controlled shutdown: before a broker stops, it asks the controller to elect other leaders for its
partitions. Otherwise clients would have to wait until the broker's registration has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final

from pybroker.client.connection import Connection
from pybroker.client.metadata import error_code
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.handlers.context import ControllerView
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import Broker, PartitionFacts, TopicPartition
from pybroker.ports import SessionEvent
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.messages.control import ControlledShutdownRequest, ControlledShutdownResponse

log = logging.getLogger(__name__)

_NEW_LEADERS_WAIT_S: Final = 1.0
"""How long (s) the broker waits until its own metadata has the new leaders. Until then it tells
clients that it is still the leader."""


AskController = Callable[[Broker, int, int], Awaitable[Collection[TopicPartition]]]
"""Called with the controller's broker, this broker's id and this broker's epoch. Asks the
controller to move the leadership of this broker's partitions to other brokers. Returns the
partitions that this broker still leads. Raises PybrokerError or OSError."""


class ControlledShutdown:
    """Carries out the controlled shutdown of one broker. `broker_epoch` returns the epoch of the
    broker's registration. The owner passes each event of the ZooKeeper session to
    `session_changed`."""

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        controller: ControllerView,
        metadata: MetadataView,
        ask: AskController,
        config: BrokerConfig,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._controller = controller
        self._metadata = metadata
        self._ask = ask
        self._config = config
        self._connected = True
        self._attempt: asyncio.Task[Collection[TopicPartition]] | None = None

    def session_changed(self, event: SessionEvent) -> None:
        self._connected = event in (SessionEvent.CONNECTED, SessionEvent.RECONNECTED)
        if self._attempt is not None and not self._connected:
            self._attempt.cancel()

    async def run(self) -> None:
        """Ask the controller to elect other leaders. Pause and ask again while this broker leads
        partitions that another broker can lead. Give up after controlled.shutdown.max.retries
        attempts. Raise nothing."""
        others = self._metadata.brokers.keys() - {self._broker_id}
        if not self._config.controlled_shutdown_enable or not others:
            return
        for attempt in range(1, self._config.controlled_shutdown_max_retries + 1):
            if attempt > 1:
                pause_s = self._config.controlled_shutdown_retry_backoff_ms / 1000
                await self._metadata.wait_until(self._is_hopeless, pause_s)
                if self._is_hopeless():
                    break
            if self._connected and await self._try(attempt):
                await self._metadata.wait_until(lambda: not self._led(), _NEW_LEADERS_WAIT_S)
                log.info("controlled shutdown done")
                return
        led = len(self._led())
        log.log(
            logging.WARNING if led else logging.INFO,
            "controlled shutdown not complete leads=%d zookeeper=%s: the broker stops nevertheless",
            led,
            "connected" if self._connected else "not connected",
        )

    async def _try(self, attempt: int) -> bool:
        """Ask the controller once. Return True if, by the controller's answer, this broker leads no
        partition any more. Return False if it still leads a partition, or if the request fails."""
        self._attempt = asyncio.ensure_future(self._ask_current_controller())
        try:
            limit_s = self._config.controller_socket_timeout_ms / 1000
            done, _ = await asyncio.wait([self._attempt], timeout=limit_s)
            if not done or self._attempt.cancelled():
                raise TimeoutError(
                    f"the controller did not answer within {limit_s:g} s; this broker is "
                    f"{'connected' if self._connected else 'not connected'} to ZooKeeper"
                )
            remaining = self._attempt.result()
        except (PybrokerError, OSError) as error:
            log.info("attempt=%d of the controlled shutdown failed reason=%r", attempt, error)
            return False
        except Exception:
            log.exception("attempt=%d of the controlled shutdown failed", attempt)
            return False
        finally:
            self._attempt.cancel()
            self._attempt = None
        text = "attempt=%d of the controlled shutdown done, this broker still leads partitions=%d"
        log.info(text, attempt, len(remaining))
        return not remaining

    async def _ask_current_controller(self) -> Collection[TopicPartition]:
        epoch = self._broker_epoch()
        if self._controller.is_active:
            return await self._controller.controlled_shutdown(self._broker_id, epoch)
        known = self._controller.controller_id
        controller = None if known is None else self._metadata.brokers.get(known)
        if controller is None:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, "this broker knows no live controller")
        return await self._ask(controller, self._broker_id, epoch)

    # the partitions to hand over

    def _led(self) -> list[PartitionFacts]:
        """Return the partitions that this broker leads and that have a replica on another live
        broker."""
        mine, brokers = self._broker_id, self._metadata.brokers
        return [
            facts
            for topic in self._metadata.topics.values()
            for facts in topic.partitions.values()
            if facts.state.leader == mine
            and any(replica != mine and replica in brokers for replica in facts.replicas)
        ]

    def _is_hopeless(self) -> bool:
        """Return True if ZooKeeper is not connected, or if no other live broker has an online
        replica of any partition that this broker leads."""
        return not self._connected or not any(
            replica != self._broker_id
            and replica in self._metadata.brokers
            and replica not in facts.offline_replicas
            for facts in self._led()
            for replica in facts.replicas
        )


def asking_controller(config: BrokerConfig) -> AskController:
    """Return an `AskController` that sends its requests to the controller's inter-broker
    listener."""
    return partial(
        ask_controller,
        listener=config.inter_broker_listener,
        timeout_s=config.controller_socket_timeout_ms / 1000,
    )


async def ask_controller(
    controller: Broker, broker_id: int, broker_epoch: int, *, listener: str, timeout_s: float
) -> Collection[TopicPartition]:
    """Send ControlledShutdown for the broker `broker_id` to the broker `controller`. Return the
    partitions that the stopping broker still leads. Raise BrokerError, ClientError or OSError."""
    endpoint = controller.endpoint(listener)
    if endpoint is None:
        raise BrokerError(
            ErrorCode.LISTENER_NOT_FOUND,
            f"the controller, broker {controller.id}, has no listener {listener}; set"
            " inter.broker.listener.name to a listener that every broker has",
        )
    connection = await Connection.open(
        endpoint.host,
        endpoint.port,
        client_id=f"controlled-shutdown-{broker_id}",
        timeout_s=timeout_s,
    )
    try:
        answer = await connection.send(
            ApiKey.CONTROLLED_SHUTDOWN,
            ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch),
            ControlledShutdownResponse,
            timeout_s=timeout_s,
            version=APIS[ApiKey.CONTROLLED_SHUTDOWN].max_version,
        )
    finally:
        await connection.close()
    if answer.error_code:
        raise BrokerError(error_code(answer.error_code))
    return [
        TopicPartition(row.topic_name, row.partition_index) for row in answer.remaining_partitions
    ]
