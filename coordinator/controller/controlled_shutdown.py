"""ControlledShutdown: before a broker stops, the controller elects other leaders for the partitions
that the broker leads, and removes the broker from the in-sync replicas."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from pybroker.coordinator.controller import leaders
from pybroker.coordinator.controller.decisions import Circumstances, succeeded, without
from pybroker.coordinator.controller.events import HandoverAsked
from pybroker.coordinator.controller.partitions import (
    Partition,
    PartitionStatus,
    Reason,
    StateWrite,
)
from pybroker.coordinator.controller.services import ControllerServices
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import Broker, StopReplicaPartition, TopicPartition

log = logging.getLogger(__name__)


def decide_handover(
    partition: Partition, leaving: Collection[int], now: Circumstances
) -> StateWrite | None:
    """Return the partition's next state, in which no `leaving` broker is the leader or in the ISR.
    Return None if no other replica may lead, the partition is not online, or nothing changes."""
    state = partition.state
    if state is None or partition.status is not PartitionStatus.ONLINE:
        return None
    if state.leader not in leaving:
        return without(partition, leaving, now, Reason.CONTROLLED_SHUTDOWN)
    order = now.in_order(partition.replicas)
    elected = leaders.handover(order, state, now.candidates_not_stale, leaving)
    if elected is None:
        return None
    return succeeded(partition, elected, now, Reason.CONTROLLED_SHUTDOWN)


class Handovers:
    """Handles ControlledShutdown requests during one controller epoch, and adds the stopping
    brokers to `ClusterContext.leaving`. `look_at_brokers` updates the brokers in the
    `ClusterContext`."""

    def __init__(
        self, services: ControllerServices, look_at_brokers: Callable[[], Awaitable[None]]
    ) -> None:
        self._services = services
        self._look_at_brokers = look_at_brokers

    async def answer(self, event: HandoverAsked) -> None:
        """Hand over the partitions that the stopping broker leads. Complete the future
        `event.reply` with the result, or with the exception if the controller refuses. Raises
        ControllerMoved, CoordError."""
        if event.reply.done():
            return  # the caller was cancelled, or this controller's term has ended
        try:
            broker = await self._find(event.broker_id, event.broker_epoch)
            remaining = await self._hand_over(broker)
        except BrokerError as error:
            log.info("handover refused broker=%d reason=%s", event.broker_id, error)
            if not event.reply.done():
                event.reply.set_exception(error)
            return
        if not event.reply.done():
            event.reply.set_result(remaining)

    async def _find(self, broker_id: int, broker_epoch: int) -> Broker:
        """Return the broker with this id. Raises BrokerError BROKER_NOT_AVAILABLE if the broker
        is not live, STALE_BROKER_EPOCH if `broker_epoch` is neither -1 nor the broker's present
        epoch."""
        broker = self._services.context.brokers.get(broker_id)
        if broker is None or broker.epoch < broker_epoch:
            await self._look_at_brokers()  # its registration may be newer than the context
            broker = self._services.context.brokers.get(broker_id)
        if broker is None:
            raise BrokerError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker_id} does not exist."
            )
        if broker_epoch not in (-1, broker.epoch):
            raise BrokerError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} has broker epoch {broker.epoch},"
                f" the request has {broker_epoch}",
            )
        return broker

    async def _hand_over(self, broker: Broker) -> tuple[TopicPartition, ...]:
        services, context = self._services, self._services.context
        context.leaving.add(broker.id)
        led: list[TopicPartition] = []
        followed: list[TopicPartition] = []
        for partition in context.kept_partitions():
            if partition.state is None or broker.id not in partition.replicas:
                continue
            if len(partition.replicas) > 1:
                mine = partition.state.leader == broker.id
                (led if mine else followed).append(partition.topic_partition)
        # A leader may have added replicas to the ISR since the state was last read.
        await services.machine.refresh(
            key for key in led if self._decide(context.partitions[key]) is None
        )
        await services.machine.move([*led, *followed], self._decide)
        remaining = tuple(key for key in led if self._leads(broker.id, key))
        handed_over = [key for key in led if key not in set(remaining)]
        services.notifier.queue_roles(broker.id, handed_over)
        services.notifier.stop(
            broker.id,
            [
                StopReplicaPartition(key, self._leader_epoch(key), delete=False)
                for key in followed
                if not self._leads(broker.id, key)
            ],
        )
        services.notifier.describe_replicas_of({broker.id})
        log.info(
            "broker leaving broker=%d partitions_handed_over=%d partitions_followed=%d"
            " partitions_still_led=%d",
            broker.id,
            len(handed_over),
            len(followed),
            len(remaining),
        )
        return remaining

    def _decide(self, partition: Partition) -> StateWrite | None:
        now = self._services.circumstances(partition)
        return decide_handover(partition, self._services.context.leaving, now)

    def _leads(self, broker_id: int, key: TopicPartition) -> bool:
        state = self._services.context.partitions[key].state
        return state is not None and state.leader == broker_id

    def _leader_epoch(self, key: TopicPartition) -> int:
        state = self._services.context.partitions[key].state
        return -1 if state is None else state.leader_epoch
