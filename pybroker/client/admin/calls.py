"""Sends and retries the admin client's requests: to any broker, to the controller, to a named
broker, or to the leaders of partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from pybroker.client.backoff import Deadline
from pybroker.client.cluster import Cluster
from pybroker.client.connection import Connection
from pybroker.client.errors import ClientError, Closed, NotConnected, ResponseError
from pybroker.client.leader_calls import AskLeader, ask_leaders, request_limit_s
from pybroker.client.metadata import ClusterView
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

T = TypeVar("T")

Ask = Callable[[Connection, float], Awaitable[T]]
"""A function that sends a request on a connection, with a time limit in seconds, and returns the
value that the caller wants."""

_FAILURES_UNTOLD: Final = 5
"""The number of failed attempts before the client warns that no broker acts as the controller. An
election may cause a few failures."""


class Calls:
    """Sends the requests of one admin client. `opened` is true while the client is started and not
    closed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.opened = False

    def deadline(self, timeout_ms: int | None = None) -> Deadline:
        """Return the deadline of an operation that starts now and may take `timeout_ms` (None:
        default.api.timeout.ms)."""
        limit_ms = timeout_ms or self.cluster.options.default_api_timeout_ms
        return Deadline(self.cluster.clock, limit_ms)

    def wait_ms(self, timeout_ms: int | None) -> int:
        """Return the time limit in ms that a request gives to the broker: `timeout_ms` (None:
        default.api.timeout.ms), at most request.timeout.ms."""
        options = self.cluster.options
        return min(timeout_ms or options.default_api_timeout_ms, options.request_timeout_ms)

    async def any_broker(
        self, ask: Ask[T], timeout_ms: int | None = None, *, repeatable: bool = True
    ) -> T:
        """Return the value that `ask` gets from any reachable broker. `repeatable`: retry even if a
        broker may have processed the request. Raises ClientError."""
        return await self._ask(
            self.cluster.any_connection, ask, self.deadline(timeout_ms), repeatable
        )

    async def controller(self, ask: Ask[T], timeout_ms: int | None = None) -> T:
        """Return the value that `ask` gets from the controller. Raises ClientError."""

        async def controller() -> Connection:
            node = self.cluster.view.controller_id
            if node not in self.cluster.view.nodes:
                raise NotConnected("no broker is the controller at the moment")
            return await self.cluster.connection(node)

        deadline = self.deadline(timeout_ms)
        limit_s = deadline.remaining_s()
        try:
            return await self._ask(controller, ask, deadline, False)
        except ResponseError as error:
            if error.code != ErrorCode.NOT_CONTROLLER:
                raise
            raise ResponseError(
                error.code,
                f"no broker answered as the controller within {limit_s:.0f} s. The last answer:"
                f" {error.detail.rstrip('.')}. Check that the brokers reach ZooKeeper",
            ) from error

    async def broker(
        self, node: int, ask: Ask[T], timeout_ms: int | None = None, *, repeatable: bool = True
    ) -> T:
        """Return the value that `ask` gets from the broker with the id `node`. Raises
        ClientError."""

        async def named() -> Connection:
            return await self.cluster.connection(node)

        return await self._ask(named, ask, self.deadline(timeout_ms), repeatable)

    async def each_broker(
        self, nodes: Iterable[int] | None, ask: Ask[T], timeout_ms: int | None = None
    ) -> dict[int, T | ClientError]:
        """Return, for each broker id in `nodes` (None: all known brokers), the value that `ask`
        gets from the broker, or the error."""
        self.check_opened()
        chosen = sorted(self.cluster.view.nodes) if nodes is None else list(dict.fromkeys(nodes))

        async def one(node: int) -> T | ClientError:
            try:
                return await self.broker(node, ask, timeout_ms)
            except ClientError as error:
                return error

        return dict(zip(chosen, await asyncio.gather(*map(one, chosen)), strict=True))

    async def leaders(
        self,
        partitions: Iterable[TopicPartition],
        ask: AskLeader[T | ClientError],
        timeout_ms: int | None = None,
        *,
        repeatable: bool = True,
    ) -> dict[TopicPartition, T | ClientError]:
        """Return, by partition, the value that `ask` gets from the leader, or the error."""
        self.check_opened()
        return await ask_leaders(
            self.cluster, partitions, ask, deadline=self.deadline(timeout_ms), repeatable=repeatable
        )

    async def metadata(self, names: Iterable[str] | None) -> ClusterView:
        """Return the metadata of these topics (None: all), from any broker. Raises ClientError."""
        self.check_opened()
        deadline = self.deadline()
        failures = 0
        while True:
            try:
                return await self.cluster.metadata(
                    names, timeout_s=self.cluster.options.request_timeout_ms / 1_000
                )
            except ClientError as error:
                failures += 1
                await self._before_retry(error, failures, deadline, True)

    def check_opened(self) -> None:
        """Raise Closed before `start` and after `close` of the client."""
        if not self.opened:
            raise Closed("the admin client is not running: use it in an async with block")

    async def _ask(
        self,
        choose: Callable[[], Awaitable[Connection]],
        ask: Ask[T],
        deadline: Deadline,
        repeatable: bool,
    ) -> T:
        """Return the result of `ask` for a connection from `choose`. Repeat both calls after an
        error that allows a retry, until `deadline`. Raises ClientError."""
        self.check_opened()
        failures = 0
        while True:
            try:
                connection = await choose()
                return await ask(connection, request_limit_s(self.cluster, deadline))
            except ClientError as error:
                failures += 1
                await self._before_retry(error, failures, deadline, repeatable)

    async def _before_retry(
        self, error: ClientError, failures: int, deadline: Deadline, repeatable: bool
    ) -> None:
        """Wait for the retry backoff and refresh the metadata. Raise `error` instead if it is not
        retriable, if the deadline comes first, or if the broker may have processed a request that
        is not `repeatable`."""
        pause = self.cluster.pause_s(failures)
        may_retry = error.retriable and (error.definite or repeatable)
        if not may_retry or deadline.remaining_s() <= pause:
            raise error
        if (
            failures == _FAILURES_UNTOLD + 1
            and getattr(error, "code", None) == ErrorCode.NOT_CONTROLLER
        ):
            log.warning(
                "no broker answers as the controller, the client tries again reason=%s "
                "remaining_s=%.0f",
                error,
                deadline.remaining_s(),
            )
        await asyncio.sleep(pause)
        try:
            await self.cluster.refreshed(deadline.remaining_s())
        except (TimeoutError, ClientError):
            pass


def controller_moved(answers: Iterable[tuple[int, str | None]]) -> None:
    """Raise ResponseError if a result in `answers`, (error code, message), has the code
    NOT_CONTROLLER. A broker that answers NOT_CONTROLLER has changed nothing."""
    for code, sentence in answers:
        if code == ErrorCode.NOT_CONTROLLER:
            raise ResponseError(ErrorCode.NOT_CONTROLLER, broker_sentence=sentence or "")
