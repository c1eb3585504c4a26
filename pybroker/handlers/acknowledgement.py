"""Waits until an appended batch may be acknowledged: with acks=all, when the high watermark has
reached the end of the batch; with acks=1, when the batch is as durable as flush.messages
requires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Services
from pybroker.model import TopicPartition
from pybroker.replication.authority import NEEDED
from pybroker.replication.partition import Partition
from pybroker.replication.purgatory import Wait

R = TypeVar("R")
T = TypeVar("T")

Fail = Callable[[TopicPartition, R, BrokerError], None]
"""Sets the error of a batch in its result."""


class Waiting(NamedTuple, Generic[R]):
    """A batch that is appended but not acknowledged yet."""

    partition: Partition
    leading_since: int
    """`Partition.leading_since` at the time of the append: the leader epoch in which this broker
    became the leader. If the value has changed, another broker has led since then, and the batch
    may have been truncated."""
    end_offset: int
    acks: int
    result: R
    """The part of the response for the batch."""


def when_acknowledged(
    services: Services, waiting: list[Waiting[R]], timeout_ms: int, fail: Fail[R], response: T
) -> T | Deferred[T]:
    """Return `response` if each batch is acknowledged or has failed. Otherwise return a Deferred of
    `response`. After `timeout_ms` the remaining batches fail with REQUEST_TIMED_OUT."""
    acknowledgement = _Acknowledgement(services, waiting, timeout_ms, fail, response)
    return response if acknowledgement.is_reached() else acknowledgement.response


class _Acknowledgement(Generic[R, T]):
    """The batches of one request that wait to be acknowledged, and the Deferred of the response."""

    __slots__ = ("_deadline", "_fail", "_pending", "_result", "_services", "_wait", "response")

    def __init__(
        self,
        services: Services,
        waiting: list[Waiting[R]],
        timeout_ms: int,
        fail: Fail[R],
        result: T,
    ) -> None:
        self._services = services
        self._pending = waiting
        self._deadline = services.clock.monotonic() + max(timeout_ms, 0) / 1000
        self._fail = fail
        self._result = result
        self._wait: Wait | None = None
        self.response: Deferred[T] = Deferred(self._end_wait, is_applied=True)

    def is_reached(self) -> bool:
        """Return whether each batch has been acknowledged or has failed. If the deadline has
        passed, the remaining batches fail. Otherwise, start a wait for the remaining batches. This
        method is called again at the end of the wait."""
        services, fail = self._services, self._fail
        pending = [item for item in self._pending if not is_decided(services, item, fail)]
        self._pending = pending
        if not pending:
            return True
        remaining_s = self._deadline - services.clock.monotonic()
        if remaining_s <= 0:
            for item in pending:
                error = BrokerError(ErrorCode.REQUEST_TIMED_OUT)
                fail(item.partition.topic_partition, item.result, error)
            return True
        first = pending[0]
        # The purgatory of produces counts offsets, not bytes.
        is_lone = len(pending) == 1 and first.acks == -1
        self._wait = services.replicas.produces.begin(
            [item.partition.topic_partition for item in pending],
            missing_bytes=first.end_offset - first.partition.high_watermark if is_lone else 1,
            timeout_s=remaining_s,
            on_over=self._wait_is_over,
            shares_timer=True,
        )
        return False

    def _wait_is_over(self) -> None:
        # A partition may be in the middle of a change.
        asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self.response.done():
            return
        self._end_wait()
        try:
            is_reached = self.is_reached()
        except Exception as error:
            self.response.set_exception(error)
            return
        if is_reached:
            self.response.set_result(self._result)

    def _end_wait(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.end()


def is_decided(services: Services, item: Waiting[R], fail: Fail[R]) -> bool:
    """Return whether the batch is acknowledged or has failed. If it has failed, call `fail` with
    its error."""
    partition = item.partition
    key = partition.topic_partition
    try:
        if (
            services.replicas.leader(key) is not partition
            or partition.leading_since != item.leading_since
        ):
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"this broker lost the leadership of {key} after it had appended the batch; this"
                " broker may be the leader again now",
            )
        if item.acks == 1:
            return partition.log.durable_end >= item.end_offset
        if not partition.may_have_enough_replicas():
            raise BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if partition.high_watermark >= item.end_offset:
            return True
        services.replicas.require(partition, NEEDED["Produce with acks=all"])
    except BrokerError as error:
        fail(key, item.result, error)
        return True
    return False
